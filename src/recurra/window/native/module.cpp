// Python's view of the native window: the methods of window/core.py, and a clock for its check.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <random>

#include "window.hpp"

namespace nb = nanobind;
using recurra::Accesses;
using recurra::Segment;
using recurra::Window;
using recurra::Word;

namespace {

// A tuple of Segment objects -> numbers. Tasks hold no empty segments.
std::vector<Segment> segments(nb::handle tuple) {
  std::vector<Segment> found;
  for (nb::handle one : nb::borrow<nb::tuple>(tuple)) {
    const Word start = nb::cast<Word>(one.attr("start"));
    found.push_back({start, start + nb::cast<Word>(one.attr("size"))});
  }
  return found;
}

nb::list slots(const Window& window) {
  nb::list found;
  for (const Window::Slot& slot : window.slots()) {
    found.append(nb::make_tuple(slot.ticket, static_cast<int>(slot.state), slot.upstream));
  }
  return found;
}

// ns to compare one task of `reads` + `writes` segments with a window of `size` that is full of such
// tasks, and how many upstream bits that gave in all; random addresses, as in table II of the paper.
std::pair<double, Word> check_ns(int size, int reads, int writes, int tasks, int repeat) {
  std::mt19937_64 rng(1);
  auto some = [&](int count) {
    std::vector<Segment> list;
    for (int k = 0; k < count; ++k) {
      const Word start = (rng() % 4096) * 65536;
      list.push_back({start, start + (1 + rng() % 64) * 1024});
    }
    return list;
  };
  Window window(size, 1);
  for (int k = 0; k < size; ++k) window.offer({some(reads), some(writes)});
  std::vector<Accesses> incoming;
  for (int k = 0; k < tasks; ++k) incoming.push_back({some(reads), some(writes)});
  Word bits = 0;
  double best = 1e30;
  for (int r = 0; r < repeat; ++r) {
    bits = 0;
    const auto begin = std::chrono::steady_clock::now();
    for (const Accesses& a : incoming) bits += std::popcount(window.upstream_of(a));
    const auto end = std::chrono::steady_clock::now();
    const double ns = std::chrono::duration<double, std::nano>(end - begin).count() / tasks;
    best = ns < best ? ns : best;
  }
  return {best, bits};
}

}  // namespace

NB_MODULE(_recurra_window, m) {
  nb::class_<Window>(m, "Window")
      .def(nb::init<int, std::size_t>())
      .def("offer",
           [](Window& w, nb::handle task) {
             return w.offer({segments(task.attr("reads")), segments(task.attr("writes"))});
           })
      .def("take", &Window::take)
      .def("claim", &Window::claim)
      .def("retire", &Window::retire)
      .def("slots", &slots)
      .def("offered", &Window::offered)
      .def("waiting", &Window::waiting);
  m.def("check_ns", [](int size, int reads, int writes, int tasks, int repeat) {
    const auto [ns, bits] = check_ns(size, reads, writes, tasks, repeat);
    return nb::make_tuple(ns, bits);
  });
#if defined(__AVX512F__)
  m.attr("lanes") = "AVX-512";
#elif defined(__AVX2__)
  m.attr("lanes") = "AVX2";
#else
  m.attr("lanes") = "scalar";
#endif
}
