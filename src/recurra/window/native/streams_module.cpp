// Python bindings of the issuing thread and the drivers.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "cuda_driver.hpp"
#include "from_python.hpp"
#include "issuing_thread.hpp"
#include "stub_driver.hpp"

namespace nb = nanobind;
using namespace recurra;

namespace {

std::optional<Word> offer(IssuingThread& thread, nb::list tasks, nb::list kernels) {
  std::vector<Launch> launches;
  for (std::size_t k = 0; k < tasks.size(); ++k) {
    launches.push_back({{segments(tasks[k].attr("reads")), segments(tasks[k].attr("writes"))},
                        nb::cast<Kernel>(kernels[k])});
  }
  const nb::gil_scoped_release free;
  return thread.offer(std::move(launches));
}

nb::dict counts(IssuingThread& thread) {
  const GraphCounts c = thread.counts();
  nb::dict d;
  d["first seen"] = c.first;
  d["built"] = c.built;
  d["reused"] = c.reused;
  d["updated"] = c.updated;
  d["refused"] = c.refused;
  d["crowded out"] = c.crowded;
  d["dropped"] = c.dropped;
  d["kept"] = thread.graphs();
  return d;
}

}  // namespace

NB_MODULE(_recurra_streams, m) {
  nb::class_<Kernel>(m, "Kernel")
      .def(nb::init<>())
      .def_rw("function", &Kernel::function)
      .def_rw("grid", &Kernel::grid)
      .def_rw("block", &Kernel::block)
      .def_rw("shared", &Kernel::shared)
      .def_rw("parameters", &Kernel::parameters)
      .def_rw("workspace", &Kernel::workspace)
      .def_rw("us", &Kernel::us);
  nb::class_<Driver>(m, "Driver");
  nb::class_<CudaDriver, Driver>(m, "CudaDriver").def(nb::init<>());
  nb::class_<StubDriver::Ran>(m, "Ran")
      .def_ro("ticket", &StubDriver::Ran::ticket)
      .def_ro("kernel", &StubDriver::Ran::kernel);
  nb::class_<StubDriver, Driver>(m, "StubDriver")
      .def(nb::init<>())
      .def_rw("fail_at", &StubDriver::fail_at)
      .def_rw("refuses", &StubDriver::refuses)
      .def_ro("calls", &StubDriver::calls)
      .def_ro("counts", &StubDriver::counts)
      .def_ro("misuses", &StubDriver::misuses)
      .def_ro("spans", &StubDriver::spans)
      .def_ro("ran", &StubDriver::ran)
      .def_prop_ro("now", &StubDriver::now)
      .def_prop_ro("streams", &StubDriver::streams)
      .def_prop_ro("events", &StubDriver::events)
      .def_prop_ro("graphs", &StubDriver::graphs)
      .def_prop_ro("blocks", &StubDriver::blocks);
  using free = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<IssuingThread>(m, "Issuer")
      .def(nb::init<std::shared_ptr<Driver>, int, int, std::size_t, std::size_t>())
      .def("offer", &offer)
      .def("retire", &IssuingThread::retire, free())
      .def("settle", &IssuingThread::settle, free())
      .def("close", &IssuingThread::close, free())
      .def("held", &IssuingThread::held, free())
      .def("failed", &IssuingThread::failed, free())
      .def("failure", &IssuingThread::failure, free())
      .def("refusal", &IssuingThread::refusal, free())
      .def("counts", &counts)
      .def("before_fork", &IssuingThread::before_fork, free())
      .def("in_parent", &IssuingThread::in_parent, free())
      .def("in_child", &IssuingThread::in_child);
}
