// Placements, the supply that is left for copies, and the latency of each instruction.
// The native twin of game_state.py: same rules, same integers, same answers.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace mapping {

using i64 = int64_t;
using Ints = std::vector<i64>;

constexpr i64 kShift = 3;  // 2^3 steps per block of the index of what is placed
constexpr i64 kNowhere = -1;
constexpr i64 kNever = i64{1} << 30;

// The arrays of struct_of_arrays.py, in their order there.
struct Flat {
  Ints size, output, at, tensor, storage, life_end, live_out, demand, evict_by, next_use, gain, bit,
      live_in, grouped, member_at, members, supply, compute, traffic, times, table_at, tables, counts;
  i64 buffers() const { return counts[0]; }
  i64 steps() const { return counts[1]; }
  i64 tensors() const { return counts[2]; }
  i64 storages() const { return counts[3]; }
  i64 fast_size() const { return counts[4]; }
};

// A placement to try; it takes no new memory if `covered` by an earlier placement.
struct Move {
  i64 offset = kNowhere, start = 0, end = -1;
  bool copied = false, covered = false;
  bool ok() const { return offset != kNowhere; }
};

using Used = std::vector<std::pair<i64, i64>>;  // step, time taken

class Board {
 public:
  const Flat& f;
  Ints left, traffic, mask;
  std::vector<uint8_t> crossed, placed;
  std::vector<Move> moves;
  std::vector<Used> used;
  i64 reward = 0;

  explicit Board(const Flat& flat) : f(flat), used(flat.buffers()) { clear(); }

  void clear() {
    left = f.supply;
    traffic = f.traffic;
    mask.assign(f.steps(), 0);
    crossed.assign(f.steps(), 0);
    placed.assign(f.buffers(), 0);
    moves.assign(f.buffers(), Move{});
    for (auto& u : used) u.clear();
    blocks_.resize((f.steps() >> kShift) + 1);
    for (Block& b : blocks_) b.begun.clear(), b.over.clear();
    reward = 0;
  }

  i64 put(i64 i, const Move& m, const Used* again = nullptr) {
    moves[i] = m;
    placed[i] = 1;
    if (!m.covered) {
      const Rect r = rect(i, m);
      blocks_[m.start >> kShift].begun.push_back(r);
      for (i64 k = (m.start >> kShift) + 1; k <= m.end >> kShift; ++k) blocks_[k].over.push_back(r);
    }
    if (m.copied) {
      if (again)
        used[i] = *again;
      else
        demanded(i, m);
      for (auto& [step, amount] : used[i]) left[step] -= amount;
      cross(used[i], 1);
    }
    const i64 t = f.at[i], before = latency(t);
    traffic[t] -= f.gain[i];
    if (f.bit[i] >= 0) mask[t] |= i64{1} << f.bit[i];
    const i64 gained = before - latency(t);
    reward += gained;
    return gained;
  }

  void take(i64 i) {
    const Move& m = moves[i];
    const i64 t = f.at[i], before = latency(t);
    if (!m.covered) {
      drop(blocks_[m.start >> kShift].begun, i);
      for (i64 k = (m.start >> kShift) + 1; k <= m.end >> kShift; ++k) drop(blocks_[k].over, i);
    }
    if (m.copied) {
      for (auto& [step, amount] : used[i]) left[step] += amount;
      cross(used[i], 0);
      used[i].clear();
    }
    placed[i] = 0;
    moves[i] = Move{};
    traffic[t] += f.gain[i];
    if (f.bit[i] >= 0) mask[t] &= ~(i64{1} << f.bit[i]);
    reward += before - latency(t);
  }

  i64 latency(i64 t) const {
    if (f.table_at[t] >= 0) return f.tables[f.table_at[t] + mask[t]];
    return f.times[t] * std::max(f.compute[t], traffic[t]);
  }

  i64 lowest(i64 i, i64 start, i64 end, i64 fixed = kNowhere) {
    const i64 size = f.size[i], storage = f.storage[i];
    const i64 group = f.grouped[storage] ? storage : kNowhere;
    if ((fixed == kNowhere ? 0 : fixed) + size > f.fast_size()) return kNowhere;
    if (fixed != kNowhere) {
      const bool free = each(start, end, [&](const Rect& r) {
        return r.low >= fixed + size || r.high <= fixed || r.storage == group;
      });
      return free ? fixed : kNowhere;
    }
    taken_.clear();
    each(start, end, [&](const Rect& r) {
      if (r.storage != group) taken_.push_back({r.low, r.high});
      return true;
    });
    i64 offset = 0;
    for (size_t count = taken_.size(), before = count + 1; count != before;) {
      before = count;
      count = 0;
      for (size_t q = 0; q < before; ++q) {
        const auto [low, high] = taken_[q];
        if (high <= offset) continue;
        if (low < offset + size) {
          offset = high;
          if (offset + size > f.fast_size()) return kNowhere;
        } else {
          taken_[count++] = taken_[q];
        }
      }
    }
    return offset;
  }

