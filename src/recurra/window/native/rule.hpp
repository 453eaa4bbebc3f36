// The rule that decides which operators are deferred: those with known memory accesses.
//
// `kind_of` is the rule, and `Rule` the table of its results for all operators of PyTorch itself,
// which `recurra.window.torch.operator_rules.table()` returns. All other operators (other
// namespaces such as `c10d`, custom operators, extensions, and those with a kernel that is
// registered in Python) may access anything: everything in flight ends first, and they run in the
// caller, with their inner operators.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace recurra {

// The properties of an operator, and the way its calls run.
struct Kind {
  enum Way {
    unknown,  // waits for everything in flight, and runs in the caller
    passes,   // not intercepted: a view, or a composite, whose inner operators are intercepted
    shapes,   // runs at once: it reads only the shapes of its arguments
    caller,   // waits for calls on its arguments, and runs in the caller
    defers,   // runs later
  } way = unknown;
  const char* why = "what it touches is not known: it is not one of PyTorch's own operators";
  std::vector<bool> writes;   // per argument
  std::vector<bool> numbers;  // per argument: a number on whose value no shape depends
  bool masks = false;         // its result depends on data only if one of these is a mask
  bool composite = false;     // of other operators
  bool autocasts = false;     // autocast changes its arguments, and calls it again
  bool mutates = false;       // any argument
  std::optional<c10::OperatorHandle> op;
  std::size_t returns = 0;
  int unless = -1;  // an argument; if it is true, or not zero, calls are not deferred: `otherwise`
  const char* otherwise = "";
  bool only_reads = false;  // it depends on its arguments only
};

// The names of the ways.
inline constexpr const char* kWays[] = {"unknown", "passes", "shapes", "caller", "defers"};

// Exceptions to the schemas. A test runs PyTorch's operators, compares the bytes and the storages
// of all arguments before and after, and fails if these lists are wrong.

// Operators with undeclared writes: always (-1), or if an argument is true.
inline const std::unordered_map<std::string, int> kSilentWriters = {  // pytorch issue 73050
    {"aten::native_batch_norm", 5},
    {"aten::batch_norm_update_stats", -1}};
// Operators with results that are undeclared views.
inline const std::unordered_set<std::string> kSilentViews = {
    "aten::_unsafe_view.", "aten::unsafe_split.Tensor", "aten::unsafe_split_with_sizes."};
// Operators with data-dependent shapes only if an index is a mask.
inline const std::unordered_set<std::string> kMasks = {
    "aten::index.Tensor", "aten::_unsafe_index.Tensor", "aten::index_put_.", "aten::index_put.",
    "aten::_unsafe_index_put."};
// Operators that read only shapes or histories.
inline const std::unordered_set<std::string> kOnlyShapes = {
    "aten::detach_",   "aten::empty_like", "aten::new_empty", "aten::new_empty_strided",
    "aten::new_zeros", "aten::new_ones",   "aten::new_full"};
// Composites that read data between their parts, or operators with data-dependent shapes without a
// tag.
inline const std::unordered_set<std::string> kReadsData = {
    "aten::_ctc_loss.Tensor", "aten::_pack_padded_sequence.", "aten::_pad_packed_sequence.",
    "aten::ctc_loss.Tensor",  "aten::gru.data",               "aten::lstm.data",
    "aten::max_pool1d.",      "aten::rnn_relu.data",          "aten::rnn_tanh.data",
    "aten::tensor_split.tensor_indices_or_sections"};

// Returns whether PyTorch itself defines it, and not a program in the same namespace.
inline bool of_pytorch(const c10::OperatorHandle& op) {
  return op.operator_name().getNamespace() == "aten" &&
         op.debug().find("RegisterSchema") != std::string::npos;
}

// Returns whether an argument is a number on whose value no shape depends: a float, or any scalar,
// but not an integer.
inline bool is_number(const c10::Type& type) {
  if (const auto* optional = type.castRaw<c10::OptionalType>()) {
    return is_number(*optional->getElementType());
  }
  return type.kind() == c10::TypeKind::NumberType || type.kind() == c10::TypeKind::FloatType;
}

