// What is known of an ATen operator before it runs: from its schema, its tags and its arguments.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstring>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine.hpp"

namespace recurra {

// What a schema says of an operator.
struct Kind {
  enum Way { views, decomposes, now, alone, defers } way = alone;
  std::vector<bool> writes;  // per argument
  bool mutates = false;
  std::optional<c10::OperatorHandle> op;
  std::size_t returns = 0;
  int silent = -1;  // the argument that, if true, makes it write more than its schema says
};

inline const std::unordered_set<std::string> kOnlyShapes = {
    "aten::empty_like",   "aten::new_empty", "aten::new_empty_strided",
    "aten::new_zeros",    "aten::new_ones",  "aten::new_full"};
// They consist of others, and look at data between them; or their shapes depend on data, and no tag
// says so.
inline const std::unordered_set<std::string> kReadsData = {
    "aten::_ctc_loss.Tensor", "aten::_pack_padded_sequence.", "aten::_pad_packed_sequence.",
    "aten::ctc_loss.Tensor",  "aten::gru.data",               "aten::lstm.data",
    "aten::max_pool1d.",      "aten::rnn_relu.data",          "aten::rnn_tanh.data",
    "aten::tensor_split.tensor_indices_or_sections"};
inline const std::unordered_map<std::string, int> kSilentWrites = {  // pytorch issue 73050
    {"aten::native_batch_norm", 5}};  // `training`: the running statistics

inline Kind kind_of(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  Kind kind;
  kind.op = op;
  kind.returns = schema.returns().size();
  bool aliases = false, fresh = false, tensors = !schema.returns().empty();
  for (const auto& a : schema.arguments()) {
    const bool writes = a.alias_info() && a.alias_info()->isWrite();
    kind.writes.push_back(writes);
    kind.mutates |= writes;
  }
  for (const auto& r : schema.returns()) {
    (r.alias_info() ? aliases : fresh) = true;
    tensors &= r.type()->kind() == c10::TypeKind::TensorType;
  }
  auto silent = kSilentWrites.find(schema.name());
  if (silent != kSilentWrites.end()) kind.silent = silent->second;
  bool barrier = false, reshapes = false;
  for (const at::Tag tag : op.getTags()) {
    reshapes |= tag == at::Tag::inplace_view;
    barrier |= tag == at::Tag::dynamic_output_shape || tag == at::Tag::data_dependent_output ||
               tag == at::Tag::nondeterministic_seeded;
  }
  using Way = Kind::Way;
  const bool parts = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  if (kReadsData.count(schema.name() + "." + schema.overload_name())) {
    kind.way = Way::alone;
  } else if (aliases && !kind.mutates) {
    kind.way = Way::views;
  } else if (kOnlyShapes.count(schema.name())) {
    kind.way = Way::now;
  } else if (reshapes || (kind.mutates && (fresh || !tensors)) || schema.returns().empty()) {
    kind.way = Way::alone;
  } else if (parts) {
    kind.way = Way::decomposes;
  } else if (barrier || !tensors) {
    kind.way = Way::alone;
  } else {
    kind.way = Way::defers;
  }
  return kind;
}

inline void mix(std::uint64_t& h, std::uint64_t v) {
  h ^= v + 0x9e3779b97f4a7c15ull + (h << 6) + (h >> 2);
  h *= 0xff51afd7ed558ccdull;
}

inline void mix(std::uint64_t& h, const at::Tensor& t) {
  if (!t.defined()) return mix(h, 77);
  for (int64_t s : t.sizes()) mix(h, static_cast<std::uint64_t>(s));
  mix(h, 91);
  for (int64_t s : t.strides()) mix(h, static_cast<std::uint64_t>(s));
  mix(h, static_cast<std::uint64_t>(t.scalar_type()));
  mix(h, t.unsafeGetTensorImpl()->is_wrapped_number());
}

inline std::uint64_t bits(double d) {
  std::uint64_t u;
  std::memcpy(&u, &d, sizeof u);
  return u;
}

// A signature of what shapes depend on; false for arguments of which that is not known.
inline bool mix(std::uint64_t& h, const c10::IValue& v) {
  if (v.isTensor()) {
    mix(h, v.toTensor());
  } else if (v.isNone()) {
    mix(h, 3);
  } else if (v.isBool()) {
    mix(h, v.toBool() ? 5 : 6);
  } else if (v.isInt()) {
    mix(h, 7), mix(h, static_cast<std::uint64_t>(v.toInt()));
  } else if (v.isDouble()) {
    mix(h, 8), mix(h, bits(v.toDouble()));
  } else if (v.isComplexDouble()) {
    mix(h, 9), mix(h, bits(v.toComplexDouble().real())), mix(h, bits(v.toComplexDouble().imag()));
  } else if (v.isString()) {
    mix(h, 10), mix(h, std::hash<std::string>()(v.toStringRef()));
  } else if (v.isDevice()) {
    mix(h, 21), mix(h, static_cast<std::uint64_t>(v.toDevice().type()));
  } else if (v.isList()) {
    mix(h, 12);
    for (const c10::IValue& one : v.toListRef()) {
      if (!mix(h, one)) return false;
    }
    mix(h, 13);
  } else {
    return false;
  }
  return true;
}

// Whether operators run on other threads as they would here: no autocast, no other modes.
inline bool usual_modes() {
  constexpr c10::DispatchKeySet usual{kKey, c10::DispatchKey::BackendSelect,
                                      c10::DispatchKey::ADInplaceOrView};
  const c10::impl::LocalDispatchKeySet now = c10::impl::tls_local_dispatch_key_set();
  return !(now.included_.raw_repr() & ~usual.raw_repr()) &&
         now.excluded_.has(c10::DispatchKey::AutocastCPU);
}

}  // namespace recurra
