// The tensors that an operator is given: whether its call may be deferred, and what it reads and
// writes.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/InferenceMode.h>

#include <mutex>
#include <unordered_map>
#include <vector>

#include "call.hpp"
#include "memory.hpp"

namespace recurra {

// Storages whose memory was given away, so that somebody outside may use it. Their memory is not
// kept: an address is not another's as long as it is in here, and those that died are forgotten soon:
// what is left of a storage lies between large pieces of free memory.
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
inline Accesses segments;  // used again

// Whether somebody else may look at this memory, or change it, without an operator: NumPy, which
// makes storages that cannot be resized, the program itself by an object of the storage, whom it
// was given inside this block, or who allocated it.
inline bool shared(const c10::StorageImpl* storage) {
  const at::DataPtr& data = const_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks();
  const bool ours = !data.get() || ResultMemory::allocated(data);
  if (!ours || !storage->resizable()) return true;
  const auto* slot = storage->pyobj_slot();
  return (slot->load_pyobj() && !slot->has_unique_reference()) || exported.has(storage);
}

// The keys of strided tensors on the CPU without anything that an operator, run later, would not see.
inline constexpr c10::DispatchKeySet kPlain{
    c10::DispatchKey::CPU, c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutocastCPU,
    c10::DispatchKey::ADInplaceOrView};

inline bool plain(const at::Tensor& t) {
  if (t.key_set().raw_repr() & ~kPlain.raw_repr()) return false;
  return t.layout() == c10::kStrided && t.has_storage();
}

// Whether a call has nothing but plain tensors, and no transform or mode of Python's around it: an
// operator that consists of others may have a kernel of its own for what is not plain.
inline bool plain(c10::DispatchKeySet keys) {
  constexpr c10::DispatchKeySet usual = kPlain.add(kKey).add(c10::DispatchKey::BackendSelect);
  return !(keys.raw_repr() & ~usual.raw_repr());
}

// Tensors among the arguments, where they are.
struct Touched {
  c10::SmallVector<const at::Tensor*, 8> reads, writes;
  bool any = false, plain = true, shared = false, gradient = false;
};

inline void touch(Touched& touched, const at::Tensor& t, bool writes) {
  if (!t.defined()) return;
  touched.any = true;
  touched.gradient |= t.requires_grad();
  (writes ? touched.writes : touched.reads).push_back(&t);
  if (!plain(t)) {
    touched.plain = false;
    return;
  }
  touched.shared |= shared(t.storage().unsafeGetStorageImpl());
  // Derivatives that go forward are carried by the autograd keys, which a deferred call leaves out;
  // these also refuse to write tensors of inference mode outside of it.
  const bool carries = t.unsafeGetTensorImpl()->autograd_meta() && t._fw_grad(0).defined();
  const bool refused = writes && t.is_inference() && !c10::InferenceMode::is_enabled();
  touched.plain &= !carries && !refused;
}

inline void touch(Touched& touched, const c10::IValue& v, bool writes) {
  if (v.isTensor()) {
    touch(touched, v.toTensor(), writes);
  } else if (v.isList() && !v.isIntList() && !v.isDoubleList() && !v.isBoolList()) {
    for (const c10::IValue& one : v.toListRef()) touch(touched, one, writes);
  }
}

inline const Accesses& accesses(const Touched& touched) {
  segments.reads.clear(), segments.writes.clear();
  for (const at::Tensor* t : touched.reads) segments.reads.push_back(segment_of(*t));
  for (const at::Tensor* t : touched.writes) segments.writes.push_back(segment_of(*t));
  return segments;
}

// They outlive the arguments.
inline std::vector<at::Tensor> kept(c10::ArrayRef<const at::Tensor*> tensors) {
  std::vector<at::Tensor> found;
  for (const at::Tensor* t : tensors) found.push_back(*t);
  return found;
}

}  // namespace recurra
