// An upper bound of the window's gain, from the durations of operators and of the program between.
#pragma once

#include <algorithm>
#include <unordered_map>

#include "engine.hpp"

namespace recurra {

// No schedule is shorter than the longest path, nor than all work divided by the threads.
class Prediction {
 public:
  // Adds an operator of these tensors, `host` µs after the last one; returns its start.
  double launch(c10::ArrayRef<const at::Tensor*> reads, c10::ArrayRef<const at::Tensor*> writes,
                double host, double overhead) {
    program_ += host + overhead;
    in_order_ += host;
    all_ += host + overhead;
    return when(when(program_, reads), writes);
  }

  // Adds the duration of an operator; returns its end.
  double ran(double start, double us) {
    longest_ = std::max({longest_, program_, start + us});
    in_order_ += us;
    all_ += us;
    return start + us;
  }

  // Sets the time at which a tensor is computed.
  void made(const at::Tensor& t, double end) {
    if (t.defined() && t.has_storage()) ready_[t.storage().unsafeGetStorageImpl()] = end;
  }

  // Lets the program wait for everything, or for these.
  void wait() { program_ = longest_; }
  void wait_for(c10::ArrayRef<const at::Tensor*> reads) { program_ = when(program_, reads); }

  double gain(int threads) const {
    return all_ ? in_order_ / std::max(longest_, all_ / threads) : 0;
  }

 private:
  double when(double start, c10::ArrayRef<const at::Tensor*> tensors) const {
    for (const at::Tensor* t : tensors) {
      auto found = ready_.find(t->storage().unsafeGetStorageImpl());
      if (found != ready_.end()) start = std::max(start, found->second);
    }
    return start;
  }

  double program_ = 0, longest_ = 0, in_order_ = 0, all_ = 0;  // µs
  std::unordered_map<const c10::StorageImpl*, double> ready_;
};

}  // namespace recurra
