// What Python hands over, as the native window has it.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "window.hpp"

namespace recurra {

// A tuple of Segment objects -> numbers. Tasks hold no empty segments.
inline std::vector<Segment> segments(nanobind::handle tuple) {
  std::vector<Segment> found;
  for (nanobind::handle one : nanobind::borrow<nanobind::tuple>(tuple)) {
    const Word start = nanobind::cast<Word>(one.attr("start"));
    found.push_back({start, start + nanobind::cast<Word>(one.attr("size"))});
  }
  return found;
}

}  // namespace recurra
