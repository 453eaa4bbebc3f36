// Python bindings of blocks for PyTorch without annotations.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/library.h>

#include "block.hpp"
#include "c_functions.hpp"

using namespace recurra;

namespace {

thread_local std::unique_ptr<c10::impl::IncludeDispatchKeyGuard> included;
thread_local std::optional<ResultMemory::Here> large_here;
thread_local bool entered = false, observed = true;

// Excludes views from interception.
void let_pass() {
  static auto* library = new torch::Library(  // never freed, since blocks may outlive it at exit
      torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || (*rule)[*op].way != Kind::passes || (*rule)[*op].composite) continue;
    library->impl(c10::toString(name).c_str(), torch::CppFunction::makeFallthrough());
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

// Returns the limit of memory for results in flight, small compared to the process.
std::size_t bytes_in_flight() {
  std::size_t pages = 0, resident = 0;
  if (std::FILE* file = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(file, "%zu %zu", &pages, &resident) != 2) resident = 0;
    std::fclose(file);
  }
  return std::max<std::size_t>(16 << 20, resident * 4096 / 10);
}

// Raises an error of an operator in Python, with its type there.
[[noreturn]] void raise_in_python(const std::exception_ptr& error) {
  torch::translate_exception_to_python(error);
  throw nb::python_error();
}

NB_MODULE(_recurra_torch, m) {
  recurra::describe_line = describe_code_line;
  recurra::arrive = fetch;
  rule = std::make_unique<Rule>();
  let_pass();
  m.def("begin", [](int all, int slots, bool learn, double tiny_us, bool explain, bool check) {
    explains = explain;
    fates.clear();
    span_recorder.begin(explain);
    if (!engine || !engine->fits(all - 1, slots)) {
      const WithoutPython free;
      auto made = std::make_shared<Engine>(all - 1, slots);
      const std::lock_guard lock(changing_engine);
      engine.swap(made);
    }
    engine->open(true);
    engine->allow(bytes_in_flight());
    engine->by_workers = engine->joined = 0;
    threads = all;
    settings = {tiny_us, learn, check};
    counts = {};
    reference.forget();
    prediction = {};
    exported.clear();
    mode = learn ? Mode::meets : Mode::window;
    program = nullptr;
    beginning = 0, met = 0;
    since = seconds_now();
  });
  m.def("enter", [] {
    entered = true;
    inside = pthread_self();
    included = std::make_unique<c10::impl::IncludeDispatchKeyGuard>(kKey);
    ResultMemory::install();
    ResultMemory::mappings().open();
    large_here.emplace();
    observed = at::isRecordFunctionEnabled();
    listen(at::hasCallbacks());
    if (other_threads == at::INVALID_CALLBACK_HANDLE) {
      other_threads = at::addGlobalCallback(at::RecordFunctionCallback(other_threads_wait)
                                                .scopes({at::RecordScope::FUNCTION}));
    } else {
      at::reenableCallback(other_threads);
    }
  });
  m.def("leave", [] {  // also after an interrupt before `enter`
    const bool was_inside = std::exchange(entered, false);
    if (was_inside) {
      at::disableCallback(other_threads);
      listen(observed);
      included.reset();
      large_here.reset();
      inside = 0;
    }
    program = nullptr;
    if (!engine) return;
    settle();
    engine->end();
    engine->open(false);
    if (was_inside) ResultMemory::mappings().close(engine->budget());
  });
  m.def("put", [](const nb::list& attributes) {  // (owner, name, value), or (owner, name) to remove
    for (nb::handle one : attributes) {
      const auto row = nb::cast<nb::tuple>(one);
      PyObject* value = row.size() == 3 ? nb::object(row[2]).ptr() : nullptr;
      if (CFunctions::replace(row[0], row[1], value)) continue;
      if (PyObject_SetAttr(nb::object(row[0]).ptr(), nb::object(row[1]).ptr(), value)) {
        if (value || !PyErr_ExceptionMatches(PyExc_AttributeError)) throw nb::python_error();
        PyErr_Clear();  // it was not set
      }
    }
  });
  m.def("original", CFunctions::original);
  m.def("functions_replaced", CFunctions::replaced);
  m.def("listen", listen);
  m.def("account", [] {
    const WithoutPython free;
    if (program && (mode == Mode::aside || mode == Mode::window)) program->end_block();
    account();
  });
  m.def("drain", settle_anywhere);
  m.def("change", [] {
    if (auto shared = engine_elsewhere()) shared->change();
  });
  m.def("finish", [] {
    auto why = engine ? engine->end() : nullptr;
    if (why) raise_in_python(why->error);
  });
  m.def("forked", [] {
    new std::shared_ptr<Engine>(std::move(engine));  // leaked: its threads are the parent's
    new (&changing_engine) std::mutex;               // the parent's threads may hold these
    new (&exported) Exported;
    new (&span_recorder) SpanRecorder;
    inside = 0;
    program = nullptr;
    included.reset();
    large_here.reset();
  });
  m.def("look", [](nb::handle given, bool gives) {
    auto shared = engine_elsewhere();
    const at::Tensor& t = THPVariable_Unpack(given.ptr());
    if (!shared || !t.has_storage() || t.layout() != c10::kStrided) return;
    if (auto why = shared->report(t.storage().unsafeGetStorageImpl())) raise_in_python(why->error);
    if (gives) exported.insert(t.storage());
  });
  m.def("see", [](bool seen) {
    const bool before = c10::impl::tls_is_dispatch_key_included(kKey);
    if (is_inside()) c10::impl::tls_set_dispatch_key_included(kKey, seen);
    return before;
  });
  m.def("replaced", [](const std::vector<std::string>& names) { rule->replaced(names); });
  m.def("fates", [] {
    nb::list found;
    for (const auto& [what, fate] : fates) {
      found.append(nb::make_tuple(std::get<0>(what), std::get<1>(what), std::get<2>(what),
                                  fate.calls, fate.us));
    }
    return found;
  });
  m.def("ran", [] {
    nb::list found;
    for (const SpanRecorder::Span& one : span_recorder.spans()) {
      found.append(nb::make_tuple(one.name, one.thread, one.start * 1e-6, one.stop * 1e-6));
    }
    return found;
  });
  m.def("table", [] {
    nb::dict d;
    for (const auto& [name, kind] : rule->table()) {
      d[name.c_str()] = nb::make_tuple(kind.first, kind.second);
    }
    return d;
  });
  m.def("counts", [] {
    nb::dict d;
    d["deferred"] = counts.deferred;
    d["inlined"] = counts.inlined;
    d["views and parts"] = counts.views;
    d["alone"] = counts.alone;
    d["learned"] = counts.learned;
    d["checked"] = counts.checked;
    d["joined to another"] = engine ? engine->joined.load() : 0;
    d["window off"] = counts.off;
    d["by workers"] = engine ? engine->by_workers.load() : 0;
    d["µs to wake a thread"] = engine ? engine->wake_us() : 0;
    d["µs to hand over"] = engine ? engine->hand_us() : 0;
    d["predicted gain"] = counts.predicted;
    d["measured gain"] = counts.gain;
    return d;
  });
}
