// The boxed fallback of a dispatch key above all others: it receives every operator that the thread
// inside a block calls, and defers it if that is safe.
#pragma once

#include <nanobind/nanobind.h>
#include <ATen/record_function.h>
#include <c10/core/DefaultDtype.h>
#include <pthread.h>

#include "span_recorder.hpp"
#include "engine.hpp"
#include "families.hpp"
#include "fates.hpp"
#include "learned.hpp"
#include "operators.hpp"
#include "code_lines.hpp"
#include "rule.hpp"
#include "stretches.hpp"
#include "operands.hpp"

namespace recurra {

namespace nb = nanobind;

namespace {


struct Settings {
  double tiny_us = 5;
  bool learn = true, check = false;
};

// How the operators of this block run now: at once while the program is identified (meets), at once
// but intercepted and timed (aside), through the window, or not intercepted, with or without
// timing.
enum class Mode { meets, aside, window, timed, out };

struct Counts {
  std::uint64_t deferred = 0, inlined = 0, views = 0, alone = 0, learned = 0, off = 0, checked = 0;
  double gain = 0, predicted = 0;
};

std::shared_ptr<Engine> engine;
std::mutex changing_engine;  // held by threads outside of the block that read `engine`
std::atomic<pthread_t> inside{0};  // the thread inside a block, which owns everything below
Settings settings;
Counts counts;
Prediction prediction;
Reference reference;
std::unordered_map<std::uint64_t, Program> programs;  // by the hash of their first operators
Program* program = nullptr;
Mode mode = Mode::window;
std::uint64_t beginning = 0;  // a hash of the first operators
int met = 0;
double since = 0;
int threads = 1;
std::unique_ptr<Rule> rule;
std::unordered_map<std::uint64_t, std::unique_ptr<Learned>> memory;
std::unordered_map<std::uint64_t, Family> families;
auto draft = std::make_unique<Call>();  // reused

constexpr double kOverhead = 1.0;       // µs: of an operator that goes through the window
constexpr std::size_t kMost = 1 << 16;  // signatures that are remembered
constexpr std::size_t kPrograms = 256;
constexpr int kMeets = 12;  // operators that identify a program

// Releases Python's lock, if this thread has it: freeing the last owner of a tensor may need it.
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

// Drains and frees the calls that have run, for a caller with Python's lock.
void settle() {
  drain();
  engine->sweep();
}

bool is_inside() { return inside.load(std::memory_order_relaxed) == pthread_self(); }

std::shared_ptr<Engine> engine_elsewhere() {
  const std::lock_guard lock(changing_engine);
  return engine;
}

// Settles from any thread, with the number of intra-operator threads that all others use.
void settle_anywhere() {
  if (is_inside()) return settle();
  const WithoutPython free;
  if (auto shared = engine_elsewhere()) {
    if (!shared->idle()) at::init_num_threads();
    shared->drain();
  }
}

// Lets operators of other threads wait for calls in flight, except those inside a parallel
// operator, which may be in flight itself.
std::unique_ptr<at::ObserverContext> other_threads_wait(const at::RecordFunction&) {
  if (!is_inside() && !at::in_parallel_region()) settle_anywhere();
  return nullptr;
}

at::CallbackHandle other_threads = at::INVALID_CALLBACK_HANDLE;

// Observes this thread's own operators only if there is a profiler.
void listen(bool profiler) { at::enableRecordFunction(profiler); }

[[noreturn]] void raise(const Failure& why) {
  engine->mark_reported();
  std::rethrow_exception(why.error);
}

// Computes the memory of a promised tensor that is requested, and marks it as exported.
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

// Runs the operator itself, without interception.
void run_eagerly(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard without(kKey);
  op.redispatchBoxed(below(keys), stack);
}

void run_recorded(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const SpanRecorder::Scope written(op);
  run_eagerly(op, keys, stack);
}

// The scope of an operator that runs in this thread. Function transforms restore our key inside, so
// operators that are called then are its parts.
class Alone {
 public:
  Alone() { ++depth_; }
  ~Alone() { --depth_; }
  static bool part() { return depth_ != 0; }

