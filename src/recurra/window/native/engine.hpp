// ATen operators on their way: deferred calls behind a window, run by threads that were lent.
//
// An output that is not computed yet is an ordinary tensor whose storage has no data. Who computes
// it moves the data in; views share the storage, and become valid with it.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/GradMode.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

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

#include "window.hpp"

namespace recurra {

constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
using torch::jit::Stack;

struct Failure {
  std::string text;  // operator, what it said, and the line that called it
};

// A place in a program, told in words only if something fails there.
struct Place {
  const void* code = nullptr;
  int at = 0;
};
inline std::string (*told)(const Place&) = nullptr;

struct Call {
  const c10::OperatorHandle* op = nullptr;
  Stack arguments;
  std::vector<at::Tensor> outputs;    // promised; empty if the call writes in place
  std::vector<at::Tensor> reads, writes;  // of the arguments
  Place where;                        // the line that called it
  std::atomic<double>* us = nullptr;  // what it took is learned here
};

// From the first to the last byte of a tensor, where every storage has numbers of its own: storages
// lie at least 64 bytes apart, so that there is room for 2^22 numbers between two of them.
inline Segment segment_of(const at::Tensor& t) {
  const c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
  const Word base = reinterpret_cast<Word>(storage) << 16;
  Word low = static_cast<Word>(t.storage_offset()) * t.element_size(), reach = 1;
  for (int64_t d = 0; d < t.dim(); ++d) reach += static_cast<Word>((t.size(d) - 1) * t.stride(d));
  Word high = low + reach * t.element_size();
  int shift = 0;
  while ((storage->nbytes() >> shift) > (Word{1} << 20)) ++shift;  // coarser, outwards
  return {base + (low >> shift), base + (high >> shift) + 1};
}

class Engine {
 public:
  Engine(int workers, int size) : window_(size, 1) {
    for (int k = 0; k < workers; ++k) threads_.emplace_back([this] { work(); });
  }

