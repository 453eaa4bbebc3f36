// An ATen operator that was called and has not run; what is learned of how long operators take.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "window.hpp"

namespace recurra {

constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
using torch::jit::Stack;

struct Failure {
  std::string text;  // operator, what it said, and the line that called it
};

// A place in a program, told in words only if something fails there.
struct Place {
  const void* code = nullptr;
  int at = 0;
};
inline std::string (*told)(const Place&) = nullptr;

using Tensors = c10::SmallVector<at::Tensor, 2>;

struct Call {
  const c10::OperatorHandle* op = nullptr;
  Stack arguments;
  Tensors outputs;                    // promised; empty if the call writes in place
  Tensors writes;                     // of the arguments
  Place where;                        // the line that called it
  std::atomic<double>* us = nullptr;  // what it took is learned here
  unsigned floats = 0;                // rounding, and what becomes of denormals, where it was called

  // The memory of its lists is used again.
  void clear() { arguments.clear(), outputs.clear(), writes.clear(); }
};

// How this thread computes with floats: torch.set_flush_denormal sets it for one thread only.
inline unsigned float_modes() {
#if defined(__x86_64__)
  return __builtin_ia32_stmxcsr() & ~0x3fu;  // without what operations have left
#else
  return 0;
#endif
}

inline void set_float_modes(unsigned modes) {
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(modes);
#endif
}

// From the first to the last byte of a tensor, where every storage has numbers of its own: storages
// lie at least 64 bytes apart, so that there is room for 2^22 numbers between two of them.
inline Segment segment_of(const at::Tensor& t) {
  const c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
  const Word base = reinterpret_cast<Word>(storage) << 16;
  Word low = static_cast<Word>(t.storage_offset()) * t.element_size(), reach = 1;
  for (int64_t d = 0; d < t.dim(); ++d) reach += static_cast<Word>((t.size(d) - 1) * t.stride(d));
  Word high = low + reach * t.element_size();
  int shift = 0;
  while ((storage->nbytes() >> shift) > (Word{1} << 20)) ++shift;  // coarser, outwards
  return {base + (low >> shift), base + (high >> shift) + 1};
}

using Clock = std::chrono::steady_clock;

inline double us_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::micro>(end - begin).count();
}

inline double us_since(Clock::time_point begin) { return us_between(begin, Clock::now()); }

// The newest measurements count most.
inline void learn_from(std::atomic<double>& known, double us) {
  const double before = known.load(std::memory_order_relaxed);
  known.store(before + 0.2 * (us - before), std::memory_order_relaxed);
}

// The same, but one that was disturbed counts little.
inline void learn_gently(std::atomic<double>& known, double us) {
  learn_from(known, std::min(us, 2 * known.load(std::memory_order_relaxed) + 1));
}

}  // namespace recurra
