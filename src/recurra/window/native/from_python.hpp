// Conversion of Python's tasks.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "window.hpp"

namespace recurra {

// Converts a tuple of Segment objects, none of which is empty.
inline std::vector<Segment> segments(nanobind::handle tuple) {
  std::vector<Segment> found;
  for (nanobind::handle one : nanobind::borrow<nanobind::tuple>(tuple)) {
    const Word start = nanobind::cast<Word>(one.attr("start"));
    found.push_back({start, start + nanobind::cast<Word>(one.attr("size"))});
  }
  return found;
}

}  // namespace recurra
