// The tensor operands of a call: its reads and writes, and whether it may be deferred.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/InferenceMode.h>

#include <mutex>
#include <unordered_map>
#include <vector>

#include "call.hpp"
#include "memory.hpp"

namespace recurra {

// Storages whose memory was exported, so that other code may use it. Weak references keep their
// addresses unique but not their memory. Expired ones are removed soon, since their remains
// fragment the heap.
class Exported {
 public:
  void insert(const c10::Storage& storage) {
    const std::lock_guard lock(mutex_);
    if (weak_.size() >= sweep_at_) {
      std::erase_if(weak_, [](const auto& one) { return one.second.expired(); });
      sweep_at_ = std::max(kSoon, 2 * weak_.size());
    }
    weak_.try_emplace(storage.unsafeGetStorageImpl(), storage.getWeakStorageImpl());
    any_ = true;
  }

  bool has(const c10::StorageImpl* storage) const {
    if (!any_.load(std::memory_order_relaxed)) return false;
    const std::lock_guard lock(mutex_);
    return weak_.count(storage) != 0;
  }

  void clear() {
    const std::lock_guard lock(mutex_);
    weak_.clear();
    any_ = false;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> weak_;
  static constexpr std::size_t kSoon = 8;
  std::size_t sweep_at_ = kSoon;
  std::atomic<bool> any_{false};
};

inline Exported exported;
inline Accesses segments;  // reused

// Returns whether memory may be read or written without an operator: by NumPy (whose storages
// cannot be resized), by the program through a storage object, by code to which it was exported
// inside this block, or by a foreign allocator.
inline bool shared(const c10::StorageImpl* storage) {
  const at::DataPtr& data = const_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks();
  const bool ours = !data.get() || ResultMemory::allocated(data);
  if (!ours || !storage->resizable()) return true;
  const auto* slot = storage->pyobj_slot();
  return (slot->load_pyobj() && !slot->has_unique_reference()) || exported.has(storage);
}

// The keys of plain tensors: strided, on the CPU, without state that a deferred operator would
// miss.
inline constexpr c10::DispatchKeySet kPlain{
    c10::DispatchKey::CPU, c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutocastCPU,
    c10::DispatchKey::ADInplaceOrView};

inline bool plain(const at::Tensor& t) {
  if (t.key_set().raw_repr() & ~kPlain.raw_repr()) return false;
  return t.layout() == c10::kStrided && t.has_storage();
}

// Returns whether a call has only plain tensors, and no transform or Python mode around it: a
// composite may have its own kernel for other tensors.
inline bool plain(c10::DispatchKeySet keys) {
  constexpr c10::DispatchKeySet usual = kPlain.add(kKey).add(c10::DispatchKey::BackendSelect);
  return !(keys.raw_repr() & ~usual.raw_repr());
}

// The tensors among the arguments, by address.
struct Operands {
  c10::SmallVector<const at::Tensor*, 8> reads, writes;
  bool any = false, plain = true, shared = false, gradient = false;
};

inline void add_operand(Operands& operands, const at::Tensor& t, bool writes) {
  if (!t.defined()) return;
  operands.any = true;
  operands.gradient |= t.requires_grad();
  (writes ? operands.writes : operands.reads).push_back(&t);
  if (!plain(t)) {
    operands.plain = false;
    return;
  }
  operands.shared |= shared(t.storage().unsafeGetStorageImpl());
  // Autograd keys, which a deferred call excludes, carry forward derivatives, and refuse to write
  // tensors of inference mode outside of it.
  const bool carries = t.unsafeGetTensorImpl()->autograd_meta() && t._fw_grad(0).defined();
  const bool refused = writes && t.is_inference() && !c10::InferenceMode::is_enabled();
  operands.plain &= !carries && !refused;
}

inline void add_operand(Operands& operands, const c10::IValue& v, bool writes) {
  if (v.isTensor()) {
    add_operand(operands, v.toTensor(), writes);
  } else if (v.isList() && !v.isIntList() && !v.isDoubleList() && !v.isBoolList()) {
    for (const c10::IValue& one : v.toListRef()) add_operand(operands, one, writes);
  }
}

inline const Accesses& accesses(const Operands& operands) {
  segments.reads.clear(), segments.writes.clear();
  for (const at::Tensor* t : operands.reads) segments.reads.push_back(segment_of(*t));
  for (const at::Tensor* t : operands.writes) segments.writes.push_back(segment_of(*t));
  return segments;
}

// Copies references, which outlive the arguments.
inline std::vector<at::Tensor> kept(c10::ArrayRef<const at::Tensor*> tensors) {
  std::vector<at::Tensor> found;
  for (const at::Tensor* t : tensors) found.push_back(*t);
  return found;
}

}  // namespace recurra
