// Python's view of what issues kernels to streams of a GPU.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "from_python.hpp"
#include "issuer.hpp"
#include "stub_driver.hpp"

namespace nb = nanobind;
using namespace recurra;

NB_MODULE(_recurra_streams, m) {
  nb::class_<Kernel>(m, "Kernel")
      .def(nb::init<>())
      .def_rw("function", &Kernel::function)
      .def_rw("grid", &Kernel::grid)
      .def_rw("block", &Kernel::block)
      .def_rw("shared", &Kernel::shared)
      .def_rw("parameters", &Kernel::parameters)
      .def_rw("us", &Kernel::us);
  nb::class_<Driver>(m, "Driver");
  nb::class_<CudaDriver, Driver>(m, "CudaDriver").def(nb::init<>());
  nb::class_<StubDriver, Driver>(m, "StubDriver")
      .def(nb::init<>())
      .def_rw("fail_at", &StubDriver::fail_at)
      .def_ro("calls", &StubDriver::calls)
      .def_ro("waits", &StubDriver::waits)
      .def_ro("spans", &StubDriver::spans)
      .def_prop_ro("now", &StubDriver::now)
      .def_prop_ro("streams", &StubDriver::streams)
      .def_prop_ro("events", &StubDriver::events);
  nb::class_<Issuer>(m, "Issuer")
      .def(nb::init<std::shared_ptr<Driver>, int, int>())
      .def("issue",
           [](Issuer& i, nb::handle task, const Kernel& kernel) {
             return i.issue({segments(task.attr("reads")), segments(task.attr("writes"))}, kernel);
           })
      .def("retire", &Issuer::retire)
      .def("settle", &Issuer::settle)
      .def("held", &Issuer::held)
      .def("failed", &Issuer::failed)
      .def("failure", &Issuer::failure);
}
