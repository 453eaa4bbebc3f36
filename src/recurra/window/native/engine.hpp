// The engine: deferred calls of ATen operators behind a window, run by workers and waiting callers.
//
// An output that is not computed yet is an ordinary tensor whose storage has no data. The thread
// that computes it moves the data in; views share the storage, and become valid with it.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "call.hpp"
#include "span_recorder.hpp"
#include "learned.hpp"
#include "memory.hpp"
#include "reference.hpp"
#include "window.hpp"

namespace recurra {

// Workers sleep between blocks. Inside, an idle thread spins for about twice the latency of a
// wake-up on this machine, and then sleeps; it is woken if there is enough work.
class Engine {
 public:
  Engine(int workers, int size) : window_(size, 1), size_(size) {
    for (int k = 0; k < workers; ++k) threads_.emplace_back([this] { work(); });
  }

  ~Engine() {
    drain();
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
      publish();
    }
    hired_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  bool fits(int workers, int size) const {
    return static_cast<int>(threads_.size()) == workers && size_ == size;
  }

  // Begins or ends a block. Outside of blocks no thread spins.
  void open(bool is) {
    open_ = is;
    if (is) ++changes_;
  }

  // Records a change of the number of intra-operator threads, with nothing in flight.
  void change() { ++changes_; }

  // Limits the bytes of results in flight: those of calls since the oldest one that has not ended.
  // A call with larger results runs alone.
  void allow(std::size_t bytes) {
    const auto lock = locked();
    budget_ = bytes;
    publish();
  }

  std::size_t budget() const { return budget_; }

  // Returns whether `accesses` depend on no call in flight.
  bool free_for(const Accesses& accesses) {
    if ((state_ & kEmpty) && !poisoning_) return true;
    const auto lock = locked();
    return window_.waiting() == 0 && window_.upstream_of(accesses) == 0 && poisoned_.empty();
  }

  // Adds the next operator of the program, and runs others while the window is full. A tiny one
  // joins the one operator that it follows, if that has not started: they are one task. `call` is
  // replaced by an empty one. `fresh`: it writes only new memory, on which nothing in flight
  // depends.
  void offer(const Accesses& accesses, std::unique_ptr<Call>& call, double tiny_us, bool fresh) {
    const double us = call->us->load(std::memory_order_relaxed);
    std::uint64_t bytes = 0;
    for (const Promise& one : call->outputs) bytes += one.like->bytes;
    auto lock = locked();
    while (bytes > budget_ && !window_.empty()) help(lock, [this] { return shows(kReady | kEmpty); });
    while (!within_budget()) help(lock, [this] { return shows(kReady | kRoom); });
    const Word upstream = fresh ? window_.before_reads(accesses) : window_.upstream_of(accesses);
    offered_bytes_ += bytes;
    if (us < tiny_us && join(upstream, accesses, call, us)) return publish();
    while (window_.crowded()) help(lock, [this] { return shows(kReady | kRoom); });
    const std::size_t slot = index(window_.enter(accesses, upstream));
    auto& bundle = bundles_[slot];
    bytes_before_[slot] = offered_bytes_ - bytes;
    if (!bundle) bundle = spare();
    bundle->us = us;
    std::swap(bundle->next(), call);
    backlog_us_ += us;
    publish();
    wake();
  }

  bool idle() const { return (state_ & kEmpty) != 0; }

  // Waits until everything is done, or has failed. It returns at once in an operator in flight (a
  // part of it may be a kernel in Python), whose arguments are there.
  void drain() {
    if ((state_ & kEmpty) || running_) return;
    auto lock = locked();
    while (!window_.empty()) help(lock, [this] { return shows(kReady | kEmpty); });
  }

  // Returns whether enough calls have run that freeing them is worth its locks.
  bool dusty() const { return ran_.load(std::memory_order_relaxed) >= kForgets; }

  // Waits for a promised value, in any thread that has found a storage without data, except in an
  // operator in flight, which cannot wait for itself.
  std::shared_ptr<const Failure> fetch(const c10::StorageImpl* storage) {
    TORCH_CHECK(!running_, "reads a result that is not there yet, and that its schema does not name");
    drain();
    return report(storage);
  }

  // Frees the calls that have run. Freeing a tensor with a Python object needs Python's lock:
  // callers, which have it, do that, so that no worker ever waits for it.
  void sweep() {
    if (!ran_.load(std::memory_order_relaxed)) return;
    std::vector<std::unique_ptr<Bundle>> done;
    {
      const auto lock = locked();
      done.swap(done_bundles_);
      ran_.store(0, std::memory_order_relaxed);
    }
    for (auto& bundle : done) bundle->clear();  // may run any code, including this function
    const auto lock = locked();
    for (auto& bundle : done) spare_.push_back(std::move(bundle));
  }

