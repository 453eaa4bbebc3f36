// PyTorch without annotations: every ATen operator that a thread calls inside a block comes here
// first, by a boxed fallback on a dispatch key above all others, and is deferred if that is safe.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <c10/core/DefaultDtype.h>
#include <pthread.h>
#include <torch/library.h>

#include "engine.hpp"
#include "operators.hpp"
#include "places.hpp"
#include "stretches.hpp"
#include "touched.hpp"

namespace nb = nanobind;
using namespace recurra;

namespace {

// What one signature (operator, shapes, types, scalars) has taught.
struct Learned {
  struct Output {
    std::vector<int64_t> sizes, strides;
    caffe2::TypeMeta type;
    std::size_t bytes;
  };
  std::vector<Output> outputs;
  bool defer = true;
  std::atomic<double> us{0};
  double weight = 0;  // the same for all stretches of an examination
  std::uint64_t epoch = 0;
};

struct Settings {
  double tiny_us = 5;
  bool learn = true;
};

// How the operators of this block run at present: to learn which program it is, without the window
// but looked at, through the window, not even seen but timed, or not even seen.
enum class Mode { meets, aside, window, timed, out };

struct Counts {
  std::uint64_t deferred = 0, inlined = 0, views = 0, alone = 0, learned = 0, off = 0;
  double gain = 0, predicted = 0;
};

std::unique_ptr<Engine> engine;
std::mutex front;  // of all below: one operator is looked at at a time
Settings settings;
Counts counts;
Prediction prediction;
std::unordered_map<std::uint64_t, Program> programs;  // by how their blocks begin
Program* program = nullptr;
Mode mode = Mode::window;
std::uint64_t beginning = 0;  // a hash of the first operators
int met = 0;
double since = 0;
int threads = 1;
std::unordered_map<const void*, Kind> kinds;
std::unordered_map<std::uint64_t, std::unique_ptr<Learned>> memory;
auto draft = std::make_unique<Call>();  // it is used again

constexpr double kOverhead = 1.0;       // µs: of an operator that goes through the window
constexpr std::size_t kMost = 1 << 16;  // signatures that are remembered
constexpr std::size_t kPrograms = 256;
constexpr int kMeets = 12;  // operators that tell programs apart

// Gives Python's lock back, if this thread has it: who frees a tensor's last owner may need it.
class WithoutPython {
 public:
  WithoutPython() {
    if (PyGILState_Check()) release_.emplace();
  }

 private:
  std::optional<nb::gil_scoped_release> release_;
};

void drain() {
  const WithoutPython free;
  engine->drain();
}

// The same, for a caller that has Python's lock: what has run is forgotten, too.
void settle() {
  drain();
  engine->sweep();
}

[[noreturn]] void raise(const Failure& why) {
  engine->tell();
  TORCH_CHECK(false, why.text);
}

c10::DispatchKeySet below(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
}

// An operator runs with `front` held, in this thread. Transforms of functions put our key back:
// what they call meanwhile is a part of it.
class Alone {
 public:
  Alone() { thread_ = pthread_self(); }
  ~Alone() { thread_ = 0; }
  static bool part() { return thread_.load(std::memory_order_relaxed) == pthread_self(); }

