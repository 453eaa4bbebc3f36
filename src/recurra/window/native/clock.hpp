// Table II of the paper: the time to compare one task with a full window, by our columns, and by
// Algorithm 1 on a list of segments per task, with read after write added.
#pragma once

#include <chrono>
#include <random>

#include "window.hpp"

namespace recurra {

struct Timed {
  double ns;  // per task, the best of the repetitions
  Word bits;  // number of upstream tasks found, the same by both ways
};

class CheckClock {
 public:
  // Tasks of `reads` + `writes` segments at random addresses, against a window of `size` of them.
  CheckClock(int size, int reads, int writes, int tasks) : window_(size, 1) {
    auto some = [&](int count) {
      std::vector<Segment> list;
      for (int k = 0; k < count; ++k) {
        const Word start = (rng_() % 4096) * 65536;
        list.push_back({start, start + (1 + rng_() % 64) * 1024});
      }
      return list;
    };
    for (int k = 0; k < size; ++k) {
      held_.push_back({some(reads), some(writes)});
      window_.offer(held_.back());
    }
    for (int k = 0; k < tasks; ++k) incoming_.push_back({some(reads), some(writes)});
  }

  Timed columns(int repeat) const {
    return time(repeat, [&](const Accesses& a) { return window_.upstream_of(a); });
  }

  Timed algorithm1(int repeat) const {
    return time(repeat, [&](const Accesses& a) {
      Word found = 0;
      for (std::size_t k = 0; k < held_.size(); ++k) {
        std::vector<Segment> both(held_[k].writes);
        both.insert(both.end(), held_[k].reads.begin(), held_[k].reads.end());
        const bool dependent = meet(both, a.writes) | meet(held_[k].writes, a.reads);
        found |= Word{dependent} << k;
      }
      return found;
    });
  }

 private:
  static bool meet(const std::vector<Segment>& some, const std::vector<Segment>& others) {
    bool dependent = false;
    for (const Segment& s : some) {
      for (const Segment& o : others) {
        if (s.start < o.stop && s.stop > o.start) dependent = true;
      }
    }
    return dependent;
  }

  template <class Check>
  Timed time(int repeat, Check&& check) const {
    Timed best{1e30, 0};
    for (int r = 0; r < repeat; ++r) {
      Word bits = 0;
      const auto begin = std::chrono::steady_clock::now();
      for (const Accesses& a : incoming_) bits += std::popcount(check(a));
      const auto end = std::chrono::steady_clock::now();
      const double ns = std::chrono::duration<double, std::nano>(end - begin).count();
      best = {std::min(best.ns, ns / static_cast<double>(incoming_.size())), bits};
    }
    return best;
  }

  std::mt19937_64 rng_{1};
  Window window_;
  std::vector<Accesses> held_, incoming_;
};

}  // namespace recurra
