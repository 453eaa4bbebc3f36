// ATen operators on their way: deferred calls behind a window, run by threads that were lent.
//
// An output that is not computed yet is an ordinary tensor whose storage has no data. Who computes
// it moves the data in; views share the storage, and become valid with it.
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
#include "diary.hpp"
#include "learned.hpp"
#include "memory.hpp"
#include "reference.hpp"
#include "window.hpp"

namespace recurra {

// Workers sleep between blocks. Inside, who finds nothing to do looks for work about twice as long
// as waking takes on this machine, and then sleeps; who sleeps is woken for what is worth it.
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

  // A block begins or ends. Outside of blocks nobody looks for work.
  void open(bool is) {
    open_ = is;
    if (is) ++changes_;
  }

  // How many threads an operator uses itself was changed; nothing is in flight.
  void change() { ++changes_; }

  // The results of what is in flight take about so many bytes at most: those of calls since the
  // oldest one that has not ended, and those of one call that are as many at most.
  void allow(std::size_t bytes) {
    const auto lock = locked();
    budget_ = bytes;
    publish();
  }

  std::size_t budget() const { return budget_; }

  // Whether nothing that is in flight has to end before `accesses`.
  bool free_for(const Accesses& accesses) {
    if ((state_ & kEmpty) && !spoiling_) return true;
    const auto lock = locked();
    return window_.waiting() == 0 && window_.upstream_of(accesses) == 0 && spoiled_.empty();
  }

  // The next operator of the program. Runs others while the window is full. A tiny one joins the
  // one operator that it follows, if that has not started: they are handed over as one task. `call`
  // is an empty one then. `fresh`: what it writes is new memory, which nothing in flight touches.
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

  // Returns when everything is done, or has failed. An operator in flight may ask for it, too, if
  // a part of it is a kernel in Python: its arguments are there, and it cannot wait for itself.
  void drain() {
    if ((state_ & kEmpty) || running_) return;
    auto lock = locked();
    while (!window_.empty()) help(lock, [this] { return shows(kReady | kEmpty); });
  }

  // Whether so much has run that forgetting it is worth the locks that it takes.
  bool dusty() const { return ran_.load(std::memory_order_relaxed) >= kForgets; }

  // Waits for a promised value. For who has found a storage without data, on whatever thread; but an
  // operator in flight cannot wait for itself.
  std::shared_ptr<const Failure> fetch(const c10::StorageImpl* storage) {
    TORCH_CHECK(!running_, "reads a result that is not there yet, and that its schema does not name");
    drain();
    return told(storage);
  }

  // Forgets what has run. The last owner of a tensor that Python has seen needs Python's lock to
  // free it: callers, who have it, do that, so that no worker ever waits for it.
  void sweep() {
    if (!ran_.load(std::memory_order_relaxed)) return;
    std::vector<std::unique_ptr<Bundle>> done;
    {
      const auto lock = locked();
      done.swap(done_bundles_);
      ran_.store(0, std::memory_order_relaxed);
    }
    for (auto& bundle : done) bundle->clear();  // may run anything, this too
    const auto lock = locked();
    for (auto& bundle : done) spare_.push_back(std::move(bundle));
  }

  // Returns when whatever writes what is read has ended.
  void wait_for(const Accesses& reads) {
    if (state_ & kEmpty) return;
    auto lock = locked();
    while (window_.before_reads(reads)) {
      const unsigned before = retired_;
      help(lock, [&] { return retired_ != before || shows(kReady); });
    }
  }

  // What waking a sleeping thread takes, and what handing a task to one that looks for work does.
  double wake_us() const { return wake_us_; }
  double hand_us() const { return hand_us_; }

  // Why a tensor has no value, or nothing.
  std::shared_ptr<const Failure> spoiled(const at::Tensor& t) {
    const auto lock = locked();
    return blame(t);
  }

  // Why the storage of this address has no value; it is told now.
  std::shared_ptr<const Failure> told(const c10::StorageImpl* storage) {
    std::lock_guard lock(mutex_);
    auto found = spoiled_.find(storage);
    if (found == spoiled_.end()) return nullptr;
    untold_ = nullptr;
    return found->second.why;
  }

  void tell() {
    std::lock_guard lock(mutex_);
    untold_ = nullptr;
  }

  bool any_spoiled() {
    std::lock_guard lock(mutex_);
    return !spoiled_.empty();
  }

  // The first failure that nobody was told of; and forgets all.
  std::shared_ptr<const Failure> end() {
    std::lock_guard lock(mutex_);
    auto why = std::move(untold_);
    untold_ = nullptr;
    spoiled_.clear();
    spoiling_ = false;
    return why;
  }

  std::atomic<std::uint64_t> by_workers{0}, by_callers{0}, joined{0};  // counted with the lock

 private:
  struct Spoiled {
    c10::Storage held;  // its address must not be given to another
    std::shared_ptr<const Failure> why;
  };

  // This thread runs what was in flight.
  struct Running {
    Running() { running_ = true; }
    ~Running() { running_ = false; }
    const ResultMemory::Here here;
  };
  inline static thread_local bool running_ = false;

  // Operators that are handed over as one.
  struct Bundle {
    std::vector<std::unique_ptr<Call>> calls;  // the first `count`: the others are used again
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
  static constexpr std::size_t kHeavy = std::size_t{1} << 20;  // bytes, forgotten at once

  // To sleep for a lock costs more than anything that is done under it.
  std::unique_lock<std::mutex> locked() {
    for (int k = 0; k < 400; ++k) {
      if (mutex_.try_lock()) return {mutex_, std::adopt_lock};
      spin();
    }
    return std::unique_lock(mutex_);
  }

