// Records of signatures: shapes of results and durations; and tensors that are promised by them.
#pragma once

#include <c10/util/Exception.h>

#include <atomic>
#include <vector>

#include "call.hpp"

namespace recurra {

// The record of one signature (operator, shapes, types).
struct Learned {
  std::vector<Like> outputs;
  const char* refused = nullptr;  // the reason why it is not deferred
  bool warned = false;            // in its last run; then the next call runs in the caller, too
  std::atomic<double> us{0};
  double weight = 0;  // constant during a trial
  std::uint64_t epoch = 0;
};

// Detects whether an operator warns. Python's warning filters depend on the calling line and may
// raise, so such an operator must run there.
class WarningListener : public c10::WarningHandler {
 public:
  bool heard() const { return heard_; }
  void process(const c10::Warning& warning) override {
    heard_ = true;
    callers_->process(warning);
  }

 private:
  bool heard_ = false;
  c10::WarningHandler* callers_ = c10::WarningUtils::get_warning_handler();
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

// Waits for the value of a storage whose memory is requested without an operator.
inline void (*arrive)(c10::StorageImpl*) = nullptr;

// Makes a tensor that is not computed yet: its storage has no data, but a materializer.
inline at::Tensor promised(const Like& like) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), like.bytes, at::DataPtr(nullptr, c10::Device(c10::kCPU)),
      c10::GetCPUAllocator(), true);
  storage->set_materializer(arrive);
  return like.of(c10::Storage(std::move(storage)));
}

// Moves a result into the promised tensor.
inline void keep(const Promise& promise, const at::Tensor& result) {
  const Like& like = *promise.like;
  TORCH_CHECK(result.sizes() == like.sizes && result.strides() == like.strides &&
                  result.dtype() == like.type && result.storage_offset() == 0,
              "gives another shape than before: its result depends on data");
  c10::StorageImpl* to = promise.storage.unsafeGetStorageImpl();
  c10::StorageImpl* from = result.storage().unsafeGetStorageImpl();
  const bool alone = result.use_count() == 1 && result.storage().use_count() == 1;
  if (alone && from->nbytes() == to->nbytes()) {
    to->set_data_ptr_noswap(std::move(from->_mutable_data_ptr_no_checks()));
    to->clear_materializer();
  } else {
    to->set_data_ptr_noswap(c10::GetCPUAllocator()->allocate(to->nbytes()));
    to->clear_materializer();
    like.of(promise.storage).copy_(result);
  }
}

}  // namespace recurra