 private:
  inline static std::atomic<pthread_t> thread_{0};
};

// What only reads waits for its arguments; anything else for all that is in flight.
void run_alone(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack,
               const Touched& touched, bool only_reads) {
  ++counts.alone;
  if (only_reads && touched.plain && usual_modes()) {
    engine->wait_for(accesses(touched));
    prediction.wait_for(touched.reads);
  } else {
    drain();
    prediction.wait();
  }
  for (const auto* list : {&touched.reads, &touched.writes}) {
    for (const at::Tensor* t : *list) {
      if (auto why = engine->spoilt(*t)) raise(*why);
    }
  }
  const Alone here;
  const c10::impl::ExcludeDispatchKeyGuard without(kKey);
  op.redispatchBoxed(below(keys), stack);
}

// The first time that a signature is seen: what its outputs are like.
void learn(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack,
           const Touched& touched, const Kind& kind, Learned& learned) {
  std::vector<Learned::Output> before;
  auto look = [](const at::Tensor& t) {
    return Learned::Output{t.sizes().vec(), t.strides().vec(), t.dtype(), t.storage().nbytes()};
  };
  const std::vector<at::Tensor> writes = kept(touched.writes);
  for (const at::Tensor& t : writes) before.push_back(look(t));
  const std::size_t returns = kind.returns;
  const auto begin = std::chrono::steady_clock::now();
  run_alone(op, keys, stack, touched, false);
  const auto took = std::chrono::steady_clock::now() - begin;
  learned.us = std::chrono::duration<double, std::micro>(took).count();
  ++counts.learned;
  for (std::size_t k = 0; k < returns; ++k) {
    const at::Tensor& t = (*stack)[stack->size() - returns + k].toTensor();
    if (kind.mutates) {  // gives what it wrote, in that order, as large as it was
      learned.defer = learned.defer && k < writes.size() && t.is_same(writes[k]);
      continue;
    }
    if (!t.defined() || !plain(t) || t.storage_offset() != 0 || t.storage().use_count() > 1) {
      learned.defer = false;
      return;
    }
    learned.outputs.push_back(look(t));
  }
  for (std::size_t k = 0; k < before.size(); ++k) {
    const Learned::Output after = look(writes[k]);
    learned.defer = learned.defer && after.sizes == before[k].sizes &&
                    after.strides == before[k].strides && after.bytes == before[k].bytes;
  }
}

void promise(const Learned& learned, Tensors& promised) {
  for (const Learned::Output& o : learned.outputs) {
    auto storage = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), o.bytes, at::DataPtr(nullptr, c10::Device(c10::kCPU)),
        c10::GetCPUAllocator(), true);
    at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(std::move(storage)), c10::DispatchKeySet(c10::DispatchKey::CPU), o.type);
    t.unsafeGetTensorImpl()->set_sizes_and_strides(o.sizes, o.strides);
    promised.push_back(std::move(t));
  }
}

// When the results of an operator would be there: for the prediction.
void note(const Kind& kind, const Stack* stack, const std::vector<at::Tensor>& writes, double end) {
  for (std::size_t k = stack->size() - kind.returns; k < stack->size(); ++k) {
    prediction.made((*stack)[k].toTensor(), end);
  }
  for (const at::Tensor& t : writes) prediction.made(t, end);
}

// What takes less costs more to hand over than to run.
double tiny() {
  return std::clamp(2 * engine->hand_us(), settings.tiny_us, 20.0);
}

void defer(Stack* stack, std::size_t base, const Touched& touched, const Kind& kind,
           Learned& learned) {
  accesses(touched);
  draft->clear();
  draft->op = &*kind.op;
  draft->us = &learned.us;
  draft->where = place();
  draft->floats = float_modes();
  for (const at::Tensor* t : touched.writes) draft->writes.push_back(*t);
  draft->arguments.assign(std::make_move_iterator(stack->begin() + static_cast<long>(base)),
                         std::make_move_iterator(stack->end()));
  stack->resize(base);
  if (kind.mutates) {
    for (std::size_t k = 0; k < kind.returns; ++k) stack->push_back(draft->writes[k]);
  } else {
    promise(learned, draft->outputs);
    for (const at::Tensor& t : draft->outputs) {
      if (t.numel()) segments.writes.push_back(segment_of(t));
      stack->push_back(t);
    }
  }
  ++counts.deferred;
  engine->offer(segments, draft, tiny(), !kind.mutates);
}

// The operator itself, as if nobody had looked.
void plainly(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard without(kKey);
  op.redispatchBoxed(below(keys), stack);
}

// How the next stretch of this program runs. If it is off, operators do not come here any more,
// until a block begins when it is to be examined again. Nor in a block that `begins`, if those
// before it were alike: then its time is enough.
void choose(double now, bool begins) {
  if (engine->any_spoilt()) return;
  if (program->off(now)) {
    mode = Mode::out;
    ++counts.off;
  } else {
    mode = program->next(now) ? Mode::window : Mode::aside;
    const bool timed = mode == Mode::aside && begins && program->seen && program->alike;
    if (timed) mode = Mode::timed, program->believe();
  }
  if (mode == Mode::out || mode == Mode::timed) {
    c10::impl::tls_set_dispatch_key_included(kKey, false);
  }
  counts.gain = program->trial.gain();
  counts.predicted = program->predicted;
}