  // The lock is held: one writer at a time.
  static void count(std::atomic<std::uint64_t>& events) {
    events.store(events.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }

  // The lock is held: what others may see without it.
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

  // A sleeping worker is woken if there is enough to do; a sleeping caller always.
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

  // A caller runs a ready task, or waits until an event is there.
  template <class There>
  void help(std::unique_lock<std::mutex>& lock, const There& there) {
    if (run_one(lock)) return count(by_callers);
    if (look(lock, there)) return;
    ++callers_asleep_;
    done_.wait(lock, there);
    --callers_asleep_;
  }

  // Looks for work, or an event, for a bounded time, without the lock; whether it is there.
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
    // The modes of a thread that has none: whoever helps may be inside of autocast, or a transform.
    const c10::impl::ForceDispatchKeyGuard usual(
        c10::default_included_set - c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView),
        c10::default_excluded_set | c10::autograd_dispatch_keyset_with_ADInplaceOrView |
            c10::DispatchKeySet(kKey));
    const c10::AutoGradMode no_gradients(false);
    const at::RecordFunctionGuard not_again(false);  // a profiler has seen the call
    const unsigned mine = float_modes();
    unsigned modes = mine;
    for (std::size_t k = 0; k < bundle.count; ++k) {
      Call& call = *bundle.calls[k];
      if (call.floats != modes) set_float_modes(modes = call.floats);
      std::shared_ptr<const Failure> before, why;
      if (spoiling_) {
        const auto lock = locked();
        before = blame(call.arguments);
      }
      why = before ? before : run(call);
      if (!why) continue;
      const auto lock = locked();
      spoil(call, why, !before);
    }
    if (modes != mine) set_float_modes(mine);
  }

  // One time in four, at random: to look at the clock takes as long as to check for dependences.
  static bool now_and_then() {
    thread_local std::uint32_t dice = 1;
    dice = 1664525 * dice + 1013904223;
    return dice >> 30 == 0;
  }

  static std::shared_ptr<const Failure> run(Call& call) {
    thread_local Stack stack;  // its memory is used again
    struct Clear {
      ~Clear() { stack.clear(); }
    } const at_the_end;
    stack = call.arguments;  // who runs it is never the last owner of an argument
    try {
      const Diary::Entry written(*call.op);
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
                             "\n  called at " + recurra::told(call.where);
    return std::make_shared<Failure>(Failure{text, retold(error, text)});
  }

  std::shared_ptr<const Failure> blame(const at::Tensor& t) const {
    if (spoiled_.empty() || !t.has_storage()) return nullptr;
    auto found = spoiled_.find(t.storage().unsafeGetStorageImpl());
    return found == spoiled_.end() ? nullptr : found->second.why;
  }

  template <class Values>
  std::shared_ptr<const Failure> blame(const Values& values) const {
    std::shared_ptr<const Failure> why;
    for (const c10::IValue& v : values) {
      if (why) return why;
      if (v.isTensor() && v.toTensor().defined()) why = blame(v.toTensor());
      if (v.isList()) why = blame(v.toListRef());
    }
    return why;
  }

  void spoil(const Call& call, const std::shared_ptr<const Failure>& why, bool first) {
    auto spoil_one = [&](const c10::Storage& storage) {
      spoiled_.insert_or_assign(storage.unsafeGetStorageImpl(), Spoiled{storage, why});
    };
    for (const c10::Storage& storage : call.writes) spoil_one(storage);
    for (const Promise& promise : call.outputs) {
      spoil_one(promise.storage);
      c10::StorageImpl* storage = promise.storage.unsafeGetStorageImpl();
      if (storage->_mutable_data_ptr_no_checks().get()) continue;
      storage->release_data_and_set_meta_custom_data_ptr_error_msg_(why->text);  // for ever
      storage->clear_materializer();
    }
    if (first && !untold_) untold_ = why;
    spoiling_ = true;
  }

  void work() {
    unsigned known = changes_ - 1;
    auto lock = locked();
    bool found = false;
    while (!closing_) {
      // OpenMP counts threads per thread: with another number sums of parts have other last bits.
      if (known != changes_) known = changes_, at::init_num_threads();
      if (found && window_.any_ready()) learn_gently(hand_us_, us_since(ready_since_));
      found = false;
      if (run_one(lock)) {
        count(by_workers);
      } else if (shows(kReady | kClosing)) {
        continue;
      } else if (look(lock, [this] { return shows(kReady | kClosing); })) {
        found = true;  // just now
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
  std::atomic<bool> open_{true}, spoiling_{false};
  std::atomic<unsigned> changes_{0}, retired_{0};
  int workers_asleep_ = 0, callers_asleep_ = 0;
  bool notified_ = false;
  Clock::time_point woken_at_, ready_since_;
  std::uint64_t offered_bytes_ = 0, oldest_bytes_ = 0, budget_ = 0;
  std::uint64_t bytes_before_[kSlots] = {};  // of results of all calls before that in a slot
  double backlog_us_ = 0;                // of what was offered and has not started
  std::atomic<double> wake_us_{50}, hand_us_{5};
  Window window_;
  int size_;
  std::unique_ptr<Bundle> bundles_[kSlots];  // by slot
  std::vector<std::unique_ptr<Bundle>> done_bundles_, spare_;
  std::atomic<int> ran_{0};
  std::unordered_map<const c10::StorageImpl*, Spoiled> spoiled_;
  std::shared_ptr<const Failure> untold_;
  bool closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace recurra
