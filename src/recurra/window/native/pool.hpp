// A pool of threads that run the ready tasks of a window. The offering thread helps when the FIFO
// is full, and when it waits for the end.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "window.hpp"

namespace recurra {

class Pool {
 public:
  using Body = std::function<void()>;  // must not throw

  Pool(int workers, int size, std::size_t queue) : window_(size, queue) {
    for (int k = 0; k < workers; ++k) threads_.emplace_back([this] { work(); });
  }

  // Runs all tasks that were offered.
  ~Pool() {
    drain();
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Adds the next task of the program. Helps while the FIFO is full.
  void offer(Accesses accesses, Body body) {
    std::unique_lock lock(mutex_);
    while (window_.full()) help(lock);
    const Word ticket = *window_.offer(std::move(accesses));
    bodies_.emplace(ticket, std::move(body));
    if (window_.any_ready()) changed_.notify_one();
  }

  // Waits until all tasks are done.
  void drain() {
    std::unique_lock lock(mutex_);
    while (!window_.empty()) help(lock);
  }

 private:
  // Runs a ready task, or waits until something changes.
  void help(std::unique_lock<std::mutex>& lock) {
    if (!run_one(lock)) changed_.wait(lock);
  }

  bool run_one(std::unique_lock<std::mutex>& lock) {
    const std::optional<Word> ticket = window_.take();
    if (!ticket) return false;
    const Body body = std::move(bodies_.extract(*ticket).mapped());
    lock.unlock();
    body();
    lock.lock();
    window_.retire(*ticket);
    changed_.notify_all();
    return true;
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (!closing_) help(lock);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  Window window_;
  std::unordered_map<Word, Body> bodies_;
  bool closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace recurra