// The time of the present stretch is added to it; it may end with that.
void account() {
  if (!program || mode == Mode::out) return;
  engine->drain();
  const double now = seconds_now();
  program->seconds += now - since;
  program->end(mode == Mode::window, now, prediction, threads);
  since = now;
}

// One of the first operators of a block.
void meet(const c10::OperatorHandle& op, const Stack* stack) {
  mix(beginning, reinterpret_cast<std::uint64_t>(&op.schema()));
  const std::size_t count = op.schema().arguments().size();
  for (std::size_t k = stack->size() - count; k < stack->size(); ++k) {
    if ((*stack)[k].isTensor()) mix(beginning, (*stack)[k].toTensor());
  }
  if (++met < kMeets) return;
  if (programs.size() > kPrograms) programs.clear();
  program = &programs[beginning];
  program->block = {};
  choose(seconds_now(), true);
}

void weigh(Learned& learned) {
  if (learned.epoch != program->epoch) {
    learned.epoch = program->epoch;
    learned.weight = std::max(learned.us.load(), 0.1);
  }
  program->met(learned.weight);
}

// A known operator in a stretch without the window, which is timed. What we do is not counted. It
// is predicted what the window would gain, once.
void run_aside(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack,
               const Touched& touched, const Kind& kind, Learned& learned,
               Clock::time_point entered) {
  ++counts.inlined;
  if (program->seen) {
    program->aside += std::chrono::duration<double>(Clock::now() - entered).count();
    return plainly(op, keys, stack);
  }
  const std::vector<at::Tensor> writes = kept(touched.writes);
  const double host = program->left ? us_between(*program->left, entered) : 0;
  const double start = prediction.launch(touched.reads, touched.writes, host, kOverhead);
  const auto begin = Clock::now();
  plainly(op, keys, stack);
  const auto after = Clock::now();
  const double us = us_between(begin, after);
  learn_from(learned.us, us);
  note(kind, stack, writes, prediction.ran(start, us));
  const auto left = Clock::now();
  program->left = left;
  program->aside += 1e-6 * (us_between(entered, begin) + us_between(after, left));
}

// What its schema says, looked up where it was found last.
const Kind& kind_at(const c10::OperatorHandle& op) {
  struct Line {
    const void* schema = nullptr;
    const Kind* kind = nullptr;
  };
  static Line lines[256];
  const void* schema = &op.schema();
  Line& line = lines[reinterpret_cast<std::uintptr_t>(schema) / alignof(c10::FunctionSchema) % 256];
  if (line.schema != schema) {
    auto known = kinds.find(schema);
    if (known == kinds.end()) known = kinds.emplace(schema, kind_of(op)).first;
    line = {schema, &known->second};
  }
  return *line.kind;
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  if (Alone::part()) return plainly(op, keys, stack);
  if (engine->dusty()) engine->sweep();
  const WithoutPython free;
  std::unique_lock lock(front);
  if (program && ++program->operators >= Program::kMost) {
    account();
    choose(seconds_now(), false);
  }
  if (program) ++program->block.operators;
  if (mode == Mode::meets) meet(op, stack);
  const bool unseen = mode == Mode::out || mode == Mode::timed;
  if (unseen || (mode == Mode::meets && !c10::GradMode::is_enabled())) {
    lock.unlock();
    return plainly(op, keys, stack);
  }
  const auto entered = mode == Mode::aside ? Clock::now() : Clock::time_point();
  const Kind& kind = kind_at(op);
  if (kind.way == Kind::views || kind.way == Kind::decomposes) {  // inner operators come here again
    ++counts.views;
    lock.unlock();
    return op.redispatchBoxed(below(keys), stack);
  }
  const std::size_t count = op.schema().arguments().size(), base = stack->size() - count;
  Touched touched;
  for (std::size_t k = 0; k < count; ++k) touch(touched, (*stack)[base + k], kind.writes[k]);
  TORCH_CHECK(!(touched.gradient && c10::GradMode::is_enabled()),
              "operator ", op.schema().name(), " would need a gradient inside window.concurrent()");
  if (!touched.any || kind.way == Kind::now) {
    const c10::impl::ExcludeDispatchKeyGuard without(kKey);
    lock.unlock();
    return op.redispatchBoxed(below(keys), stack);
  }
  std::uint64_t signature = reinterpret_cast<std::uint64_t>(&op.schema());
  bool known_shapes = kind.way == Kind::defers && touched.plain && usual_modes();
  if (kind.silent >= 0) {
    known_shapes = known_shapes && !(*stack)[base + static_cast<std::size_t>(kind.silent)].toBool();
  }
  for (std::size_t k = 0; known_shapes && k < count; ++k) {
    known_shapes = mix(signature, (*stack)[base + k]);
  }
  if (!known_shapes) {
    return run_alone(op, keys, stack, touched, kind.way == Kind::alone && kind.only_reads);
  }
  mix(signature, static_cast<std::uint64_t>(c10::get_default_dtype_as_scalartype()));
  if (memory.size() > kMost) {  // shapes that never come again
    drain();
    memory.clear();
  }
  auto [found, first] = memory.try_emplace(signature, nullptr);
  if (first) {
    if (program) ++program->fresh;
    auto learned = std::make_unique<Learned>();
    try {
      learn(op, keys, stack, touched, kind, *learned);
    } catch (...) {
      memory.erase(signature);
      throw;
    }
    memory[signature] = std::move(learned);
    return;
  }
  Learned& learned = *found->second;
  if (!learned.defer) return run_alone(op, keys, stack, touched, kind.only_reads);
  if (program) weigh(learned);
  if (mode == Mode::aside && !engine->any_spoilt()) {
    return run_aside(op, keys, stack, touched, kind, learned, entered);
  }
  if (settings.learn && learned.us < tiny() && engine->free_for(accesses(touched))) {
    ++counts.inlined;
    return plainly(op, keys, stack);
  }
  defer(stack, base, touched, kind, learned);
}

