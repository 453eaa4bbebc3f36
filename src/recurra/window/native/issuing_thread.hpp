// The one thread that calls the driver, with a queue of launches in program order.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "issuer.hpp"

namespace recurra {

class IssuingThread {
 public:
  IssuingThread(std::shared_ptr<Driver> driver, int slots, int streams, std::size_t graphs,
                std::size_t queue)
      : driver_(driver), issuer_(new Issuer(driver, slots, streams, graphs)), most_(queue) {}

  ~IssuingThread() {
    if (forked_) return;  // the parent's objects are not touched
    close();
    delete issuer_;
    delete signals_;
  }

  IssuingThread(const IssuingThread&) = delete;
  IssuingThread& operator=(const IssuingThread&) = delete;

  // Queues the next kernels of the program, and returns the first ticket. Waits while the queue is
  // full. Returns nothing, without a launch, if it is closed or the driver has failed.
  std::optional<Word> offer(std::vector<Launch> launches) {
    if (forked_) return std::nullopt;
    auto lock = locked();
    const std::size_t count = launches.size();
    wait(lock, [&] {
      return closed_ || failed_ || (!stopping_ && (!queued_ || queued_ + count <= most_));
    });
    if (closed_ || failed_) return std::nullopt;
    const Word first = next_;
    next_ += count;
    queued_ += count;
    queue_.push_back({first, std::move(launches)});
    start();
    return first;
  }

  // Releases the kernels that are done now.
  void retire() {
    if (forked_) return;
    auto lock = locked();
    if (!running_) return;
    const Word wanted = ++retires_;
    signals_->work.notify_one();
    wait(lock, [&] { return retired_ >= wanted || !running_; });
  }

  // Waits until all kernels with valid events are done.
  void settle() {
    if (forked_) return;
    auto lock = locked();
    const Word until = next_;
    ++settling_;
    signals_->work.notify_one();
    wait(lock, [&] {
      return (queue_.empty() || queue_.front().first >= until) && current_.first >= until &&
             awaited_ >= until;
    });
    --settling_;
  }

  // Closes the queue, waits until everything is done, and releases all resources.
  void close() {
    if (forked_) return;
    {
      auto lock = locked();
      if (closed_) return;
      closed_ = true;
      signals_->done.notify_all();
    }
    settle();
    stop();
  }

  // Returns the tickets of kernels whose memory must stay alive.
  std::vector<Word> held() {
    if (forked_) return {};
    auto lock = locked();
    std::vector<Word> found;
    auto add = [&](Word first, Word count) {
      for (Word k = 0; k < count; ++k) found.push_back(first + k);
    };
    for (const auto& [first, count] : held_) add(first, count);
    if (current_.launches) add(current_.first, current_.launches);
    for (const Batch& b : queue_) add(b.first, b.launches.size());
    return found;
  }

  bool failed() { return forked_ || (locked(), failed_); }
  std::string failure() { return forked_ ? "this process was forked" : (locked(), failure_); }
  GraphCounts counts() { return forked_ ? GraphCounts{} : (locked(), counts_); }
  std::size_t graphs() { return forked_ ? 0 : (locked(), graphs_); }
  std::string refusal() { return forked_ ? "" : (locked(), refusal_); }

  // Waits for all kernels, ends the thread, and takes the lock.
  void before_fork() {
    if (forked_) return;
    for (;;) {
      settle();
      stop();
      signals_->mutex.lock();
      if (queue_.empty() && !running_) return;
      signals_->mutex.unlock();
    }
  }
  void in_parent() {
    if (!forked_) signals_->mutex.unlock();
  }
  void in_child() { forked_ = true; }

 private:
  struct Batch {
    Word first;
    std::vector<Launch> launches;
  };
  struct Current {
    Word first = ~Word{0}, launches = 0;
  };
  struct Signals {  // not touched in a forked child
    std::mutex mutex, stopping;
    std::condition_variable work, done;  // for the thread, for callers
  };

  std::unique_lock<std::mutex> locked() { return std::unique_lock(signals_->mutex); }

  template <class Until>
  void wait(std::unique_lock<std::mutex>& lock, Until until) {
    ++waiting_;
    signals_->done.wait(lock, until);
    --waiting_;
  }

  void start() {
    if (running_) return signals_->work.notify_one();
    running_ = true;
    thread_ = std::thread([this] { work(); });
  }

  // Ends the thread when the queue is empty. The next launch starts another.
  void stop() {
    std::lock_guard alone(signals_->stopping);
    {
      auto lock = locked();
      if (!running_) return;
      stopping_ = true;
      signals_->work.notify_one();
    }
    thread_.join();
    auto lock = locked();
    stopping_ = false;
    signals_->done.notify_all();
  }

  void work() {
    auto lock = locked();
    issuer_->fine(driver_->enter(), "enter");
    for (;;) {
      publish();
      signals_->work.wait(lock, [&] {
        return !queue_.empty() || retires_ != retired_ || stopping_ ||
               (settling_ && awaited_ != ~Word{0});
      });
      if (retires_ != retired_) {
        const Word answers = retires_;
        unlocked(lock, [&] { issuer_->retire(); });
        retired_ = answers;
      } else if (!queue_.empty()) {
        issue(lock);
      } else if (settling_ && awaited_ != ~Word{0}) {
        unlocked(lock, [&] { issuer_->retire(); });
      } else {
        break;
      }
    }
    if (closed_) issuer_->close();
    running_ = false;
    publish();
  }

  void issue(std::unique_lock<std::mutex>& lock) {
    Batch batch = std::move(queue_.front());
    queue_.pop_front();
    queued_ -= batch.launches.size();
    current_ = {batch.first, batch.launches.size()};
    unlocked(lock, [&] { issuer_->issue(batch.first, batch.launches); });
    current_ = {};
  }

  template <class Do>
  static void unlocked(std::unique_lock<std::mutex>& lock, Do what) {
    lock.unlock();
    what();
    lock.lock();
  }

  // Copies the state that callers read, with the lock held.
  void publish() {
    held_ = issuer_->held();
    awaited_ = issuer_->awaited();
    failed_ = issuer_->failed();
    failure_ = issuer_->failure();
    counts_ = issuer_->graphs().counts;
    graphs_ = issuer_->graphs().size();
    refusal_ = issuer_->graphs().refusal;
    if (failed_) queue_.clear(), queued_ = 0;
    if (waiting_) signals_->done.notify_all();
  }

  std::shared_ptr<Driver> driver_;
  Issuer* issuer_;  // the thread's
  Signals* signals_ = new Signals;
  std::size_t most_, queued_ = 0, graphs_ = 0;  // launches; graphs
  std::deque<Batch> queue_;
  Current current_;
  Word next_ = 0, retires_ = 0, retired_ = 0, awaited_ = ~Word{0};
  int settling_ = 0, waiting_ = 0;
  bool running_ = false, stopping_ = false, closed_ = false, failed_ = false, forked_ = false;
  std::vector<std::pair<Word, Word>> held_;
  std::string failure_, refusal_;
  GraphCounts counts_;
  std::thread thread_;
};

}  // namespace recurra