  ~Engine() {
    drain();
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  // Whether nothing that is in flight has to end before `accesses`.
  bool free_for(const Accesses& accesses) {
    std::lock_guard lock(mutex_);
    return window_.waiting() == 0 && window_.upstream_of(accesses) == 0 && spoilt_.empty();
  }

  // The next operator of the program. Runs others while the window is full.
  void offer(Accesses accesses, Call call) {
    std::unique_lock lock(mutex_);
    while (window_.full()) help(lock);
    const Word ticket = *window_.offer(std::move(accesses));
    calls_.emplace(ticket, std::move(call));
    if (window_.any_ready()) changed_.notify_one();
  }

  // Returns when everything is done, or has failed.
  void drain() {
    std::unique_lock lock(mutex_);
    while (!window_.empty()) help(lock);
  }

  // Why a tensor has no value, or nothing.
  std::shared_ptr<const Failure> spoilt(const at::Tensor& t) {
    std::lock_guard lock(mutex_);
    return blame(t);
  }

  // Why the storage of this address has no value; it is told now.
  std::shared_ptr<const Failure> told(const c10::StorageImpl* storage) {
    std::lock_guard lock(mutex_);
    auto found = spoilt_.find(storage);
    if (found == spoilt_.end()) return nullptr;
    untold_ = nullptr;
    return found->second.why;
  }

  void tell() {
    std::lock_guard lock(mutex_);
    untold_ = nullptr;
  }

  bool any_spoilt() {
    std::lock_guard lock(mutex_);
    return !spoilt_.empty();
  }

  // The first failure that nobody was told of; and forgets all.
  std::shared_ptr<const Failure> end() {
    std::lock_guard lock(mutex_);
    auto why = std::move(untold_);
    untold_ = nullptr;
    spoilt_.clear();
    return why;
  }

  std::atomic<std::uint64_t> by_workers{0}, by_callers{0};

 private:
  struct Spoilt {
    c10::Storage held;  // its address must not be given to another
    std::shared_ptr<const Failure> why;
  };

  void help(std::unique_lock<std::mutex>& lock) {
    if (run_one(lock))
      ++by_callers;
    else
      changed_.wait(lock);
  }

  bool run_one(std::unique_lock<std::mutex>& lock) {
    const std::optional<Word> ticket = window_.take();
    if (!ticket) return false;
    Call call = std::move(calls_.extract(*ticket).mapped());
    std::shared_ptr<const Failure> why;
    for (const at::Tensor& t : call.reads) {
      if (!why) why = blame(t);
    }
    const bool first = !why;
    lock.unlock();
    if (!why) why = run(call);
    lock.lock();
    if (why) spoil(call, why, first);
    window_.retire(*ticket);
    changed_.notify_all();
    lock.unlock();
    call = Call();  // the last owner of a tensor frees it without our lock
    lock.lock();
    return true;
  }

  static std::shared_ptr<const Failure> run(Call& call) {
    const c10::impl::ExcludeDispatchKeyGuard without(kKey);
    const at::AutoDispatchBelowADInplaceOrView below;
    const c10::AutoGradMode no_gradients(false);
    try {
      const auto begin = std::chrono::steady_clock::now();
      call.op->callBoxed(&call.arguments);
      for (std::size_t k = 0; k < call.outputs.size(); ++k) {
        keep(call.outputs[k], call.arguments.at(k).toTensor());
      }
      const auto took = std::chrono::steady_clock::now() - begin;
      const double us = std::chrono::duration<double, std::micro>(took).count();
      const double before = call.us->load(std::memory_order_relaxed);
      call.us->store(before + 0.2 * (us - before), std::memory_order_relaxed);
      return nullptr;
    } catch (const c10::Error& error) {
      return failure(call, error.what_without_backtrace());
    } catch (const std::exception& error) {
      return failure(call, error.what());
    }
  }

  // The result becomes the promised tensor's data.
  static void keep(const at::Tensor& promised, const at::Tensor& result) {
    TORCH_CHECK(promised.sizes() == result.sizes() && promised.strides() == result.strides() &&
                    promised.dtype() == result.dtype() && result.storage_offset() == 0,
                "gives another shape than before: its result depends on data");
    c10::StorageImpl* to = promised.storage().unsafeGetStorageImpl();
    c10::StorageImpl* from = result.storage().unsafeGetStorageImpl();
    const bool alone = result.use_count() == 1 && result.storage().use_count() == 1;
    if (alone && from->nbytes() == to->nbytes()) {
      to->set_data_ptr_noswap(std::move(from->_mutable_data_ptr_no_checks()));
    } else {
      to->set_data_ptr_noswap(c10::GetCPUAllocator()->allocate(to->nbytes()));
      promised.copy_(result);
    }
  }

  static std::shared_ptr<const Failure> failure(const Call& call, const std::string& said) {
    const std::string what = "operator " + call.op->schema().name() + " failed: " + said;
    return std::make_shared<Failure>(Failure{what + "\n  called at " + recurra::told(call.where)});
  }

  std::shared_ptr<const Failure> blame(const at::Tensor& t) const {
    if (spoilt_.empty() || !t.has_storage()) return nullptr;
    auto found = spoilt_.find(t.storage().unsafeGetStorageImpl());
    return found == spoilt_.end() ? nullptr : found->second.why;
  }

  void spoil(const Call& call, const std::shared_ptr<const Failure>& why, bool first) {
    for (const auto* list : {&call.outputs, &call.writes}) {
      for (const at::Tensor& t : *list) {
        spoilt_.insert_or_assign(t.storage().unsafeGetStorageImpl(), Spoilt{t.storage(), why});
      }
    }
    if (first && !untold_) untold_ = why;
  }

  void work() {
    // OpenMP counts threads per thread: with another number sums of parts have other last bits.
    at::init_num_threads();
    std::unique_lock lock(mutex_);
    while (!closing_) {
      if (run_one(lock)) {
        ++by_workers;
        continue;
      }
      // The next operator comes within microseconds, or not for long: look a while, then sleep.
      lock.unlock();
      for (int k = 0; k < 200; ++k) std::this_thread::yield();
      lock.lock();
      if (!window_.any_ready() && !closing_) changed_.wait(lock);
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  Window window_;
  std::unordered_map<Word, Call> calls_;
  std::unordered_map<const c10::StorageImpl*, Spoilt> spoilt_;
  std::shared_ptr<const Failure> untold_;
  bool closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace recurra
