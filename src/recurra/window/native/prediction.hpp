// What the window would gain, from what operators have taken: list scheduling, as they come.
#pragma once

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "engine.hpp"

namespace recurra {

// Predicts, by list scheduling of what was learned, what the window gains.
struct Prediction {
  int seen = 0;
  double sum = 0;
  std::vector<double> free;
  std::unordered_map<const c10::StorageImpl*, double> ready;

  // One more operator, of these tensors; when it would end.
  double launch(c10::ArrayRef<const at::Tensor*> reads, c10::ArrayRef<const at::Tensor*> writes,
                double us, int threads, double overhead) {
    if (free.empty()) free.assign(static_cast<std::size_t>(threads), 0.0);
    double start = overhead * ++seen;
    for (const auto* list : {&reads, &writes}) {
      for (const at::Tensor* t : *list) {
        auto found = ready.find(t->storage().unsafeGetStorageImpl());
        if (found != ready.end()) start = std::max(start, found->second);
      }
    }
    auto thread = std::min_element(free.begin(), free.end());
    *thread = std::max(start, *thread) + us + overhead;
    sum += us;
    return *thread;
  }

  // A tensor that an operator makes, or writes, is there at that time.
  void made(const at::Tensor& t, double end) {
    if (t.defined() && t.has_storage()) ready[t.storage().unsafeGetStorageImpl()] = end;
  }

  double gain() const {
    return free.empty() ? 0 : sum / *std::max_element(free.begin(), free.end());
  }
};

}  // namespace recurra
