// What calls have taught: what results are like, before there are any, and how long they take.
#pragma once

#include <atomic>
#include <vector>

#include "call.hpp"

namespace recurra {

// What one signature (operator, shapes, types) has taught.
struct Learned {
  std::vector<Like> outputs;
  bool defer = true;
  std::atomic<double> us{0};
  double weight = 0;  // the same for all stretches of an examination
  std::uint64_t epoch = 0;
};

// Waits for the value of a storage, for whoever asks for its memory without an operator.
inline void (*arrive)(c10::StorageImpl*) = nullptr;

// A tensor that is not computed yet: its storage has no data, and says so who asks for it.
inline at::Tensor promised(const Like& like) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), like.bytes, at::DataPtr(nullptr, c10::Device(c10::kCPU)),
      c10::GetCPUAllocator(), true);
  storage->set_materializer(arrive);
  return like.of(c10::Storage(std::move(storage)));
}

}  // namespace recurra