  // The last step, at most `last`, until which buffer i can stay at `offset` from `start` on.
  i64 free_until(i64 i, i64 start, i64 last, i64 offset) const {
    const i64 high = offset + f.size[i], storage = f.storage[i];
    const i64 group = f.grouped[storage] ? storage : kNowhere;
    i64 end = last;
    const auto meets = [&](const Rect& r) {
      return r.low < high && r.high > offset && r.end >= start && r.storage != group;
    };
    for (const Rect& r : blocks_[start >> kShift].over)
      if (meets(r)) return start - 1;
    for (i64 k = start >> kShift; k <= end >> kShift; ++k)
      for (const Rect& r : blocks_[k].begun)
        if (r.start <= end && meets(r)) end = std::max<i64>(r.start, start) - 1;
    return end;
  }

  i64 copy_start(i64 i, i64 after) const {
    const i64 t = f.at[i];
    i64 start = t, time = 0;
    while (time < f.demand[i]) {
      if (start - 1 <= after || (start < t && crossed[start - 1])) return -1;
      time += left[--start];
    }
    return start;
  }

  i64 copy_end(i64 i) const {
    const i64 t = f.at[i];
    i64 end = t, time = 0;
    while (time < f.demand[i]) {
      if (end + 1 > f.evict_by[i] || (end > t && crossed[end])) return -1;
      time += left[++end];
    }
    return end;
  }

  // The bytes in use in the fullest of these steps.
  i64 fullest(i64 start, i64 end) const {
    std::vector<Rect> rects;
    each(start, end, [&](const Rect& r) {
      rects.push_back(r);
      return true;
    });
    std::sort(rects.begin(), rects.end(), [](const Rect& a, const Rect& b) {
      return a.storage < b.storage || (a.storage == b.storage && a.start < b.start);
    });
    Ints change(end - start + 2);
    i64 counted = -1, storage = kNowhere;  // until which step of a group, whose members share
    for (const Rect& r : rects) {
      if (r.storage != storage || !f.grouped[r.storage]) counted = -1;
      storage = r.storage;
      const i64 first = std::max({i64{r.start}, start, counted + 1});
      const i64 last = std::min(i64{r.end}, end);
      if (first > last) continue;
      counted = last;
      change[first - start] += r.high - r.low;
      change[last - start + 1] -= r.high - r.low;
    }
    i64 most = 0, now = 0;
    for (i64 x : change) most = std::max(most, now += x);
    return most;
  }

  // Calls see(start, end, low, high) for the placements in these steps.
  template <class See>
  void during(i64 start, i64 end, See see) const {
    each(std::max<i64>(start, 0), std::min(end, f.steps() - 1), [&](const Rect& r) {
      see(r.start, r.end, r.low, r.high);
      return true;
    });
  }

 private:
  struct Rect {
    int32_t start, end, buffer, storage;
    i64 low, high;
  };
  // Placements that begin in these steps, and earlier ones that last into them.
  struct Block {
    std::vector<Rect> begun, over;
  };
  std::vector<Block> blocks_;
  std::vector<std::pair<i64, i64>> taken_;

  // Returns whether `good` holds for all placements in these steps; each is tested once.
  template <class Good>
  bool each(i64 start, i64 end, Good good) const {
    i64 k = start >> kShift;
    const i64 last = end >> kShift;
    for (const Rect& r : blocks_[k].over)
      if (r.end >= start && !good(r)) return false;
    for (; k <= last; ++k)
      for (const Rect& r : blocks_[k].begun)
        if (r.start <= end && r.end >= start && !good(r)) return false;
    return true;
  }

  static void drop(std::vector<Rect>& some, i64 i) {
    size_t q = some.size();
    while (some[--q].buffer != i) {
    }
    some[q] = some.back();
    some.pop_back();
  }

  Rect rect(i64 i, const Move& m) const {
    return {static_cast<int32_t>(m.start), static_cast<int32_t>(m.end), static_cast<int32_t>(i),
            static_cast<int32_t>(f.storage[i]), m.offset, m.offset + f.size[i]};
  }

  void demanded(i64 i, const Move& m) {
    const i64 t = f.at[i];
    i64 need = f.demand[i];
    used[i].clear();
    auto serve = [&](i64 step) {
      const i64 amount = std::min(left[step], need);
      need -= amount;
      used[i].push_back({step, amount});
    };
    if (f.output[i])
      for (i64 step = t + 1; step <= m.end; ++step) serve(step);
    else
      for (i64 step = t - 1; step >= m.start; --step) serve(step);
  }

  void cross(const Used& u, uint8_t value) {
    if (u.empty()) return;
    const i64 a = std::min(u.front().first, u.back().first);
    const i64 b = std::max(u.front().first, u.back().first);
    for (i64 step = a; step < b; ++step) crossed[step] = value;
  }
};

}  // namespace mapping