  // Waits until every call that writes these reads has ended.
  void wait_for(const Accesses& reads) {
    if (state_ & kEmpty) return;
    auto lock = locked();
    while (window_.before_reads(reads)) {
      const unsigned before = retired_;
      help(lock, [&] { return retired_ != before || shows(kReady); });
    }
  }

  // The latencies of waking a sleeping thread, and of handing a task to a spinning one.
  double wake_us() const { return wake_us_; }
  double hand_us() const { return hand_us_; }

  // Returns the failure because of which a tensor has no value, or null.
  std::shared_ptr<const Failure> error_of(const at::Tensor& t) {
    const auto lock = locked();
    return find_error(t);
  }

  // Does the same for a storage, and marks the failure as reported.
  std::shared_ptr<const Failure> report(const c10::StorageImpl* storage) {
    std::lock_guard lock(mutex_);
    auto found = poisoned_.find(storage);
    if (found == poisoned_.end()) return nullptr;
    unreported_ = nullptr;
    return found->second.why;
  }

  void mark_reported() {
    std::lock_guard lock(mutex_);
    unreported_ = nullptr;
  }

  bool any_poisoned() {
    std::lock_guard lock(mutex_);
    return !poisoned_.empty();
  }

  // Returns the first failure that was not reported, and forgets all.
  std::shared_ptr<const Failure> end() {
    std::lock_guard lock(mutex_);
    auto why = std::move(unreported_);
    unreported_ = nullptr;
    poisoned_.clear();
    poisoning_ = false;
    return why;
  }

  std::atomic<std::uint64_t> by_workers{0}, by_callers{0}, joined{0};  // counted with the lock

 private:
  struct Poisoned {
    c10::Storage held;  // so that its address is not reused
    std::shared_ptr<const Failure> why;
  };

  // The scope in which this thread runs a bundle.
  struct Running {
    Running() { running_ = true; }
    ~Running() { running_ = false; }
    const ResultMemory::Here here;
  };
  inline static thread_local bool running_ = false;

  // Operators that are one task.
  struct Bundle {
    std::vector<std::unique_ptr<Call>> calls;  // the first `count`; the others are spare
    std::size_t count = 0;
    double us = 0;  // expected

    std::unique_ptr<Call>& next() {
      if (count == calls.size()) calls.push_back(std::make_unique<Call>());
      return calls[count++];
    }
    void clear() {
      for (std::size_t k = 0; k < count; ++k) calls[k]->clear();
      count = 0;
    }
  };
  enum State : unsigned { kReady = 1, kEmpty = 2, kRoom = 4, kClosing = 8 };
  static constexpr double kLongestBundle = 40;  // µs
  static constexpr std::size_t kMostCalls = 12;
  static constexpr int kForgets = 4;
  static constexpr std::size_t kHeavy = std::size_t{1} << 20;  // bytes that are freed at once

  // Spins for the lock, since sleeping costs more than any work under it.
  std::unique_lock<std::mutex> locked() {
    for (int k = 0; k < 400; ++k) {
      if (mutex_.try_lock()) return {mutex_, std::adopt_lock};
      spin();
    }
    return std::unique_lock(mutex_);
  }

