// Shapes that were never seen, of operators that were: what their results are like is asked of
// PyTorch's meta kernels, which compute shapes only. They are believed of an operator once they have
// been right for several shapes, and never again once they were wrong.
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

// Nobody hears a warning of what only asks for shapes.
class Unheard : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}

 private:
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

inline Like look(const at::Tensor& t) {
  return {t.sizes().vec(), t.strides().vec(), t.dtype(), t.storage().nbytes()};
}

// A number of Python's stays on the CPU, as wherever it meets tensors of another device.
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

// Operators of the same types and numbers of axes, whatever their sizes.
class Family {
 public:
  // What results of a call would be like; nothing if that cannot be told, or, where it should pay,
  // takes as long as the call.
  std::optional<std::vector<Like>> ask(const c10::OperatorHandle& op, const Stack& stack,
                                       std::size_t base, std::size_t returns, bool should_pay) {
    if (wrong_ || seen_++ < kSeen) return {};
    if (should_pay && believed() && us_ >= newest->us) return {};
    const auto begin = Clock::now();
    const c10::impl::ExcludeDispatchKeyGuard unseen(kKey);
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::RecordFunctionGuard unobserved(false);
    const Unheard unheard;
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

  // What a call has given, and what was foretold; nothing for what is never foretold.
  void heard(const std::optional<std::vector<Like>>& foretold, const Learned& learned) {
    newest = &learned;
    if (!foretold) return;
    const bool right = !learned.refused && !learned.warned && *foretold == learned.outputs;
    right_ += right;
    wrong_ |= !right;
  }

  const Learned* newest = nullptr;  // how long one takes

 private:
  static constexpr int kSeen = 3, kRight = 3;  // shapes
  int seen_ = 0, right_ = 0;
  bool wrong_ = false;
  double us_ = 1e9;  // to ask
};

// Which family a call belongs to.
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
