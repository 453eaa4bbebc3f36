// Packs items with fixed lives into one memory, or finds that it cannot: branch and bound over the
// packings in which everything is as low as it goes. Items are placed in order of their offsets, of
// equal ones by rank, each on top of what its life meets; every packing can be moved down to one of
// these (Moffitt, "MiniMalloc", ASPLOS 2023). storage/exact_packing.py is the plain twin.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace mapping {

using i64 = int64_t;

class Packer {
 public:
  enum Result { kNo = 0, kYes = 1, kUnknown = 2 };

  // Arrays [count]; steps `start..end`, both within. `rank`: a permutation; lower is tried first.
  // `by_load`: of each part first what lives in its fullest step, of those alike by rank.
  Packer(i64 count, i64 steps, i64 limit, const i64* start, const i64* end, const i64* size,
         const i64* rank, bool by_load)
      : offset(count, -1), start_(start, start + count), end_(end, end + count), size_(size),
        given_(rank), limit_(limit), by_load_(by_load), rank_(rank, rank + count), least_(count), meets_(count), load_(count) {
    // A step in which nothing ends holds no more than the next one: it need not be looked at.
    std::vector<i64> step(steps + 1);
    for (i64 i = 0; i < count; ++i) step[end[i] + 1] = 1;
    for (i64 t = 0; t < steps; ++t) step[t + 1] += step[t];
    across_.resize(step[steps]), top_.resize(step[steps]);
    for (i64 i = 0; i < count; ++i) {
      start_[i] = step[start[i]], end_[i] = step[end[i]];
      for (i64 t = start_[i]; t < end_[i]; ++t) ++across_[t];
    }
    for (i64 i = 0; i < count; ++i)
      for (i64 j = 0; j < count; ++j)
        if (j != i && start_[j] <= end_[i] && start_[i] <= end_[j]) meets_[i].push_back(j);
    for (auto& meets : meets_)
      std::sort(meets.begin(), meets.end(), [&](i64 a, i64 b) { return size[a] < size[b]; });
  }

  std::vector<i64> offset;
  i64 nodes = 0;

  Result pack(i64 most_nodes) {
    most_ = most_nodes;
    std::vector<i64> items(offset.size());
    for (size_t i = 0; i < items.size(); ++i) items[i] = static_cast<i64>(i);
    return parts(items, {0, -1, -1});
  }

 private:
  struct Next {  // an item, and the lowest offset that is left to it
    i64 least, rank, item;
    bool operator<(const Next& o) const {
      return least < o.least || (least == o.least && rank < o.rank);
    }
  };
  struct Lifted {
    i64 item, before;
  };
  std::vector<i64> start_, end_;
  const i64 *size_, *given_;
  i64 limit_, most_ = 0, fullest_ = 0;
  bool by_load_;
  std::vector<i64> rank_;
  std::vector<i64> least_;   // [count] the lowest offset on top of what is placed
  std::vector<i64> across_;  // [steps] items that are left and alive in this step and the next
  std::vector<i64> top_;     // [steps]
  std::vector<std::vector<i64>> meets_;
  std::vector<i64> load_;  // [count] of the fullest step
  std::vector<Lifted> trail_;
  std::vector<Next> left_;

  // Sets of items whose lives do not meet, not even over others, one after the other. Each is ranked
  // anew, unless they are one set still.
  Result parts(const std::vector<i64>& items, const Next& after) {
    std::vector<i64> order(items), part;
    std::sort(order.begin(), order.end(), [&](i64 a, i64 b) {
      return start_[a] < start_[b] || (start_[a] == start_[b] && a < b);
    });
    for (size_t k = 0; k < order.size();) {
      i64 until = end_[order[k]];
      part.clear();
      for (; k < order.size() && start_[order[k]] <= until; ++k) {
        part.push_back(order[k]);
        until = std::max(until, end_[order[k]]);
      }
      if (part.size() == items.size() && nodes) return search(items, after);
      const auto before = ranked(part);
      const Result r = search(part, {after.least, -1, -1});
      if (r == kYes) continue;
      for (size_t n = 0; n < part.size(); ++n) rank_[part[n]] = before[n];
      return r;  // who called takes back what was placed
    }
    return kYes;
  }

