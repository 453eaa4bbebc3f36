// Hashes of signatures, on which the shapes of an operator's results depend, and modes of callers.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "engine.hpp"

namespace recurra {

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

// Hashes an argument; false for a kind on which shapes may depend in unknown ways.
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

// Hashes an argument without the value of a number, on which no shape depends.
inline void mix_number(std::uint64_t& h, const c10::IValue& v) {
  mix(h, v.isNone() ? 3 : v.isBool() ? 31 : v.isInt() ? 32 : v.isDouble() ? 33 : 34);
}

// Returns whether this is a mask, or a list with one.
inline bool has_mask(const c10::IValue& v) {
  if (v.isTensor() && v.toTensor().defined()) {
    return v.toTensor().scalar_type() == at::kBool || v.toTensor().scalar_type() == at::kByte;
  }
  if (!v.isList()) return false;
  const auto list = v.toListRef();
  return std::any_of(list.begin(), list.end(), [](const c10::IValue& one) { return has_mask(one); });
}

inline bool autocast() {
  return !c10::impl::tls_local_dispatch_key_set().excluded_.has(c10::DispatchKey::AutocastCPU);
}

// Returns whether operators without autocast run on other threads as in this one.
inline bool usual_modes() {
  constexpr c10::DispatchKeySet usual{kKey, c10::DispatchKey::BackendSelect,
                                      c10::DispatchKey::ADInplaceOrView};
  const c10::impl::LocalDispatchKeySet now = c10::impl::tls_local_dispatch_key_set();
  return !(now.included_.raw_repr() & ~usual.raw_repr());
}

}  // namespace recurra
