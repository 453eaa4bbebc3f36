// An ATen operator that was called and has not run; what is learned of how long operators take.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "window.hpp"

namespace recurra {

constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
using torch::jit::Stack;

// What an operator raised, of the type that it was, which says operator and line too.
struct Failure {
  std::string text;
  std::exception_ptr error;
};

// An error of the same type as this one, if it is a `Type`.
template <class Type>
bool as(const std::exception& error, const std::string& text, std::exception_ptr& made) {
  if (!dynamic_cast<const Type*>(&error)) return false;
  made = std::make_exception_ptr(Type({__func__, __FILE__, __LINE__}, text));
  return true;
}

template <class... Types>
std::exception_ptr one_of(const std::exception& error, const std::string& text) {
  std::exception_ptr made;
  (as<Types>(error, text, made) || ...);
  return made;
}

// The one that Python would see, with another text.
inline std::exception_ptr retold(const std::exception& error, const std::string& text) {
  auto made = one_of<c10::IndexError, c10::ValueError, c10::TypeError, c10::NotImplementedError,
                     c10::BufferError, c10::EnforceFiniteError, c10::LinAlgError,
                     c10::OutOfMemoryError>(error, text);
  return made ? made : std::make_exception_ptr(c10::Error({__func__, __FILE__, __LINE__}, text));
}

// A place in a program, told in words only if something fails there.
struct Place {
  const void* code = nullptr;
  int at = 0;
};
inline std::string (*told)(const Place&) = nullptr;

// What a tensor is like, but for its values.
struct Like {
  std::vector<int64_t> sizes, strides;
  caffe2::TypeMeta type;
  std::size_t bytes;

  bool operator==(const Like&) const = default;

  // Such a tensor, all of this storage.
  at::Tensor of(c10::Storage storage) const {
    at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), type);
    t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
    return t;
  }
};

// A result that was promised: its storage has no data yet.
struct Promise {
  c10::Storage storage;
  const Like* like;
};

// What eager mode has given for a call, or raised.
struct Expected {
  std::vector<at::Tensor> results;
  std::string error;
};

// A tensor's storage, to be let go of.
struct StorageOf : c10::TensorImpl {
  static c10::Storage& of(c10::TensorImpl& tensor) { return tensor.*(&StorageOf::storage_); }
};

class Call {
 public:
  const c10::OperatorHandle* op = nullptr;
  Stack arguments;
  c10::SmallVector<Promise, 2> outputs;  // empty if the call writes in place
  std::vector<c10::Storage> writes;      // of the arguments
  Place where;                           // the line that called it
  std::atomic<double>* us = nullptr;     // what it took is learned here
  unsigned floats = 0;  // rounding, and what becomes of denormals, where it was called
  std::unique_ptr<Expected> expected;  // if it is checked

  // The call is as it will run.
  void seal() {
    std::uint64_t bit = 1;
    each_argument([&](at::Tensor& t) {
      if (t.defined() && t.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj()) of_python_ |= bit;
      bit <<= 1;
    });
  }

  // The memory of its lists is used again.
  void clear() {
    arguments.clear(), outputs.clear(), writes.clear();
    expected.reset();
    of_python_ = 0;
  }

  // It has run. What nobody else holds is given back at once, by any thread. What Python has seen
  // can only be freed with Python's lock: a tensor of which it has forgotten all is left to `clear`
  // without its storage. Returns the bytes of those that Python has: it may forget them soon.
  std::size_t give_back() {
    outputs.clear(), writes.clear();
    std::size_t kept = 0;
    std::uint64_t bit = 1;
    each_argument([&](at::Tensor& t) {
      const bool seen = of_python_ & bit;
      bit <<= 1;
      if (!t.defined()) return;
      c10::TensorImpl* tensor = t.unsafeGetTensorImpl();
      const auto* slot = tensor->pyobj_slot();
      auto only_ours = [&t] { return t.use_count() == 2; };  // the other one is its Python object's
      if (!slot->load_pyobj() || t.use_count() > 2) {
        t.reset();
      } else if (seen && only_ours() && slot->has_unique_reference() && only_ours()) {
        StorageOf::of(*tensor) = {};
      } else if (t.has_storage()) {
        kept += t.storage().nbytes();
      }
    });
    return kept;
  }

 private:
  template <class Function>
  void each_argument(const Function& function) {
    for (c10::IValue& v : arguments) {
      if (v.isTensor()) {
        at::Tensor t = std::move(v).toTensor();
        function(t);
        v = std::move(t);
      } else if (v.isTensorList()) {
        c10::List<at::Tensor> list = v.toTensorList();
        for (std::size_t k = 0; k < list.size(); ++k) {
          at::Tensor t = list.extract(k);
          function(t);
          list.set(k, std::move(t));
        }
      }
    }
  }

  std::uint64_t of_python_ = 0;  // the first arguments that Python had seen when it was called
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

// This thread looks for something in a loop.
inline void spin() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Bytes of a storage, where every storage has numbers of its own: storages lie at least 64 bytes
// apart, so that there is room for 2^22 numbers between two of them.
inline Segment segment_of(const c10::StorageImpl* storage, Word low, Word high) {
  const Word base = reinterpret_cast<Word>(storage) << 16;
  int shift = 0;
  while ((storage->nbytes() >> shift) > (Word{1} << 20)) ++shift;  // coarser, outwards
  return {base + (low >> shift), base + (high >> shift) + 1};
}

// From the first to the last byte of a tensor. One without elements is the first byte: kernels ask
// for its memory, too, and who makes a storage writes that byte.
inline Segment segment_of(const at::Tensor& t) {
  const c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
  if (!t.numel()) return segment_of(storage, 0, 0);
  Word low = static_cast<Word>(t.storage_offset()) * t.element_size(), reach = 1;
  for (int64_t d = 0; d < t.dim(); ++d) reach += static_cast<Word>((t.size(d) - 1) * t.stride(d));
  return segment_of(storage, low, low + reach * t.element_size());
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
