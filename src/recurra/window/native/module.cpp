// Python bindings of the native window, its check's clock, and the trial.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include "clock.hpp"
#include "from_python.hpp"
#include "trial.hpp"
#include "window.hpp"

namespace nb = nanobind;
using recurra::Accesses;
using Clock = recurra::CheckClock;
using recurra::segments;
using recurra::Window;

namespace {

nb::list slots(const Window& window) {
  nb::list found;
  for (const Window::Slot& slot : window.slots()) {
    found.append(nb::make_tuple(slot.ticket, static_cast<int>(slot.state), slot.upstream));
  }
  return found;
}

nb::tuple pair(const recurra::Timed& t) { return nb::make_tuple(t.ns, t.bits); }

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
      .def("waiting", &Window::waiting)
      .def("ready", &Window::ready);
  nb::class_<Clock>(m, "CheckClock")
      .def(nb::init<int, int, int, int>())
      .def("columns", [](const Clock& c, int repeat) { return pair(c.columns(repeat)); })
      .def("algorithm1", [](const Clock& c, int repeat) { return pair(c.algorithm1(repeat)); });
  nb::class_<recurra::Trial>(m, "Trial")
      .def(nb::init<>())
      .def("next", &recurra::Trial::next)
      .def("done", &recurra::Trial::done)
      .def("refuse", &recurra::Trial::refuse)
      .def("gain", &recurra::Trial::gain)
      .def("until", &recurra::Trial::until)
      .def("examining", &recurra::Trial::examining);
#if defined(__AVX512F__)
  m.attr("lanes") = "AVX-512";
#elif defined(__AVX2__)
  m.attr("lanes") = "AVX2";
#else
  m.attr("lanes") = "scalar";
#endif
}
