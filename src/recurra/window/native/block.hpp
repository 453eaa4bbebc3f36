// A block on the thread that is inside: every operator that it calls comes here first, by a boxed
// fallback on a dispatch key above all others, and is deferred if that is safe.
#pragma once

#include <nanobind/nanobind.h>
#include <ATen/record_function.h>
#include <c10/core/DefaultDtype.h>
#include <pthread.h>

#include "diary.hpp"
#include "engine.hpp"
#include "families.hpp"
#include "fates.hpp"
#include "learned.hpp"
#include "operators.hpp"
#include "places.hpp"
#include "rule.hpp"
#include "stretches.hpp"
#include "touched.hpp"

namespace recurra {

namespace nb = nanobind;

namespace {


struct Settings {
  double tiny_us = 5;
  bool learn = true, check = false;
};

// How the operators of this block run at present: to learn which program it is, without the window
// but looked at, through the window, not even seen but timed, or not even seen.
enum class Mode { meets, aside, window, timed, out };

struct Counts {
  std::uint64_t deferred = 0, inlined = 0, views = 0, alone = 0, learned = 0, off = 0, checked = 0;
  double gain = 0, predicted = 0;
};

std::shared_ptr<Engine> engine;
std::mutex changing_engine;  // who is not inside the block looks at it with this
std::atomic<pthread_t> inside{0};  // the thread that is inside a block: all below is its
Settings settings;
Counts counts;
Prediction prediction;
Reference reference;
std::unordered_map<std::uint64_t, Program> programs;  // by how their blocks begin
Program* program = nullptr;
Mode mode = Mode::window;
std::uint64_t beginning = 0;  // a hash of the first operators
int met = 0;
double since = 0;
int threads = 1;
std::unique_ptr<Rule> rule;
std::unordered_map<std::uint64_t, std::unique_ptr<Learned>> memory;
std::unordered_map<std::uint64_t, Family> families;
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

bool is_inside() { return inside.load(std::memory_order_relaxed) == pthread_self(); }

std::shared_ptr<Engine> engine_elsewhere() {
  const std::lock_guard lock(changing_engine);
  return engine;
}

// The same for any thread. One that helps runs operators on as many threads as all others do.
void settle_anywhere() {
  if (is_inside()) return settle();
  const WithoutPython free;
  if (auto shared = engine_elsewhere()) {
    if (!shared->idle()) at::init_num_threads();
    shared->drain();
  }
}

// Operators of other threads wait for what is in flight: who called them has no other way to know.
// Those that a part of a parallel operator calls are parts of it: it may itself be in flight.
std::unique_ptr<at::ObserverContext> other_threads_wait(const at::RecordFunction&) {
  if (!is_inside() && !at::in_parallel_region()) settle_anywhere();
  return nullptr;
}

at::CallbackHandle other_threads = at::INVALID_CALLBACK_HANDLE;

// This thread's own operators are not observed twice, unless a profiler looks on.
void listen(bool profiler) { at::enableRecordFunction(profiler); }

[[noreturn]] void raise(const Failure& why) {
  engine->tell();
  std::rethrow_exception(why.error);
}

// Somebody asks for the memory of a promised tensor: it is theirs from now on.
void fetch(c10::StorageImpl* storage) {
  const WithoutPython free;
  auto shared = engine_elsewhere();
  TORCH_CHECK(shared, "a result of window.concurrent() is read in a process that did not make it");
  if (!is_inside()) at::init_num_threads();
  if (auto why = shared->fetch(storage)) std::rethrow_exception(why->error);
  exported.insert(c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(storage)));
}

c10::DispatchKeySet below(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
}

// The operator itself, as if nobody had looked.
void plainly(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard without(kKey);
  op.redispatchBoxed(below(keys), stack);
}

void told_plainly(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const Diary::Entry written(op);
  plainly(op, keys, stack);
}

// While an operator runs in this thread, transforms of functions put our key back: what they call is
// a part of it.
class Alone {
 public:
  Alone() { ++depth_; }
  ~Alone() { --depth_; }
  static bool part() { return depth_ != 0; }