 private:
  inline static int depth_ = 0;  // of the thread inside the block
};

// Runs an operator in the caller, after its arguments if it only reads, otherwise after all calls.
void run_alone(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack,
               const Operands& operands, bool only_reads, const char* why) {
  ++counts.alone;
  const FateTimer timer(op, "caller", why);
  if (only_reads && operands.plain && usual_modes()) {
    engine->wait_for(accesses(operands));
    prediction.wait_for(operands.reads);
  } else {
    drain();
    prediction.wait();
  }
  for (const auto* list : {&operands.reads, &operands.writes}) {
    for (const at::Tensor* t : *list) {
      if (auto why = engine->error_of(*t)) raise(*why);
    }
  }
  const Alone here;
  run_recorded(op, keys, stack);
}

// Runs the first call of a signature, and records the shapes of its outputs.
void learn(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack,
           const Operands& operands, const Kind& kind, Learned& learned, const char* why) {
  std::vector<Like> before;
  const std::vector<at::Tensor> writes = kept(operands.writes);
  for (const at::Tensor& t : writes) before.push_back(look(t));
  const std::size_t returns = kind.returns;
  const auto begin = Clock::now();
  const WarningListener listener;
  run_alone(op, keys, stack, operands, kind.only_reads, why);
  learned.us = us_since(begin);
  learned.warned = listener.heard();
  ++counts.learned;
  for (std::size_t k = 0; k < returns; ++k) {
    const at::Tensor& t = (*stack)[stack->size() - returns + k].toTensor();
    if (kind.mutates) {  // must return its written arguments, in that order
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

// Tells the prediction when the results of an operator would be there.
void note(const Kind& kind, const Stack* stack, const std::vector<at::Tensor>& writes, double end) {
  for (std::size_t k = stack->size() - kind.returns; k < stack->size(); ++k) {
    prediction.made((*stack)[k].toTensor(), end);
  }
  for (const at::Tensor& t : writes) prediction.made(t, end);
}

// The µs below which an operator costs more to hand over than to run.
double tiny() {
  return std::clamp(2 * engine->hand_us(), settings.tiny_us, 20.0);
}

void defer(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack, std::size_t base,
           const Operands& operands, const Kind& kind, Learned& learned) {
  accesses(operands);
  draft->clear();
  draft->op = &*kind.op;
  draft->us = &learned.us;
  draft->where = code_line();
  draft->floats = float_modes();
  c10::SmallVector<at::Tensor, 2> written;  // its results
  for (const at::Tensor* t : operands.writes) {
    written.push_back(*t);
    draft->writes.push_back(t->storage());
    if (!t->is_inference()) t->unsafeGetTensorImpl()->bump_version();  // as autograd's kernels do
  }
  draft->arguments.assign(std::make_move_iterator(stack->begin() + static_cast<long>(base)),
                         std::make_move_iterator(stack->end()));
  for (c10::IValue& v : draft->arguments) {
    if (v.isList() && v.use_count() > 1) v = v.toList().copy();  // TorchScript may change its lists
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
                                       [&](Stack* copies) { run_eagerly(op, keys, copies); });
    counts.checked += draft->expected != nullptr;
  }
  engine->offer(segments, draft, tiny(), !kind.mutates);
}

// Chooses the mode of the next stretch of this program. If the window is off, operators are not
// intercepted until a block begins after the pause of the trial. They are not intercepted either in
// a block that `begins` after two equal ones: only its time is needed.
void choose(double now, bool begins) {
  if (engine->any_poisoned()) return;
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

// Adds the elapsed time to the current stretch, and ends it if it is long enough.
void account() {
  if (!program || mode == Mode::out) return;
  engine->drain();
  const double now = seconds_now();
  program->seconds += now - since;
  program->end(mode == Mode::window, now, prediction, threads);
  since = now;
}

// Hashes one of the first operators of a block, and finds the program after the last of them.
void meet(const c10::OperatorHandle& op, const Stack* stack) {
  mix(beginning, reinterpret_cast<std::uint64_t>(&op.schema()));
  const std::size_t count = op.schema().arguments().size();
  for (std::size_t k = stack->size() - count; k < stack->size(); ++k) {
    const c10::IValue& v = (*stack)[k];
    if (v.isTensor() && plain(v.toTensor())) mix(beginning, v.toTensor());  // others need Python
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

// Runs a known operator in a timed stretch without the window, excluding our own time. The first
// such stretch also feeds the prediction of the window's gain.
void run_aside(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack,
               const Operands& operands, const Kind& kind, Learned& learned,
               Clock::time_point entered) {
  ++counts.inlined;
  const FateTimer timer(op, "at once", "the window is off, or was not tried yet");
  if (program->seen) {
    program->aside += std::chrono::duration<double>(Clock::now() - entered).count();
    return run_recorded(op, keys, stack);
  }
  const std::vector<at::Tensor> writes = kept(operands.writes);
  const double host = program->left ? us_between(*program->left, entered) : 0;
  const double start = prediction.launch(operands.reads, operands.writes, host, kOverhead);
  const auto begin = Clock::now();
  run_recorded(op, keys, stack);
  const auto after = Clock::now();
  const double us = us_between(begin, after);
  learn_from(learned.us, us);
  note(kind, stack, writes, prediction.ran(start, us));
  const auto left = Clock::now();
  program->left = left;
  program->aside += 1e-6 * (us_between(entered, begin) + us_between(after, left));
}

// Runs an operator with an unknown kernel, such as a custom operator, a __torch_dispatch__ (where
// our key is excluded), or one of nested tensors, with nothing in flight.
void run_unknown(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  ++counts.alone;
  const FateTimer timer(op, "caller", (*rule)[op].why);
  drain();
  prediction.wait();
  Operands operands;
  const std::size_t count = op.schema().arguments().size(), base = stack->size() - count;
  for (std::size_t k = 0; k < count; ++k) add_operand(operands, (*stack)[base + k], false);
  for (const at::Tensor* t : operands.reads) {
    if (auto why = engine->error_of(*t)) raise(*why);
  }
  const Alone here;
  run_recorded(op, keys, stack);
}

// Handles a signature that is new, or that warned before: returns true if its result shapes are
// predicted; otherwise it has run.
bool meet_signature(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack,
                    std::size_t base, const Operands& operands, const Kind& kind,
                    std::unique_ptr<Learned>& known) {
  std::uint64_t name = reinterpret_cast<std::uint64_t>(&op.schema());
  for (std::size_t k = base; k < stack->size(); ++k) mix_family(name, (*stack)[k]);
  Family& family = families[name];
  auto learned = std::make_unique<Learned>();
  std::optional<std::vector<Like>> predicted_shapes;
  if (!known && !kind.mutates) {
    const Alone here;
    predicted_shapes = family.ask(op, *stack, base, kind.returns, settings.learn);
  }
  if (predicted_shapes && family.believed()) {
    learned->outputs = std::move(*predicted_shapes);
    learned->us = family.newest->us.load();
    known = std::move(learned);
    family.newest = known.get();
    return true;
  }
  if (program) ++program->fresh;
  const char* why = known ? "it has warned" : "its signature was not seen before";
  family.newest = nullptr;
  try {
    learn(op, keys, stack, operands, kind, *learned, why);
  } catch (...) {
    known = nullptr;
    throw;
  }
  known = std::move(learned);
  family.heard(predicted_shapes, *known);
  return false;
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  if (!is_inside()) {  // a task of TorchScript, which inherits the modes of its caller
    settle_anywhere();
    return run_eagerly(op, keys, stack);
  }
  if (Alone::part()) return run_eagerly(op, keys, stack);
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
    return run_recorded(op, keys, stack);
  }
  const auto entered = mode == Mode::aside ? Clock::now() : Clock::time_point();
  if (kind.way == Kind::unknown) return run_unknown(op, keys, stack);
  if (kind.way == Kind::passes || (kind.autocasts && autocast())) {  // its parts come here
    ++counts.views;
    return op.redispatchBoxed(below(keys), stack);
  }
  const std::size_t count = op.schema().arguments().size(), base = stack->size() - count;
  Operands operands;
  for (std::size_t k = 0; k < count; ++k) add_operand(operands, (*stack)[base + k], kind.writes[k]);
  const bool otherwise = kind.unless >= 0 && (*stack)[base + static_cast<std::size_t>(kind.unless)]
                                                 .toScalar().toBool();
  const bool only_reads = kind.only_reads && !otherwise;
  if (operands.gradient && c10::GradMode::is_enabled()) {
    return run_alone(op, keys, stack, operands, only_reads, "its result has a history");
  }
  if (!operands.any || kind.way == Kind::shapes) {
    const c10::impl::ExcludeDispatchKeyGuard without(kKey);
    return op.redispatchBoxed(below(keys), stack);
  }
  std::uint64_t signature = reinterpret_cast<std::uint64_t>(&op.schema());
  bool known_shapes = kind.way == Kind::defers && !otherwise && operands.plain &&
                      !operands.shared && usual_modes();
  const bool masked = kind.masks && std::any_of(stack->begin() + static_cast<long>(base + 1),
                                                stack->end(), has_mask);
  known_shapes = known_shapes && !masked;
  // Without a tensor that is read, or written in place, shapes may depend on numbers.
  const bool reads = !operands.reads.empty() || kind.writes[0];
  for (std::size_t k = 0; known_shapes && k < count; ++k) {
    const c10::IValue& v = (*stack)[base + k];
    if (reads && kind.numbers[k]) {
      mix_number(signature, v);
    } else {
      known_shapes = mix(signature, v);
    }
  }
  if (!known_shapes) {
    const bool known = kind.way == Kind::caller || operands.shared || masked;
    const char* why = kind.way == Kind::caller ? kind.why
                      : otherwise      ? kind.otherwise
                      : !operands.plain ? "its arguments are not plain tensors on the CPU"
                      : operands.shared ? "somebody else sees memory of its arguments"
                      : masked         ? "the shape of its result depends on a mask"
                                       : "its arguments, or the modes of its caller, are unusual";
    return run_alone(op, keys, stack, operands, known && only_reads, why);
  }
  mix(signature, static_cast<std::uint64_t>(c10::get_default_dtype_as_scalartype()));
  if (memory.size() > kMost) {  // shapes that do not recur
    drain();
    memory.clear(), families.clear();
  }
  std::unique_ptr<Learned>& known = memory[signature];
  if (!known || known->warned) {
    if (!meet_signature(op, keys, stack, base, operands, kind, known)) return;
  }
  Learned& learned = *known;
  if (learned.refused) {
    return run_alone(op, keys, stack, operands, kind.only_reads, learned.refused);
  }
  if (program) weigh(learned);
  if (mode == Mode::aside && !engine->any_poisoned()) {
    return run_aside(op, keys, stack, operands, kind, learned, entered);
  }
  if (settings.learn && learned.us < tiny() && engine->free_for(accesses(operands))) {
    ++counts.inlined;
    const FateTimer timer(op, "at once", "it takes less than handing it over");
    return run_recorded(op, keys, stack);
  }
  const FateTimer timer(op, "deferred", kind.why);
  defer(op, keys, stack, base, operands, kind, learned);
}

}  // namespace

}  // namespace recurra
