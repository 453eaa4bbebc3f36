// An allocator of large blocks in mappings of their own, which maps at most the peak of use.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace recurra {

// Allocates, caches and unmaps ranges of pages. All methods are safe in any thread.
class Mappings {
 public:
  static constexpr std::size_t kLarge = std::size_t{1} << 17;  // glibc's limit of its heap, too

  // Allocates at least so many bytes; null if that fails.
  void* take(std::size_t bytes) {
    const std::size_t whole = pages(bytes);
    std::vector<Range> old;
    {
      const std::lock_guard lock(mutex_);
      hold(whole);
      if (void* found = reuse(whole)) return found;
      mapped_ += whole;
      shrink(old);
      highest_ = std::max(highest_, mapped_);
    }
    unmap(old);
    void* made = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const std::lock_guard lock(mutex_);
    if (made == MAP_FAILED) {
      mapped_ -= whole, held_ -= whole;
      return nullptr;
    }
    taken_.emplace(made, whole);
    return made;
  }

  bool gave(void* address) {
    const std::lock_guard lock(mutex_);
    return taken_.contains(address);
  }

  void give_back(void* address) {
    std::vector<Range> old;
    {
      const std::lock_guard lock(mutex_);
      const auto found = taken_.find(address);
      held_ -= found->second;
      put_back({static_cast<char*>(address), found->second});
      taken_.erase(found);
      shrink(old);
    }
    unmap(old);
  }

  // Inside of blocks the peak of use stays mapped; outside, so many free bytes.
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
  }

  void close(std::size_t bytes) {
    std::vector<Range> old;
    {
      const std::lock_guard lock(mutex_);
      open_ = false, spare_ = pages(bytes);
      shrink(old);
    }
    unmap(old);
  }

  std::size_t mapped() const { return mapped_; }
  std::size_t highest() const { return highest_; }

  void before_fork() { mutex_.lock(); }
  void after_fork() { mutex_.unlock(); }
  void in_child() {
    new (&mutex_) std::mutex;
    open_ = false;
  }

 private:
  struct Range {
    char* begin;
    std::size_t bytes;
  };
  static constexpr int kPeriod = 4096;  // allocations; the peak is over the last two periods

  // Rounds up to whole pages, since parts of them cannot be unmapped.
  static std::size_t pages(std::size_t bytes) {
    static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    return (bytes + page - 1) / page * page;
  }

  static void unmap(const std::vector<Range>& old) {
    for (const Range& one : old) {
      if (!munmap(one.begin, one.bytes)) continue;
      madvise(one.begin, one.bytes, MADV_DONTNEED);  // there are too many mappings to split one
    }
  }

  // The lock is held, here and below.
  void hold(std::size_t bytes) {
    held_ += bytes;
    peak_ = std::max(peak_, held_);
    if (++results_ % kPeriod == 0) peak_before_ = std::exchange(peak_, held_);
  }

  // Returns the first part of the smallest free range that is large enough.
  void* reuse(std::size_t bytes) {
    const auto found = by_size_.lower_bound({bytes, nullptr});
    if (found == by_size_.end()) return nullptr;
    const Range range{found->second, found->first};
    remove(range);
    if (range.bytes > bytes) add({range.begin + bytes, range.bytes - bytes});
    taken_.emplace(range.begin, bytes);
    return range.begin;
  }

  // Frees a range, and merges it with adjacent ones.
  void put_back(Range range) {
    auto after = free_.lower_bound(range.begin);
    if (after != free_.end() && after->first == range.begin + range.bytes) {
      range.bytes += after->second;
      remove({after->first, after->second});
      after = free_.lower_bound(range.begin);
    }
    if (after != free_.begin()) {
      const auto [begin, bytes] = *std::prev(after);
      if (begin + bytes == range.begin) {
        remove({begin, bytes});
        range = {begin, bytes + range.bytes};
      }
    }
    add(range);
  }

  // Unmaps free ranges beyond the limit, small ones first.
  void shrink(std::vector<Range>& old) {
    const std::size_t most = open_ ? std::max({peak_, peak_before_, held_}) : held_ + spare_;
    while (mapped_ > most && !by_size_.empty()) {
      const auto [bytes, begin] = *by_size_.begin();
      const std::size_t goes = std::min(bytes, mapped_ - most);
      remove({begin, bytes});
      if (goes < bytes) add({begin + goes, bytes - goes});
      mapped_ -= goes;
      old.push_back({begin, goes});
    }
  }

  void add(const Range& range) {
    free_.emplace(range.begin, range.bytes);
    by_size_.emplace(range.bytes, range.begin);
  }

  void remove(const Range& range) {
    free_.erase(range.begin);
    by_size_.erase({range.bytes, range.begin});
  }

  std::mutex mutex_;
  std::unordered_map<void*, std::size_t> taken_;
  std::map<char*, std::size_t> free_;
  std::set<std::pair<std::size_t, char*>> by_size_;  // the same
  std::size_t mapped_ = 0, held_ = 0, peak_ = 0, peak_before_ = 0, spare_ = 0, highest_ = 0;
  std::uint64_t results_ = 0;
  bool open_ = false;
};

}  // namespace recurra
