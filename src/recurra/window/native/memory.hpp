// The allocator of results: large results of operators in a block are in mappings of their own,
// which are reused. A heap fragments when results are allocated and freed by several threads: the
// same program takes twice the memory out of order.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include <utility>

#include "mappings.hpp"

namespace recurra {

// PyTorch's allocator, except for large results of operators in a block.
class ResultMemory final : public c10::Allocator {
 public:
  // The scope in which this thread runs operators of a block.
  class Here {
   public:
    explicit Here(bool is = true) : before_(std::exchange(here_, is)) {}
    ~Here() { here_ = before_; }
    Here(const Here&) = delete;
    Here& operator=(const Here&) = delete;

   private:
    bool before_;
  };

  static Mappings& mappings() {
    static auto* made = new Mappings;  // never freed, since results outlive all blocks
    return *made;
  }

  // Installs it at the first block, unless PyTorch's allocator was replaced by another.
  static void install() {
    static auto* ours = new ResultMemory;
    if (c10::GetCPUAllocator() != c10::GetDefaultCPUAllocator()) return;
    mappings();
    pthread_atfork([] { mappings().before_fork(); }, [] { mappings().after_fork(); },
                   [] { mappings().in_child(); });
    c10::SetCPUAllocator(ours);
  }

  // Returns whether memory is from this allocator or the one before it, and not from a user.
  static bool allocated(const at::DataPtr& data) {
    const at::DeleterFnPtr freed = data.get_deleter();
    return freed == &free || freed == c10::GetDefaultCPUAllocator()->raw_deleter() ||
           freed == c10::GetCPUAllocator()->raw_deleter();
  }

  at::DataPtr allocate(std::size_t bytes) override {
    if (here_ && bytes >= Mappings::kLarge) {
      if (void* made = mappings().take(bytes)) {
        c10::profiledCPUMemoryReporter().New(made, bytes);
        return {made, made, &free, at::Device(at::kCPU)};
      }
    }
    return c10::GetDefaultCPUAllocator()->allocate(bytes);
  }

  // Frees memory of the default allocator, too.
  at::DeleterFnPtr raw_deleter() const override { return &free_any; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void free(void* address) {
    c10::profiledCPUMemoryReporter().Delete(address);
    mappings().give_back(address);
  }

  static void free_any(void* address) {
    if (mappings().gave(address)) return free(address);
    c10::GetDefaultCPUAllocator()->raw_deallocate(address);
  }

  inline static thread_local bool here_ = false;
};

}  // namespace recurra
