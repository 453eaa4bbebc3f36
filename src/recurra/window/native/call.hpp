// A deferred call of an ATen operator, and moving averages of durations.
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

// The exception of an operator, of its own type, with the operator and the line in its text.
struct Failure {
  std::string text;
  std::exception_ptr error;
};

// Makes an error of the same type as this one, if it is a `Type`.
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

// Returns the exception that Python would see, with another text.
inline std::exception_ptr with_text(const std::exception& error, const std::string& text) {
  auto made = one_of<c10::IndexError, c10::ValueError, c10::TypeError, c10::NotImplementedError,
                     c10::BufferError, c10::EnforceFiniteError, c10::LinAlgError,
                     c10::OutOfMemoryError>(error, text);
  return made ? made : std::make_exception_ptr(c10::Error({__func__, __FILE__, __LINE__}, text));
}

// An instruction of a program, converted to file and line only for errors.
struct CodeLine {
  const void* code = nullptr;
  int at = 0;
};
inline std::string (*describe_line)(const CodeLine&) = nullptr;

// The shape, strides, type and size of a tensor.
struct Like {
  std::vector<int64_t> sizes, strides;
  caffe2::TypeMeta type;
  std::size_t bytes;

  bool operator==(const Like&) const = default;

  // Makes such a tensor of a whole storage.
  at::Tensor of(c10::Storage storage) const {
    at::Tensor t = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), type);
    t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
    return t;
  }
};

// A result that is not computed yet: its storage has no data.
struct Promise {
  c10::Storage storage;
  const Like* like;
};

// The results, or the error, of a call in eager mode.
struct Expected {
  std::vector<at::Tensor> results;
  std::string error;
};

// Access to a tensor's storage, to release it.
struct StorageOf : c10::TensorImpl {
  static c10::Storage& of(c10::TensorImpl& tensor) { return tensor.*(&StorageOf::storage_); }
};

class Call {
 public:
  const c10::OperatorHandle* op = nullptr;
  Stack arguments;
  c10::SmallVector<Promise, 2> outputs;  // empty if the call writes in place
  std::vector<c10::Storage> writes;      // of the arguments
  CodeLine where;                           // the line that called it
  std::atomic<double>* us = nullptr;     // the moving average of its duration
  unsigned floats = 0;  // rounding and denormal modes of the caller
  std::unique_ptr<Expected> expected;  // if it is checked

  // Records which arguments Python has objects of, when the call is complete.
  void seal() {
    std::uint64_t bit = 1;
    each_argument([&](at::Tensor& t) {
      if (t.defined() && t.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj()) of_python_ |= bit;
      bit <<= 1;
    });
  }

  // Clears the call for reuse.
  void clear() {
    arguments.clear(), outputs.clear(), writes.clear();
    expected.reset();
    of_python_ = 0;
  }

  // Frees memory after the run, in any thread. Tensors with Python objects can only be freed with
  // Python's lock: one that only its object refers to loses its storage here, and is freed by
  // `clear`. Returns the bytes of those that Python still refers to.
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
      auto only_ours = [&t] { return t.use_count() == 2; };  // the other is its Python object's
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

  std::uint64_t of_python_ = 0;  // bit mask of arguments with Python objects at the call
};

// This thread's float modes, such as by torch.set_flush_denormal, which is per thread.
inline unsigned float_modes() {
#if defined(__x86_64__)
  return __builtin_ia32_stmxcsr() & ~0x3fu;  // without the exception flags
#else
  return 0;
#endif
}

inline void set_float_modes(unsigned modes) {
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(modes);
#endif
}

// Hints to the processor that this is a spin loop.
inline void spin() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// The segment of bytes of a storage in a space where each storage has its own range: storages are
// at least 64 bytes apart, so that there are 2^22 numbers for each.
inline Segment segment_of(const c10::StorageImpl* storage, Word low, Word high) {
  const Word base = reinterpret_cast<Word>(storage) << 16;
  int shift = 0;
  while ((storage->nbytes() >> shift) > (Word{1} << 20)) ++shift;  // coarser, outwards
  return {base + (low >> shift), base + (high >> shift) + 1};
}

// The segment from the first to the last byte of a tensor. An empty tensor is the first byte:
// kernels request its memory, too, and the creator of a storage writes that byte.
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

// Updates a moving average.
inline void learn_from(std::atomic<double>& known, double us) {
  const double before = known.load(std::memory_order_relaxed);
  known.store(before + 0.2 * (us - before), std::memory_order_relaxed);
}

// Updates a moving average, with outliers capped.
inline void learn_gently(std::atomic<double>& known, double us) {
  learn_from(known, std::min(us, 2 * known.load(std::memory_order_relaxed) + 1));
}

}  // namespace recurra