  // Ranks the items of a part by the fullest step of each, if asked for; what they had before.
  std::vector<i64> ranked(const std::vector<i64>& part) {
    std::vector<i64> before, order(part);
    for (i64 i : part) before.push_back(rank_[i]);
    if (!by_load_) return before;
    i64 first = INT64_MAX, last = 0;
    for (i64 i : part) first = std::min(first, start_[i]), last = std::max(last, end_[i]);
    std::fill(&top_[first], &top_[last] + 1, 0);
    for (i64 i : part)
      for (i64 t = start_[i]; t <= end_[i]; ++t) top_[t] += size_[i];
    for (i64 i : part) load_[i] = *std::max_element(&top_[start_[i]], &top_[end_[i]] + 1);
    std::sort(order.begin(), order.end(), [&](i64 a, i64 b) {
      return load_[a] > load_[b] || (load_[a] == load_[b] && given_[a] < given_[b]);
    });
    for (size_t k = 0; k < order.size(); ++k) rank_[order[k]] = static_cast<i64>(k);
    return before;
  }

  // Places what is left of a part; nothing goes before `after`.
  Result search(const std::vector<i64>& items, const Next& after) {
    if (++nodes > most_) return kUnknown;
    std::vector<Next> order;
    order.reserve(items.size());
    i64 roof = INT64_MAX;  // an item at or above it leaves a gap into which another one fits
    for (i64 i : items) {
      order.push_back({least_[i], rank_[i], i});
      roof = std::min(roof, least_[i] + size_[i]);
    }
    std::sort(order.begin(), order.end());
    std::vector<i64> rest(items.size() - 1);
    for (const Next& next : order) {
      if (next < after) continue;
      if (next.least >= roof) break;
      const i64 i = next.item;
      std::copy_if(items.begin(), items.end(), rest.begin(), [i](i64 j) { return j != i; });
      const size_t mark = trail_.size();
      const bool covered = place(next);
      Result r = kNo;
      if (possible(rest, next))
        r = rest.empty() || split(i) ? parts(rest, next) : search(rest, next);
      if (r == kYes) return r;
      for (i64 j : rest)
        if (offset[j] >= 0) remove(j);
      remove(i);
      for (; trail_.size() > mark; trail_.pop_back()) least_[trail_.back().item] = trail_.back().before;
      if (r == kUnknown || !covered) return r;  // where nothing is above, no other place is better
    }
    return kNo;
  }

  // Is anything left that will lie above it?
  bool place(const Next& next) {
    const i64 i = next.item, high = next.least + size_[i];
    offset[i] = next.least;
    for (i64 t = start_[i]; t < end_[i]; ++t) --across_[t];
    bool covered = false;
    for (i64 j : meets_[i]) {
      if (offset[j] >= 0) continue;
      covered = true;
      if (least_[j] >= high) continue;
      trail_.push_back({j, least_[j]});
      least_[j] = high;
    }
    return covered;
  }

  void remove(i64 i) {
    offset[i] = -1;
    for (i64 t = start_[i]; t < end_[i]; ++t) ++across_[t];
  }

  // Does what is left fall apart, now that i is placed?
  bool split(i64 i) const {
    return std::find(&across_[start_[i]], &across_[end_[i]], 0) != &across_[end_[i]];
  }

  // Does what is left fit? At each step, one above the other in order of the lowest offsets.
  bool possible(const std::vector<i64>& rest, const Next& placed) {
    // First where it did not fit the last time: mostly it is there again.
    if (!lowest(rest, placed, fullest_, fullest_)) return false;
    i64 top = 0;
    for (const Next& x : left_) top = std::max(top, x.least) + size_[x.item];
    if (top > limit_ || !lowest(rest, placed, 0, INT64_MAX)) return false;
    for (const Next& x : left_) std::fill(&top_[start_[x.item]], &top_[end_[x.item]] + 1, 0);
    for (const Next& x : left_)
      for (i64 t = start_[x.item]; t <= end_[x.item]; ++t) {
        top_[t] = std::max(top_[t], x.least) + size_[x.item];
        if (top_[t] > limit_) {
          fullest_ = t;
          return false;
        }
      }
    return true;
  }

  // Lowest offsets of what lives in these steps, in order; false: one of them does not fit.
  bool lowest(const std::vector<i64>& items, const Next& placed, i64 first, i64 last) {
    left_.clear();
    for (i64 i : items) {
      if (start_[i] > last || end_[i] < first) continue;
      const i64 at = lowest(i, placed);
      if (at > limit_ - size_[i]) return false;
      left_.push_back({at, rank_[i], i});
    }
    std::sort(left_.begin(), left_.end());
    return true;
  }

  // Who was passed over has to be lifted by something that is still to come.
  i64 lowest(i64 i, const Next& placed) const {
    if (!(Next{least_[i], rank_[i], i} < placed)) return least_[i];
    i64 at = INT64_MAX;
    for (i64 j : meets_[i]) {  // the smallest first: what follows cannot be lower than this
      if (placed.least + size_[j] >= at) break;
      if (offset[j] < 0) at = std::min(at, std::max(least_[j], placed.least) + size_[j]);
    }
    return at;
  }
};

}  // namespace mapping
