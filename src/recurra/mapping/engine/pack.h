// Packs items with fixed lives into one memory, or finds that it cannot: branch and bound over the
// skyline. A valley is a run of steps of one height between higher ones. Either some item rests on
// it, and the leftmost such item decides: to its left nothing does; or nothing rests on it, and it
// is raised to the lower of its neighbours. The valley with the fewest possibilities comes first.
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
  Packer(i64 count, i64 steps, i64 limit, const i64* start, const i64* end, const i64* size,
         const i64* rank)
      : offset(count, -1), start_(start), end_(end), size_(size), rank_(rank), limit_(limit),
        height_(steps), load_(steps), top_(steps), at_(count) {
    for (i64 i = 0; i < count; ++i)
      for (i64 t = start[i]; t <= end[i]; ++t) load_[t] += size[i];
  }

  std::vector<i64> offset;
  i64 nodes = 0;

  Result pack(i64 most_nodes) {
    most_ = most_nodes;
    std::vector<i64> items(offset.size());
    for (size_t i = 0; i < items.size(); ++i) items[rank_[i]] = static_cast<i64>(i);
    return visit(items);
  }

 private:
  struct Change {
    i64 item, first;  // -1: heights only
    std::vector<i64> heights;
  };
  struct Valley {
    i64 first, last, height, left, right;
    std::vector<i64> items;  // that may be the leftmost to rest on it
    bool raised = false;     // may nothing rest on it?
  };
  const i64 *start_, *end_, *size_, *rank_;
  i64 limit_, most_ = 0;
  std::vector<i64> height_, load_, top_, at_, order_;
  std::vector<Change> trail_;

  Result visit(const std::vector<i64>& items) {
    if (items.empty()) return kYes;
    if (++nodes > most_) return kUnknown;
    const size_t mark = trail_.size();
    const auto parts = apart(items);
    if (parts.size() == 1) return search(items);
    for (const auto& part : parts) {
      const Result r = visit(part);
      if (r != kYes) {
        undo(mark);
        return r;
      }
    }
    return kYes;
  }

  Result search(const std::vector<i64>& items) {
    if (!possible(items)) return kNo;
    const Valley v = narrowest(items);
    const size_t mark = trail_.size();
    std::vector<i64> rest(items.size() - 1);
    for (i64 i : v.items) {
      raise(v.first, start_[i] - 1, std::min(v.left, v.height + size_[i]));
      place(i, v.height);
      std::copy_if(items.begin(), items.end(), rest.begin(), [i](i64 j) { return j != i; });
      const Result r = visit(rest);
      if (r != kNo) return r;
      undo(mark);
    }
    if (!v.raised) return kNo;
    raise(v.first, v.last, std::min(v.left, v.right));
    const Result r = visit(items);
    if (r == kNo) undo(mark);
    return r;
  }

  // Items whose lives do not meet, not even over others, are packed one set after another.
  std::vector<std::vector<i64>> apart(const std::vector<i64>& items) const {
    std::vector<i64> order(items);
    std::sort(order.begin(), order.end(), [&](i64 a, i64 b) {
      return start_[a] < start_[b] || (start_[a] == start_[b] && a < b);
    });
    std::vector<std::vector<i64>> parts;
    i64 until = -1;
    for (i64 i : order) {
      if (start_[i] > until) parts.emplace_back();
      parts.back().push_back(i);
      until = std::max(until, end_[i]);
    }
    for (auto& p : parts)
      std::sort(p.begin(), p.end(), [&](i64 a, i64 b) { return rank_[a] < rank_[b]; });
    return parts;
  }

  // Does what is left fit over what is there? At each step, one above the other in order of the
  // lowest offsets that are left to them.
  bool possible(const std::vector<i64>& items) {
    for (i64 i : items) at_[i] = *std::max_element(&height_[start_[i]], &height_[end_[i]] + 1);
    order_.assign(items.begin(), items.end());
    std::sort(order_.begin(), order_.end(), [&](i64 a, i64 b) { return at_[a] < at_[b]; });
    for (i64 i : items) std::fill(&top_[start_[i]], &top_[end_[i]] + 1, 0);
    for (i64 i : order_)
      for (i64 t = start_[i]; t <= end_[i]; ++t) {
        top_[t] = std::max(top_[t], at_[i]) + size_[i];
        if (top_[t] > limit_) return false;
      }
    return true;
  }

  // The valley with the fewest possibilities; of equals the lowest.
  Valley narrowest(const std::vector<i64>& items) const {
    i64 from = start_[items[0]], until = end_[items[0]];
    for (i64 i : items) from = std::min(from, start_[i]), until = std::max(until, end_[i]);
    Valley best;
    i64 fewest = INT64_MAX;
    for (i64 a = from; a <= until;) {
      i64 b = a;
      while (b < until && height_[b + 1] == height_[a]) ++b;
      Valley v{a, b, height_[a], a > from ? height_[a - 1] : limit_,
               b < until ? height_[b + 1] : limit_, {}, false};
      if (v.left > v.height && v.right > v.height) {
        for (i64 i : items)
          if (start_[i] >= a && end_[i] <= b &&
              wasted(items, a, start_[i] - 1, v.height, std::min(v.left, v.height + size_[i])))
            v.items.push_back(i);
        v.raised = wasted(items, a, b, v.height, std::min(v.left, v.right));
        const i64 count = static_cast<i64>(v.items.size()) + v.raised;
        if (count < fewest || (count == fewest && v.height < best.height)) {
          fewest = count;
          best = std::move(v);
        }
      }
      a = b + 1;
    }
    return best;
  }

  // May the room over these steps, up to `high`, stay empty? Not if it is needed, nor if an item
  // fits into it: what can be moved down need not be looked at.
  bool wasted(const std::vector<i64>& items, i64 first, i64 last, i64 low, i64 high) const {
    for (i64 t = first; t <= last; ++t)
      if (high + load_[t] > limit_) return false;
    for (i64 i : items)
      if (start_[i] >= first && end_[i] <= last && low + size_[i] <= high) return false;
    return true;
  }

  void raise(i64 first, i64 last, i64 height) {
    if (first > last) return;
    trail_.push_back({-1, first, {&height_[first], &height_[last] + 1}});
    std::fill(&height_[first], &height_[last] + 1, height);
  }

  void place(i64 i, i64 at) {
    raise(start_[i], end_[i], at + size_[i]);
    trail_.back().item = i;
    offset[i] = at;
    for (i64 t = start_[i]; t <= end_[i]; ++t) load_[t] -= size_[i];
  }

  void undo(size_t mark) {
    while (trail_.size() > mark) {
      const Change& c = trail_.back();
      std::copy(c.heights.begin(), c.heights.end(), &height_[c.first]);
      if (c.item >= 0) {
        offset[c.item] = -1;
        for (i64 t = start_[c.item]; t <= end_[c.item]; ++t) load_[t] += size_[c.item];
      }
      trail_.pop_back();
    }
  }
};

}  // namespace mapping