  // Counts an event, with the lock held.
  static void count(std::atomic<std::uint64_t>& events) {
    events.store(events.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  // Updates the state that is read without the lock, with the lock held.
  void publish() {
    const unsigned before = state_.load(std::memory_order_relaxed);
    const bool room = !window_.crowded() && within_budget();
    const unsigned now = (window_.any_ready() ? kReady : 0u) | (window_.empty() ? kEmpty : 0u) |
                         (room ? kRoom : 0u) | (closing_ ? kClosing : 0u);
    const bool looked_for = (now & kReady) && !(before & kReady) && !threads_.empty();
    if (looked_for) ready_since_ = Clock::now();
    state_.store(now, std::memory_order_release);
  }

  // The lock is held.
  bool within_budget() {
    if (offered_bytes_ - oldest_bytes_ <= budget_) return true;
    const int oldest = window_.oldest();
    oldest_bytes_ = oldest < 0 ? offered_bytes_ : bytes_before_[index(oldest)];
    return offered_bytes_ - oldest_bytes_ <= budget_;
  }

  static std::size_t index(int slot) { return static_cast<std::size_t>(slot); }

  std::unique_ptr<Bundle> spare() {
    if (spare_.empty()) return std::make_unique<Bundle>();
    auto bundle = std::move(spare_.back());
    spare_.pop_back();
    return bundle;
  }

  // Wakes a worker if there is enough work, and all sleeping callers.
  void wake() {
    if (callers_asleep_) done_.notify_all();
    if (!workers_asleep_ || !window_.any_ready() || backlog_us_ < wake_us_) return;
    if (!notified_) woken_at_ = Clock::now();
    notified_ = true;
    hired_.notify_one();
  }

  bool join(Word upstream, const Accesses& accesses, std::unique_ptr<Call>& call, double us) {
    const int before = window_.only_before(upstream);
    if (before < 0) return false;
    Bundle& bundle = *bundles_[index(before)];
    if (bundle.us + us > kLongestBundle || bundle.count == kMostCalls) return false;
    window_.extend(before, accesses);
    bundle.us += us;
    backlog_us_ += us;
    std::swap(bundle.next(), call);
    count(joined);
    return true;
  }

  bool shows(unsigned events) const { return (state_ & events) != 0; }

  // Runs a ready task in a caller, or waits for an event.
  template <class There>
  void help(std::unique_lock<std::mutex>& lock, const There& there) {
    if (run_one(lock)) return count(by_callers);
    if (look(lock, there)) return;
    ++callers_asleep_;
    done_.wait(lock, there);
    --callers_asleep_;
  }

  // Spins for an event for a bounded time, without the lock; returns whether it is there.
  template <class There>
  bool look(std::unique_lock<std::mutex>& lock, const There& there) {
    if (there()) return true;
    const double most = std::clamp(2 * wake_us_, 20.0, 300.0);
    lock.unlock();
    const auto begin = Clock::now();
    bool found = false;
    do {
      for (int k = 0; k < 32 && !found; ++k) spin(), found = there();
      if (!found) std::this_thread::yield();
    } while (!found && open_ && us_since(begin) < most);
    lock = locked();
    return there();
  }

  bool run_one(std::unique_lock<std::mutex>& lock) {
    const int slot = window_.take_slot();
    if (slot < 0) return false;
    auto bundle = std::move(bundles_[index(slot)]);
    backlog_us_ -= bundle->us;
    publish();
    lock.unlock();
    run_all(*bundle);
    std::size_t kept = 0;
    for (std::size_t k = 0; k < bundle->count; ++k) kept += bundle->calls[k]->give_back();
    lock = locked();
    done_bundles_.push_back(std::move(bundle));
    ran_ += kept < kHeavy ? 1 : kForgets;
    window_.retire_slot(slot);
    ++retired_;
    if (window_.empty()) backlog_us_ = 0;
    publish();
    wake();
    return true;
  }

  void run_all(Bundle& bundle) {
    const Running here;
    // The default modes, since a helping thread may be inside of autocast or a transform.
    const c10::impl::ForceDispatchKeyGuard usual(
        c10::default_included_set - c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView),
        c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView |
            c10::DispatchKeySet(kKey));
    const c10::AutoGradMode no_gradients(false);
    const at::RecordFunctionGuard not_again(false);  // a profiler has recorded the call
    const unsigned mine = float_modes();
    unsigned modes = mine;
    for (std::size_t k = 0; k < bundle.count; ++k) {
      Call& call = *bundle.calls[k];
      if (call.floats != modes) set_float_modes(modes = call.floats);
      std::shared_ptr<const Failure> before, why;
      if (poisoning_) {
        const auto lock = locked();
        before = find_error(call.arguments);
      }
      why = before ? before : run(call);
      if (!why) continue;
      const auto lock = locked();
      poison(call, why, !before);
    }
    if (modes != mine) set_float_modes(mine);
  }

  // Returns true one time in four, at random, since reading the clock takes as long as the check
  // for dependences.
  static bool now_and_then() {
    thread_local std::uint32_t dice = 1;
    dice = 1664525 * dice + 1013904223;
    return dice >> 30 == 0;
  }

  static std::shared_ptr<const Failure> run(Call& call) {
    thread_local Stack stack;  // reused
    struct Clear {
      ~Clear() { stack.clear(); }
    } const at_the_end;
    stack = call.arguments;  // so that this is never the last owner of an argument
    try {
      const SpanRecorder::Scope written(*call.op);
      const bool timed = now_and_then();
      const auto begin = timed ? Clock::now() : Clock::time_point();
      call.op->callBoxed(&stack);
      if (call.expected) compare(*call.expected, stack);
      for (std::size_t k = 0; k < call.outputs.size(); ++k) {
        keep(call.outputs[k], stack.at(k).toTensor());
      }
      if (timed) learn_from(*call.us, us_since(begin));
      return nullptr;
    } catch (const c10::Error& error) {
      return failure(call, error, error.what_without_backtrace());
    } catch (const std::exception& error) {
      return failure(call, error, error.what());
    }
  }

  static std::shared_ptr<const Failure> failure(const Call& call, const std::exception& error,
                                                const std::string& said) {
    const std::string text = "operator " + call.op->schema().name() + " failed: " + said +
                             "\n  called at " + recurra::describe_line(call.where);
    return std::make_shared<Failure>(Failure{text, with_text(error, text)});
  }

  std::shared_ptr<const Failure> find_error(const at::Tensor& t) const {
    if (poisoned_.empty() || !t.has_storage()) return nullptr;
    auto found = poisoned_.find(t.storage().unsafeGetStorageImpl());
    return found == poisoned_.end() ? nullptr : found->second.why;
  }

  template <class Values>
  std::shared_ptr<const Failure> find_error(const Values& values) const {
    std::shared_ptr<const Failure> why;
    for (const c10::IValue& v : values) {
      if (why) return why;
      if (v.isTensor() && v.toTensor().defined()) why = find_error(v.toTensor());
      if (v.isList()) why = find_error(v.toListRef());
    }
    return why;
  }

  void poison(const Call& call, const std::shared_ptr<const Failure>& why, bool first) {
    auto poison_storage = [&](const c10::Storage& storage) {
      poisoned_.insert_or_assign(storage.unsafeGetStorageImpl(), Poisoned{storage, why});
    };
    for (const c10::Storage& storage : call.writes) poison_storage(storage);
    for (const Promise& promise : call.outputs) {
      poison_storage(promise.storage);
      c10::StorageImpl* storage = promise.storage.unsafeGetStorageImpl();
      if (storage->_mutable_data_ptr_no_checks().get()) continue;
      storage->release_data_and_set_meta_custom_data_ptr_error_msg_(why->text);  // permanently
      storage->clear_materializer();
    }
    if (first && !unreported_) unreported_ = why;
    poisoning_ = true;
  }

  void work() {
    unsigned known = changes_ - 1;
    auto lock = locked();
    bool found = false;
    while (!closing_) {
      // OpenMP's number of threads is per thread, and determines the last bits of sums.
      if (known != changes_) known = changes_, at::init_num_threads();
      if (found && window_.any_ready()) learn_gently(hand_us_, us_since(ready_since_));
      found = false;
      if (run_one(lock)) {
        count(by_workers);
      } else if (shows(kReady | kClosing)) {
        continue;
      } else if (look(lock, [this] { return shows(kReady | kClosing); })) {
        found = true;
      } else {
        sleep(lock);
      }
    }
  }

  void sleep(std::unique_lock<std::mutex>& lock) {
    ++workers_asleep_;
    hired_.wait(lock, [&] { return notified_ || closing_; });
    --workers_asleep_;
    if (notified_) learn_gently(wake_us_, us_since(woken_at_));
    notified_ = false;
  }

  std::mutex mutex_;
  std::condition_variable hired_, done_;  // workers, callers
  std::atomic<unsigned> state_{kEmpty | kRoom};
  std::atomic<bool> open_{true}, poisoning_{false};
  std::atomic<unsigned> changes_{0}, retired_{0};
  int workers_asleep_ = 0, callers_asleep_ = 0;
  bool notified_ = false;
  Clock::time_point woken_at_, ready_since_;
  std::uint64_t offered_bytes_ = 0, oldest_bytes_ = 0, budget_ = 0;
  std::uint64_t bytes_before_[kSlots] = {};  // of results of all calls before that in a slot
  double backlog_us_ = 0;                // of tasks that have not started
  std::atomic<double> wake_us_{50}, hand_us_{5};
  Window window_;
  int size_;
  std::unique_ptr<Bundle> bundles_[kSlots];  // by slot
  std::vector<std::unique_ptr<Bundle>> done_bundles_, spare_;
  std::atomic<int> ran_{0};
  std::unordered_map<const c10::StorageImpl*, Poisoned> poisoned_;
  std::shared_ptr<const Failure> unreported_;
  bool closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace recurra
