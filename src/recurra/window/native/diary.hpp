// What ran when, and on which thread, while somebody wants to know.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "call.hpp"

namespace recurra {

class Diary {
 public:
  // In µs since the diary was begun; thread 0 is the one that did that.
  struct Ran {
    std::string name;
    std::size_t thread;
    double start, stop;
  };

  // An operator that runs until this goes out of scope.
  class Entry {
   public:
    explicit Entry(const c10::OperatorHandle& op);
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    const c10::OperatorHandle* op_ = nullptr;
    Clock::time_point begin_;
  };

  void begin(bool wanted) {
    const std::lock_guard lock(mutex_);
    ran_.clear(), threads_.clear();
    threads_.emplace(std::this_thread::get_id(), 0);
    since_ = Clock::now();
    wanted_ = wanted;
  }

  // The newest.
  std::deque<Ran> ran() {
    const std::lock_guard lock(mutex_);
    return ran_;
  }

 private:
  static constexpr std::size_t kMost = 4096;

  void add(const c10::OperatorHandle& op, Clock::time_point begin, Clock::time_point end) {
    const std::lock_guard lock(mutex_);
    const std::size_t thread =
        threads_.try_emplace(std::this_thread::get_id(), threads_.size()).first->second;
    ran_.push_back({c10::toString(op.operator_name()), thread, us_between(since_, begin),
                    us_between(since_, end)});
    if (ran_.size() > kMost) ran_.pop_front();
  }

  std::atomic<bool> wanted_{false};
  std::mutex mutex_;
  Clock::time_point since_;
  std::map<std::thread::id, std::size_t> threads_;
  std::deque<Ran> ran_;
};

inline Diary diary;

inline Diary::Entry::Entry(const c10::OperatorHandle& op) {
  if (!diary.wanted_.load(std::memory_order_relaxed)) return;
  op_ = &op;
  begin_ = Clock::now();
}

inline Diary::Entry::~Entry() {
  if (op_) diary.add(*op_, begin_, Clock::now());
}

}  // namespace recurra
