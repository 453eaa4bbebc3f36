// What the window would gain at most, from what operators and the program between them have taken.
#pragma once

#include <algorithm>
#include <unordered_map>

#include "engine.hpp"

namespace recurra {

// No schedule is shorter than the longest path, nor than all that there is to do by the threads.
class Prediction {
 public:
  // One more operator, of these tensors, `host` µs after the last one; when it would begin.
  double launch(c10::ArrayRef<const at::Tensor*> reads, c10::ArrayRef<const at::Tensor*> writes,
                double host, double overhead) {
    program_ += host + overhead;
    in_order_ += host;
    all_ += host + overhead;
    double start = program_;
    for (const auto* list : {&reads, &writes}) {
      for (const at::Tensor* t : *list) {
        auto found = ready_.find(t->storage().unsafeGetStorageImpl());
        if (found != ready_.end()) start = std::max(start, found->second);
      }
    }
    return start;
  }

  // It took so long; when it would end.
  double ran(double start, double us) {
    longest_ = std::max({longest_, program_, start + us});
    in_order_ += us;
    all_ += us;
    return start + us;
  }

  // A tensor that an operator makes, or writes, is there at that time.
  void made(const at::Tensor& t, double end) {
    if (t.defined() && t.has_storage()) ready_[t.storage().unsafeGetStorageImpl()] = end;
  }

  // The program waits for everything before it goes on.
  void wait() { program_ = longest_; }

  double gain(int threads) const {
    return all_ ? in_order_ / std::max(longest_, all_ / threads) : 0;
  }

 private:
  double program_ = 0, longest_ = 0, in_order_ = 0, all_ = 0;  // µs
  std::unordered_map<const c10::StorageImpl*, double> ready_;
};

}  // namespace recurra
