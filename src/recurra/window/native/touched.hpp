// The tensors that an operator is given: whether its call may be deferred, and what it reads and
// writes.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <unordered_set>
#include <vector>

#include "call.hpp"

namespace recurra {

inline std::unordered_set<const c10::StorageImpl*> exported;  // somebody outside may use them
inline Accesses segments;                                     // used again

// Plain tensors on the CPU in memory that PyTorch allocated and nobody else sees.
inline bool plain(const at::Tensor& t) {
  constexpr c10::DispatchKeySet allowed{
      c10::DispatchKey::CPU, c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutocastCPU,
      c10::DispatchKey::ADInplaceOrView};
  if (t.key_set().raw_repr() & ~allowed.raw_repr()) return false;
  if (t.layout() != c10::kStrided || !t.has_storage()) return false;
  const c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
  const at::DataPtr& data = const_cast<c10::StorageImpl*>(storage)->_mutable_data_ptr_no_checks();
  const bool ours = !data.get() || data.get_deleter() == c10::GetCPUAllocator()->raw_deleter();
  return ours && !(exported.size() && exported.count(storage));
}

// Tensors among the arguments, where they are.
struct Touched {
  c10::SmallVector<const at::Tensor*, 8> reads, writes;
  bool any = false, plain = true, gradient = false;
};

inline void touch(Touched& touched, const at::Tensor& t, bool writes) {
  if (!t.defined()) return;
  touched.any = true;
  touched.plain = touched.plain && plain(t);
  touched.gradient |= t.requires_grad();
  // Derivatives that go forward are carried by the autograd keys, which a deferred call leaves out.
  const bool carries = t.unsafeGetTensorImpl()->autograd_meta() && t._fw_grad(0).defined();
  touched.plain = touched.plain && !carries;
  (writes ? touched.writes : touched.reads).push_back(&t);
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
  for (const at::Tensor* t : touched.reads) {
    if (t->numel()) segments.reads.push_back(segment_of(*t));
  }
  for (const at::Tensor* t : touched.writes) {
    if (t->numel()) segments.writes.push_back(segment_of(*t));
  }
  return segments;
}

// They outlive the arguments.
inline std::vector<at::Tensor> kept(c10::ArrayRef<const at::Tensor*> tensors) {
  std::vector<at::Tensor> found;
  for (const at::Tensor* t : tensors) found.push_back(*t);
  return found;
}

}  // namespace recurra