 private:
  inline static int depth_ = 0;  // of the thread that is inside
};

// What only reads waits for its arguments; anything else for all that is in flight.
void run_alone(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack,
               const Touched& touched, bool only_reads, const char* why) {
  ++counts.alone;
  const Told told(op, "caller", why);
  if (only_reads && touched.plain && usual_modes()) {
    engine->wait_for(accesses(touched));
    prediction.wait_for(touched.reads);
  } else {
    drain();
    prediction.wait();
  }
  for (const auto* list : {&touched.reads, &touched.writes}) {
    for (const at::Tensor* t : *list) {
      if (auto why = engine->spoiled(*t)) raise(*why);
    }
  }
  const Alone here;
  told_plainly(op, keys, stack);
}

// The first time that a signature is seen: what its outputs are like.
void learn(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack,
           const Touched& touched, const Kind& kind, Learned& learned, const char* why) {
  std::vector<Like> before;
  const std::vector<at::Tensor> writes = kept(touched.writes);
  for (const at::Tensor& t : writes) before.push_back(look(t));
  const std::size_t returns = kind.returns;
  const auto begin = Clock::now();
  const Warned warned;
  run_alone(op, keys, stack, touched, kind.only_reads, why);
  learned.us = us_since(begin);
  learned.warned = warned.heard();
  ++counts.learned;
  for (std::size_t k = 0; k < returns; ++k) {
    const at::Tensor& t = (*stack)[stack->size() - returns + k].toTensor();
    if (kind.mutates) {  // gives what it wrote, in that order, as large as it was
      if (k >= writes.size() || !t.is_same(writes[k])) learned.refused = "it gives something else";
      continue;
    }
    if (!t.defined() || !plain(t) || t.storage_offset() != 0 || t.storage().use_count() > 1) {
      learned.refused = "its result is not a new tensor";
      return;
    }
    learned.outputs.push_back(look(t));
  }
  for (std::size_t k = 0; k < before.size(); ++k) {
    const Like after = look(writes[k]);
    const bool same = after.sizes == before[k].sizes && after.strides == before[k].strides &&
                      after.bytes == before[k].bytes;
    if (!same) learned.refused = "it changes the shape of what it writes";
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

void defer(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack, std::size_t base,
           const Touched& touched, const Kind& kind, Learned& learned) {
  accesses(touched);
  draft->clear();
  draft->op = &*kind.op;
  draft->us = &learned.us;
  draft->where = place();
  draft->floats = float_modes();
  c10::SmallVector<at::Tensor, 2> written;  // which it gives
  for (const at::Tensor* t : touched.writes) {
    written.push_back(*t);
    draft->writes.push_back(t->storage());
    if (!t->is_inference()) t->unsafeGetTensorImpl()->bump_version();  // as autograd's kernels do
  }
  draft->arguments.assign(std::make_move_iterator(stack->begin() + static_cast<long>(base)),
                         std::make_move_iterator(stack->end()));
  for (c10::IValue& v : draft->arguments) {
    if (v.isList() && v.use_count() > 1) v = v.toList().copy();  // TorchScript's may change
  }
  stack->resize(base);
  draft->seal();
  if (kind.mutates) {
    for (std::size_t k = 0; k < kind.returns; ++k) stack->push_back(std::move(written[k]));
  } else {
    for (const Like& like : learned.outputs) {
      at::Tensor t = promised(like);
      draft->outputs.push_back({t.storage(), &like});
      segments.writes.push_back(segment_of(t.storage().unsafeGetStorageImpl(), 0, like.bytes));
      stack->push_back(std::move(t));
    }
  }
  ++counts.deferred;
  if (settings.check) {
    const c10::impl::ExcludeDispatchKeyGuard without(kKey);
    if (engine->idle()) reference.forget();
    draft->expected = reference.expect(*draft, kind.writes, !kind.mutates,
                                       [&](Stack* copies) { plainly(op, keys, copies); });
    counts.checked += draft->expected != nullptr;
  }
  engine->offer(segments, draft, tiny(), !kind.mutates);
}

// How the next stretch of this program runs. If it is off, operators do not come here any more,
// until a block begins when it is to be examined again. Nor in a block that `begins`, if those
// before it were alike: then its time is enough.
void choose(double now, bool begins) {
  if (engine->any_spoiled()) return;
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
    const c10::IValue& v = (*stack)[k];
    if (v.isTensor() && plain(v.toTensor())) mix(beginning, v.toTensor());  // others ask Python
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
  const Told told(op, "at once", "the window is off, or was not tried yet");
  if (program->seen) {
    program->aside += std::chrono::duration<double>(Clock::now() - entered).count();
    return told_plainly(op, keys, stack);
  }
  const std::vector<at::Tensor> writes = kept(touched.writes);
  const double host = program->left ? us_between(*program->left, entered) : 0;
  const double start = prediction.launch(touched.reads, touched.writes, host, kOverhead);
  const auto begin = Clock::now();
  told_plainly(op, keys, stack);
  const auto after = Clock::now();
  const double us = us_between(begin, after);
  learn_from(learned.us, us);
  note(kind, stack, writes, prediction.ran(start, us));
  const auto left = Clock::now();
  program->left = left;
  program->aside += 1e-6 * (us_between(entered, begin) + us_between(after, left));
}

// An operator that is not known, or whose kernel is not: somebody's __torch_dispatch__, where our key
// is left out, or that for nested tensors. Nothing is in flight while it runs, nor are its parts.
void run_unknown(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  ++counts.alone;
  const Told told(op, "caller", (*rule)[op].why);
  drain();
  prediction.wait();
  Touched touched;
  const std::size_t count = op.schema().arguments().size(), base = stack->size() - count;
  for (std::size_t k = 0; k < count; ++k) touch(touched, (*stack)[base + k], false);
  for (const at::Tensor* t : touched.reads) {
    if (auto why = engine->spoiled(*t)) raise(*why);
  }
  const Alone here;
  told_plainly(op, keys, stack);
}

// A signature that was not seen before, or warned when it was: whether what the call gives is foretold.
// Otherwise it has run.
bool meet_signature(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack,
                    std::size_t base, const Touched& touched, const Kind& kind,
                    std::unique_ptr<Learned>& known) {
  std::uint64_t name = reinterpret_cast<std::uint64_t>(&op.schema());
  for (std::size_t k = base; k < stack->size(); ++k) mix_family(name, (*stack)[k]);
  Family& family = families[name];
  auto learned = std::make_unique<Learned>();
  std::optional<std::vector<Like>> foretold;
  if (!known && !kind.mutates) {
    const Alone here;
    foretold = family.ask(op, *stack, base, kind.returns, settings.learn);
  }
  if (foretold && family.believed()) {
    learned->outputs = std::move(*foretold);
    learned->us = family.newest->us.load();
    known = std::move(learned);
    family.newest = known.get();
    return true;
  }
  if (program) ++program->fresh;
  const char* why = known ? "it has warned" : "its signature was not seen before";
  family.newest = nullptr;
  try {
    learn(op, keys, stack, touched, kind, *learned, why);
  } catch (...) {
    known = nullptr;
    throw;
  }
  known = std::move(learned);
  family.heard(foretold, *known);
  return false;
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  if (!is_inside()) {  // a task of TorchScript's, which has its caller's modes
    settle_anywhere();
    return plainly(op, keys, stack);
  }
  if (Alone::part()) return plainly(op, keys, stack);
  const Kind& kind = (*rule)[op];
  if (kind.composite && kind.way == Kind::passes) {
    if (!plain(keys)) return run_unknown(op, keys, stack);
    ++counts.views;
    return op.redispatchBoxed(below(keys), stack);
  }
  if (engine->dusty()) engine->sweep();
  const WithoutPython free;
  if (program && ++program->operators >= Program::kMost) {
    account();
    choose(seconds_now(), false);
  }
  if (program) ++program->block.operators;
  if (mode == Mode::meets) meet(op, stack);
  if (mode == Mode::out || mode == Mode::timed || mode == Mode::meets) {
    return told_plainly(op, keys, stack);
  }
  const auto entered = mode == Mode::aside ? Clock::now() : Clock::time_point();
  if (kind.way == Kind::unknown) return run_unknown(op, keys, stack);
  if (kind.way == Kind::passes || (kind.autocasts && autocast())) {  // inner operators come here again
    ++counts.views;
    return op.redispatchBoxed(below(keys), stack);
  }
  const std::size_t count = op.schema().arguments().size(), base = stack->size() - count;
  Touched touched;
  for (std::size_t k = 0; k < count; ++k) touch(touched, (*stack)[base + k], kind.writes[k]);
  const bool otherwise = kind.unless >= 0 && (*stack)[base + static_cast<std::size_t>(kind.unless)]
                                                 .toScalar().toBool();
  const bool only_reads = kind.only_reads && !otherwise;
  if (touched.gradient && c10::GradMode::is_enabled()) {  // its result has a history
    return run_alone(op, keys, stack, touched, only_reads, "its result has a history");
  }
  if (!touched.any || kind.way == Kind::shapes) {
    const c10::impl::ExcludeDispatchKeyGuard without(kKey);
    return op.redispatchBoxed(below(keys), stack);
  }
  std::uint64_t signature = reinterpret_cast<std::uint64_t>(&op.schema());
  bool known_shapes = kind.way == Kind::defers && !otherwise && touched.plain &&
                      !touched.shared && usual_modes();
  const bool masked = kind.masks && std::any_of(stack->begin() + static_cast<long>(base + 1),
                                                stack->end(), has_mask);
  known_shapes = known_shapes && !masked;
  // Where no tensor is read, or written in place, numbers may be all that a shape depends on.
  const bool reads = !touched.reads.empty() || kind.writes[0];
  for (std::size_t k = 0; known_shapes && k < count; ++k) {
    const c10::IValue& v = (*stack)[base + k];
    if (reads && kind.numbers[k]) {
      mix_number(signature, v);
    } else {
      known_shapes = mix(signature, v);
    }
  }
  if (!known_shapes) {
    const bool known = kind.way == Kind::caller || touched.shared || masked;
    const char* why = kind.way == Kind::caller ? kind.why
                      : otherwise      ? kind.otherwise
                      : !touched.plain ? "its arguments are not plain tensors on the CPU"
                      : touched.shared ? "somebody else sees memory of its arguments"
                      : masked         ? "the shape of its result depends on a mask"
                                       : "its arguments, or the modes of its caller, are unusual";
    return run_alone(op, keys, stack, touched, known && only_reads, why);
  }
  mix(signature, static_cast<std::uint64_t>(c10::get_default_dtype_as_scalartype()));
  if (memory.size() > kMost) {  // shapes that never come again
    drain();
    memory.clear(), families.clear();
  }
  std::unique_ptr<Learned>& known = memory[signature];
  if (!known || known->warned) {
    if (!meet_signature(op, keys, stack, base, touched, kind, known)) return;
  }
  Learned& learned = *known;
  if (learned.refused) {
    return run_alone(op, keys, stack, touched, kind.only_reads, learned.refused);
  }
  if (program) weigh(learned);
  if (mode == Mode::aside && !engine->any_spoiled()) {
    return run_aside(op, keys, stack, touched, kind, learned, entered);
  }
  if (settings.learn && learned.us < tiny() && engine->free_for(accesses(touched))) {
    ++counts.inlined;
    const Told told(op, "at once", "it takes less than handing it over");
    return told_plainly(op, keys, stack);
  }
  const Told told(op, "deferred", kind.why);
  defer(op, keys, stack, base, touched, kind, learned);
}

}  // namespace

}  // namespace recurra