// The rule.
inline Kind kind_of(const c10::OperatorHandle& op) {
  Kind kind;
  if (!of_pytorch(op)) return kind;
  const auto& schema = op.schema();
  const std::string name = schema.name() + "." + schema.overload_name();
  kind.op = op;
  kind.returns = schema.returns().size();
  bool aliases = kSilentViews.count(name) != 0;
  bool fresh = false, tensors = kind.returns != 0;
  for (const auto& a : schema.arguments()) {
    const bool writes = a.alias_info() && a.alias_info()->isWrite();
    kind.writes.push_back(writes);
    kind.mutates |= writes;
    if (a.name() == "dropout_p") kind.unless = static_cast<int>(kind.numbers.size());
    kind.numbers.push_back(is_number(*a.real_type()));
  }
  const bool draws_by_chance = kind.unless >= 0;
  kind.otherwise = "it draws";
  for (const auto& r : schema.returns()) {
    (r.alias_info() ? aliases : fresh) = true;
    tensors &= r.type()->kind() == c10::TypeKind::TensorType;
  }
  bool always_writes = false;
  if (auto silent = kSilentWriters.find(schema.name()); silent != kSilentWriters.end()) {
    kind.unless = silent->second;
    kind.otherwise = "it writes what its schema does not name";
    always_writes = silent->second < 0;
  }
  bool depends = false, reshapes = false, draws = false;
  for (const at::Tag tag : op.getTags()) {
    reshapes |= tag == at::Tag::inplace_view;
    draws |= tag == at::Tag::nondeterministic_seeded && !draws_by_chance;
    depends |= tag == at::Tag::dynamic_output_shape || tag == at::Tag::data_dependent_output;
  }
  kind.masks = kMasks.count(name) != 0;
  depends = depends && !kind.masks;
  kind.autocasts = op.hasKernelForDispatchKey(c10::DispatchKey::AutocastCPU);
  const bool runs_here =
      op.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
  // With both kernels, as silu_backward has them, the one for the CPU is called.
  const bool parts =
      op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) && !runs_here;
  kind.only_reads = !kind.mutates && !draws && !reshapes && !always_writes && kind.returns;
  auto is = [&kind](Kind::Way way, const char* why) {
    kind.way = way, kind.why = why;
    return kind;
  };
  if (kReadsData.count(name)) {
    return is(Kind::caller, "it looks at data between its parts");
  }
  if (aliases && !kind.mutates) return is(Kind::passes, "a view");
  if (kOnlyShapes.count(schema.name())) return is(Kind::shapes, "it looks at shapes only");
  if (reshapes) return is(Kind::caller, "it changes what a tensor is");
  if (kind.mutates && fresh) return is(Kind::caller, "it writes and gives something new");
  if (!kind.returns) return is(Kind::caller, "it gives nothing");
  if (parts && !(kind.mutates && !tensors)) {
    kind.composite = true;
    return is(Kind::passes, "it consists of others");
  }
  if (depends) return is(Kind::caller, "its result, or the shape of it, depends on data");
  if (draws) return is(Kind::caller, "it draws");
  if (!tensors) return is(Kind::caller, "it gives something else than tensors");
  if (!runs_here) return is(Kind::caller, "it has no kernel for the CPU");
  if (always_writes) return is(Kind::caller, kind.otherwise);
  return is(Kind::defers, kind.mutates ? "in place" : "it gives new tensors");
}

// The table of PyTorch's operators by schema.
class Rule {
 public:
  Rule() {
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      const auto op = dispatcher.findSchema(name);
      if (op && of_pytorch(*op)) kinds_.emplace(&op->schema(), kind_of(*op));
    }
  }

  // PyTorch's own operators and their schemas are permanent; unknown ones are not cached, since the
  // address of their schema may be reused.
  const Kind& operator[](const c10::OperatorHandle& op) {
    static const Kind unknown_kind;
    if (changed_.load(std::memory_order_acquire)) apply_replaced();
    Line& line = lines_[reinterpret_cast<std::uintptr_t>(&op.schema()) /
                        alignof(c10::FunctionSchema) % kLines];
    if (line.schema == &op.schema()) return *line.kind;
    const auto known = kinds_.find(&op.schema());
    if (known == kinds_.end()) return unknown_kind;
    line = {&op.schema(), &known->second};
    return known->second;
  }

  // Sets the operators with kernels in Python. Any thread may call it; the next lookup applies it.
  void replaced(const std::vector<std::string>& names) {
    const std::lock_guard lock(mutex_);
    names_ = {names.begin(), names.end()};
    changed_.store(true, std::memory_order_release);
  }

  // Returns the way and the reason by name.
  std::map<std::string, std::pair<std::string, std::string>> table() const {
    std::map<std::string, std::pair<std::string, std::string>> found;
    for (const auto& [schema, kind] : kinds_) {
      found[c10::toString(kind.op->operator_name())] = {kWays[kind.way], kind.why};
    }
    return found;
  }

 private:
  struct Line {
    const void* schema = nullptr;
    const Kind* kind = nullptr;
  };
  static constexpr std::size_t kLines = 256;

  void apply_replaced() {
    const std::lock_guard lock(mutex_);
    changed_.store(false, std::memory_order_relaxed);
    for (Kind* kind : replaced_) *kind = kind_of(*kind->op);
    replaced_.clear();
    for (auto& [schema, kind] : kinds_) {
      if (!names_.count(c10::toString(kind.op->operator_name()))) continue;
      kind.way = Kind::unknown;
      kind.why = "what it touches is not known: a kernel for it is registered in Python";
      replaced_.push_back(&kind);
    }
  }

  std::unordered_map<const void*, Kind> kinds_;
  std::vector<Kind*> replaced_;
  std::mutex mutex_;
  std::unordered_set<std::string> names_;  // guarded by the mutex, as are writes of `changed_`
  std::atomic<bool> changed_{false};
  Line lines_[kLines];
};

}  // namespace recurra
