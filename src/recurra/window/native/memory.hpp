// Memory of results: large ones that operators of a block ask for lie in mappings of their own, which
// are used again. A heap gives what is free between two small objects to other small ones, and
// those of results come and go on several threads: the same program takes twice as much out of order.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include <utility>

#include "mappings.hpp"

namespace recurra {

// PyTorch's memory: as before, but for large results of operators that belong to a block.
class ResultMemory final : public c10::Allocator {
 public:
  // This thread runs operators of a block.
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
    static auto* made = new Mappings;  // for ever: results outlive all blocks
    return *made;
  }

  // From the first block on. Who has replaced PyTorch's memory by another keeps that.
  static void install() {
    static auto* ours = new ResultMemory;
    if (c10::GetCPUAllocator() != c10::GetDefaultCPUAllocator()) return;
    mappings();
    pthread_atfork([] { mappings().before_fork(); }, [] { mappings().after_fork(); },
                   [] { mappings().in_child(); });
    c10::SetCPUAllocator(ours);
  }

  // Whether an allocator made it, this one or that before it, and not somebody's own memory.
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

  // Takes what the usual memory has given, too.
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