thread_local std::unique_ptr<c10::impl::IncludeDispatchKeyGuard> included;

// Views, and what consists of other operators, need not come here at all.
void let_pass() {
  static auto* library = new torch::Library(  // never taken back: blocks may outlive it at the end
      torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || name.getNamespace() != "aten") continue;
    const Kind::Way way = kind_of(*op).way;
    if (way != Kind::views && way != Kind::decomposes) continue;
    library->impl(c10::toString(name).c_str(), torch::CppFunction::makeFallthrough());
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

NB_MODULE(_recurra_torch, m) {
  recurra::told = told_place;
  let_pass();
  m.def("begin", [](int all, int slots, bool learn, double tiny_us) {
    if (!engine || !engine->fits(all - 1, slots)) {
      const WithoutPython free;
      engine.reset();
      engine = std::make_unique<Engine>(all - 1, slots);
    }
    engine->open(true);
    engine->by_workers = engine->joined = 0;
    threads = all;
    settings = {tiny_us, learn};
    counts = {};
    prediction = {};
    exported.clear();
    mode = learn ? Mode::meets : Mode::window;
    program = nullptr;
    beginning = 0, met = 0;
    since = seconds_now();
  });
  m.def("enter", [] { included = std::make_unique<c10::impl::IncludeDispatchKeyGuard>(kKey); });
  m.def("leave", [] { included.reset(); });
  m.def("account", [] {
    const WithoutPython free;
    if (program && (mode == Mode::aside || mode == Mode::window)) program->end_block();
    account();
  });
  m.def("drain", [] { if (engine) settle(); });
  m.def("change", [] { if (engine) engine->change(); });
  m.def("finish", []() -> std::optional<std::string> {
    auto why = engine ? engine->end() : nullptr;
    return why ? std::optional(why->text) : std::nullopt;
  });
  m.def("end", [] {
    program = nullptr;
    if (!engine) return;
    settle();
    engine->end();
    engine->open(false);
  });
  m.def("forked", [] {
    engine.release();  // its threads are the parent's
    program = nullptr;
    included.reset();
  });
  m.def("export", [](std::uint64_t storage) -> std::optional<std::string> {
    if (!engine) return std::nullopt;  // in a forked child
    const auto* address = reinterpret_cast<const c10::StorageImpl*>(storage);
    auto why = engine->told(address);
    exported.insert(address);
    return why ? std::optional(why->text) : std::nullopt;
  });
  m.def("counts", [] {
    nb::dict d;
    d["deferred"] = counts.deferred;
    d["inlined"] = counts.inlined;
    d["views and parts"] = counts.views;
    d["alone"] = counts.alone;
    d["learned"] = counts.learned;
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
