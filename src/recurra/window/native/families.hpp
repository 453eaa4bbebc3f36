// Prediction of result shapes for new argument shapes by PyTorch's meta kernels, which compute
// shapes only. They are trusted for an operator once they were right for several shapes, and never
// again once they were wrong.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "learned.hpp"
#include "operators.hpp"

namespace recurra {

// Suppresses the warnings of meta kernels.
class SilentWarnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}

 private:
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

inline Like look(const at::Tensor& t) {
  return {t.sizes().vec(), t.strides().vec(), t.dtype(), t.storage().nbytes()};
}

// Python numbers stay on the CPU, as with tensors of any other device.
inline at::Tensor without_memory(const at::Tensor& t) {
  if (!t.defined() || t.unsafeGetTensorImpl()->is_wrapped_number()) return t;
  return at::detail::empty_strided_meta(t.sizes(), t.strides(), t.scalar_type());
}

inline c10::IValue without_memory(const c10::IValue& v) {
  if (v.isTensor()) return without_memory(v.toTensor());
  if (!v.isList() || v.isIntList() || v.isDoubleList() || v.isBoolList()) return v;
  auto list = v.toList().copy();
  for (std::size_t k = 0; k < list.size(); ++k) {
    const c10::IValue one = list.get(k);
    if (one.isTensor()) list.set(k, without_memory(one.toTensor()));
  }
  return list;
}

// Calls of an operator with the same types and ranks, of any sizes.
class Family {
 public:
  // Predicts the results of a call; nothing if that fails, or, if it `should_pay`, takes as long as
  // the call.
  std::optional<std::vector<Like>> ask(const c10::OperatorHandle& op, const Stack& stack,
                                       std::size_t base, std::size_t returns, bool should_pay) {
    if (wrong_ || seen_++ < kSeen) return {};
    if (should_pay && believed() && us_ >= newest->us) return {};
    const auto begin = Clock::now();
    const c10::impl::ExcludeDispatchKeyGuard unseen(kKey);
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::RecordFunctionGuard unobserved(false);
    const SilentWarnings silent;
    std::vector<Like> found;
    try {
      Stack shapes;
      for (std::size_t k = base; k < stack.size(); ++k) shapes.push_back(without_memory(stack[k]));
      op.callBoxed(&shapes);
      for (std::size_t k = 0; k < returns; ++k) {
        const at::Tensor& t = shapes.at(k).toTensor();
        if (!t.is_meta() || t.layout() != c10::kStrided || t.storage_offset()) return {};
        found.push_back(look(t));
      }
    } catch (const std::exception&) {
      return {};
    }
    us_ = std::min(us_, us_since(begin));
    return found;
  }

  bool believed() const { return right_ >= kRight && !wrong_ && newest; }

  // Compares the results of a call with the prediction, if there was one.
  void heard(const std::optional<std::vector<Like>>& predicted, const Learned& learned) {
    newest = &learned;
    if (!predicted) return;
    const bool right = !learned.refused && !learned.warned && *predicted == learned.outputs;
    right_ += right;
    wrong_ |= !right;
  }

  const Learned* newest = nullptr;  // for its duration

 private:
  static constexpr int kSeen = 3, kRight = 3;  // shapes
  int seen_ = 0, right_ = 0;
  bool wrong_ = false;
  double us_ = 1e9;  // of a prediction
};

// Hashes an argument into the key of the family.
inline void mix_family(std::uint64_t& h, const c10::IValue& v) {
  if (v.isTensor() && v.toTensor().defined()) {
    mix(h, 41), mix(h, static_cast<std::uint64_t>(v.toTensor().scalar_type()));
    mix(h, static_cast<std::uint64_t>(v.toTensor().dim()));
  } else if (v.isList()) {
    mix(h, 42);
    for (const c10::IValue& one : v.toListRef()) mix_family(h, one);
    mix(h, 43);
  } else {
    mix_number(h, v);
  }
}

}  // namespace recurra
