// A recorder of the times and threads of operators, for timelines.
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

class SpanRecorder {
 public:
  // In µs since `begin`; thread 0 is the one that called it.
  struct Span {
    std::string name;
    std::size_t thread;
    double start, stop;
  };

  // Records an operator until the end of the scope.
  class Scope {
   public:
    explicit Scope(const c10::OperatorHandle& op);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const c10::OperatorHandle* op_ = nullptr;
    Clock::time_point begin_;
  };

  void begin(bool enabled) {
    const std::lock_guard lock(mutex_);
    spans_.clear(), threads_.clear();
    threads_.emplace(std::this_thread::get_id(), 0);
    since_ = Clock::now();
    enabled_ = enabled;
  }

  // Returns the newest spans.
  std::deque<Span> spans() {
    const std::lock_guard lock(mutex_);
    return spans_;
  }

 private:
  static constexpr std::size_t kMost = 4096;

  void add(const c10::OperatorHandle& op, Clock::time_point begin, Clock::time_point end) {
    const std::lock_guard lock(mutex_);
    const std::size_t thread =
        threads_.try_emplace(std::this_thread::get_id(), threads_.size()).first->second;
    spans_.push_back({c10::toString(op.operator_name()), thread, us_between(since_, begin),
                    us_between(since_, end)});
    if (spans_.size() > kMost) spans_.pop_front();
  }

  std::atomic<bool> enabled_{false};
  std::mutex mutex_;
  Clock::time_point since_;
  std::map<std::thread::id, std::size_t> threads_;
  std::deque<Span> spans_;
};

inline SpanRecorder span_recorder;

inline SpanRecorder::Scope::Scope(const c10::OperatorHandle& op) {
  if (!span_recorder.enabled_.load(std::memory_order_relaxed)) return;
  op_ = &op;
  begin_ = Clock::now();
}

inline SpanRecorder::Scope::~Scope() {
  if (op_) span_recorder.add(*op_, begin_, Clock::now());
}

}  // namespace recurra
