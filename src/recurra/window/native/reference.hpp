// The check of deferred calls against eager mode: each also runs at once, on copies of the memory
// that calls in flight write, and the results are compared after the deferred run.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/clone.h>

#include <cstring>
#include <optional>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

#include "call.hpp"

namespace recurra {

// Describes the difference of two tensors; empty if there is none.
inline std::string difference(const at::Tensor& found, const at::Tensor& expected) {
  std::ostringstream text;
  if (found.sizes() != expected.sizes() || found.dtype() != expected.dtype()) {
    text << found.dtype() << found.sizes() << " instead of eager mode's " << expected.dtype()
         << expected.sizes();
    return text.str();
  }
  const at::Tensor a = found.contiguous().flatten(), b = expected.contiguous().flatten();
  const auto* left = static_cast<const char*>(a.const_data_ptr());
  const auto* right = static_cast<const char*>(b.const_data_ptr());
  const std::size_t size = a.element_size();
  int64_t first = -1, many = 0;
  for (int64_t k = 0; k < a.numel(); ++k) {
    if (!std::memcmp(left + size * k, right + size * k, size)) continue;
    if (!many++) first = k;
  }
  if (!many) return {};
  text << many << " of " << a.numel() << " elements are not eager mode's, the first of them is "
       << a[first].item() << " instead of " << b[first].item();
  return text.str();
}

class Reference {
 public:
  // Drops all copies, where nothing is in flight.
  void forget() { copies_.clear(); }

  // Runs a call in eager mode; returns its results, or null where its reads have failed.
  template <class Run>
  std::unique_ptr<Expected> expect(const Call& call, const std::vector<bool>& writes, bool fresh,
                                   const Run& run) {
    Stack stack(call.arguments.size());
    for (const bool written : {true, false}) {  // written arguments first: others may alias them
      for (std::size_t k = 0; k < stack.size(); ++k) {
        if (writes[k] == written && !copy(call.arguments[k], written, stack[k])) return nullptr;
      }
    }
    auto expected = std::make_unique<Expected>();
    try {
      run(&stack);
    } catch (const c10::Error& error) {
      expected->error = error.what_without_backtrace();
      return expected;
    } catch (const std::exception& error) {
      expected->error = error.what();
      return expected;
    }
    for (std::size_t k = 0; k < stack.size(); ++k) {
      const at::Tensor& t = stack[k].toTensor();
      expected->results.push_back(t.clone());
      if (fresh) keep(call.outputs[k].storage, t.storage());
    }
    return expected;
  }

 private:
  struct Copy {
    c10::weak_intrusive_ptr<c10::StorageImpl> of;  // so that its address is not reused
    c10::Storage storage;
  };

  void keep(const c10::Storage& of, c10::Storage storage) {
    if (copies_.size() >= sweep_at_) {
      std::erase_if(copies_, [](const auto& one) { return one.second.of.expired(); });
      sweep_at_ = std::max<std::size_t>(64, 2 * copies_.size());
    }
    copies_.insert_or_assign(of.unsafeGetStorageImpl(),
                             Copy{of.getWeakStorageImpl(), std::move(storage)});
  }

  bool copy(const c10::IValue& v, bool writes, c10::IValue& to) {
    to = v;
    if (v.isTensor() && v.toTensor().defined()) {
      auto found = copy(v.toTensor(), writes);
      if (found) to = *found;
      return found.has_value();
    }
    if (!v.isList() || v.isIntList() || v.isDoubleList() || v.isBoolList()) return true;
    auto list = v.toList().copy();
    for (std::size_t k = 0; k < list.size(); ++k) {
      c10::IValue one;
      if (!copy(list.get(k), writes, one)) return false;
      list.set(k, one);
    }
    to = list;
    return true;
  }

  // Returns the tensor itself unless a call in flight writes it.
  std::optional<at::Tensor> copy(const at::Tensor& t, bool writes) {
    const c10::Storage& own = t.storage();
    auto found = copies_.find(own.unsafeGetStorageImpl());
    if (found == copies_.end()) {
      if (own.nbytes() && !own.data()) return std::nullopt;
      if (!writes) return t;
      auto made = c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(), own.nbytes(), c10::GetCPUAllocator(), true);
      if (own.nbytes()) std::memcpy(made->mutable_data(), own.data(), own.nbytes());
      keep(own, c10::Storage(std::move(made)));
      found = copies_.find(own.unsafeGetStorageImpl());
    }
    at::Tensor same = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(found->second.storage), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
    c10::TensorImpl* impl = same.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
    if (t.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
    return same;
  }

  std::unordered_map<const c10::StorageImpl*, Copy> copies_;
  std::size_t sweep_at_ = 64;
};

// Raises if the results of a call differ from eager mode's.
inline void compare(const Expected& expected, const Stack& found) {
  constexpr const char* kWays =
      "; memory was changed while it was in flight, without an operator, or it must not be deferred";
  TORCH_CHECK(expected.error.empty(), "eager mode raises: ", expected.error, kWays);
  for (std::size_t k = 0; k < expected.results.size(); ++k) {
    const std::string how = difference(found.at(k).toTensor(), expected.results[k]);
    TORCH_CHECK(how.empty(), how, kWays);
  }
}

}  // namespace recurra
