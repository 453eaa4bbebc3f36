// Order-free mapping and its ruin-and-recreate rounds. The native twin of order_free_placer.py.
#pragma once
#include "board.h"

namespace mapping {

struct PlacementOdds {
  uint64_t seed = 0;
  i64 skip = 0, copy = 0, short_ = 0;
};

inline i64 draw(uint64_t seed, i64 i, i64 what) {
  uint64_t z = seed + 0x9E3779B97F4A7C15ull * static_cast<uint64_t>(4 * i + what + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return static_cast<i64>((z ^ (z >> 31)) >> 32);
}

// Failed placements: while placements are only added, nothing as large fits into as many steps.
class Refusals {
 public:
  void clear() { known_.clear(); }

  bool covers(i64 start, i64 end, i64 size) {
    for (size_t k = 0; k < known_.size(); ++k) {
      const Refusal& r = known_[k];
      if (r.start < start || r.end > end || r.size > size) continue;
      std::swap(known_[k], known_[k / 2]);  // frequent ones move to the front
      return true;
    }
    return false;
  }

  void add(i64 start, i64 end, i64 size) {
    size_t count = 0;
    for (const Refusal& r : known_)
      if (r.start > start || r.end < end || r.size < size) known_[count++] = r;
    known_.resize(count);
    known_.push_back({start, end, size});
  }

 private:
  struct Refusal {
    i64 start, end, size;
  };
  std::vector<Refusal> known_;
};

class Arranger {
 public:
  const Flat& f;
  Board board;
  i64 best = 0;
  std::vector<Move> best_moves;

  explicit Arranger(const Flat& flat)
      : f(flat), board(flat), best_moves(flat.buffers()), in_round_(flat.storages()) {}

  i64 arrange_repacking(const i64* order, i64 count, i64 most) {
    board.clear();
    refusals_.clear();
    adding_ = true;
    for (i64 k = 0; k < count; ++k) {
      place(order[k], PlacementOdds{});
      if (!most || !cramped()) continue;
      --most;
      remove(order[k]);
      repack();
      refusals_.clear();
      place(order[k], PlacementOdds{});
    }
    adding_ = false;
    return note();
  }

  // Assigns new offsets, to the longest-lived pieces first, of these to the largest. Returns false,
  // and changes nothing, if not everything fits.
  bool repack() {
    const std::vector<Move> moves = board.moves;
    const std::vector<Used> used = board.used;
    const std::vector<uint8_t> placed = board.placed;
    const std::vector<Piece> pieces = this->pieces();
    board.clear();
    for (const Piece& p : pieces) {
      const i64 offset = board.lowest(p.buffers[0], p.start, p.end);
      if (offset == kNowhere) {
        board.clear();
        for (i64 i = 0; i < f.buffers(); ++i)
          if (placed[i]) board.put(i, moves[i], &used[i]);
        return false;
      }
      for (i64 i : p.buffers) {
        Move m = moves[i];
        m.offset = offset;
        board.put(i, m, &used[i]);
      }
    }
    return true;
  }

  i64 note() {
    if (board.reward > best) {
      best = board.reward;
      best_moves = board.moves;
    }
    return board.reward;
  }

  // `order` [count, width]; see order_free_placer.Rounds.
  i64 improve(i64 count, i64 width, const i64* order, const i64* seed, const i64* skip,
              const i64* copy, const i64* short_, const i64* bear) {
    i64 kept = 0;
    for (i64 k = 0; k < count; ++k) {
      round_.clear();
      for (i64 q = 0; q < width; ++q) {
        const i64 s = order[k * width + q];
        if (s < 0 || in_round_[s]) continue;
        in_round_[s] = 1;
        round_.push_back(s);
      }
      for (i64 s : round_) in_round_[s] = 0;
      const uint64_t bits = static_cast<uint64_t>(seed[k]);
      kept += round(PlacementOdds{bits, skip[k], copy[k], short_[k]}, bear[k]);
    }
    return kept;
  }

  void place(i64 s, const PlacementOdds& w) {
    const bool grouped = f.grouped[s];
    i64 offset = kNowhere, tensor = -1, covered = -1, slow = kNever;
    missed_.clear();
    for (i64 k = f.member_at[s]; k < f.member_at[s + 1]; ++k) {
      const i64 i = f.members[k], x = f.tensor[i], t = f.at[i];
      if (x != tensor) {
        tensor = x;
        covered = -1;
        slow = f.live_in[x] ? -1 : kNever;
        free_ = Free{};
      }
      const i64 fixed = grouped ? offset : kNowhere;
      Move m;
      if (covered >= t)
        m = Move{offset, t, t, false, true};
      else if (!grouped && draw(w.seed, i, 0) < w.skip)
        m = Move{};
      else if (f.output[i])
        m = output(i, fixed, !grouped && draw(w.seed, i, 1) < w.short_);
      else
        m = operand(i, fixed, offset, covered, slow, w);
      if (m.ok()) {
        board.put(i, m);
        offset = m.offset;
        covered = std::max(covered, m.end);
      } else if (grouped) {
        remove(s);
        return;
      }
      if (f.output[i]) slow = !m.ok() ? t : m.copied ? m.end : kNever;
    }
  }

 private:
  // The last step until which the tensor's addresses are certainly free; `exactly`: not longer.
  struct Free {
    i64 until = -1;
    bool exactly = false;
  };
  struct Old {
    i64 buffer;
    Move move;
    Used used;
  };
  // Buffers with one offset: a group, or a tensor from its output or copy until it leaves.
  struct Piece {
    i64 start, end;
    std::vector<i64> buffers;
  };
  struct Missed {  // a failed placement
    i64 buffer, start, end;
  };
  std::vector<Missed> missed_;
  std::vector<i64> round_;
  std::vector<uint8_t> in_round_;
  std::vector<Old> old_;
  Refusals refusals_;
  Free free_;
  bool adding_ = false;  // placements are only added; removing a failed group does not count

  // The pieces in the order of `repack`.
  std::vector<Piece> pieces() const {
    std::vector<Piece> found;
    for (i64 s = 0; s < f.storages(); ++s) {
      bool first = true;
      for (i64 k = f.member_at[s]; k < f.member_at[s + 1]; ++k) {
        const i64 i = f.members[k];
        if (!board.placed[i]) continue;
        const Move& m = board.moves[i];
        if (first || (!f.grouped[s] && (f.output[i] || m.copied)))
          found.push_back({m.start, m.end, {}});
        first = false;
        Piece& p = found.back();
        p.start = std::min(p.start, m.start);
        p.end = std::max(p.end, m.end);
        p.buffers.push_back(i);
      }
    }
    std::stable_sort(found.begin(), found.end(), [&](const Piece& a, const Piece& b) {
      const i64 x = a.end - a.start, y = b.end - b.start;
      return x > y || (x == y && f.size[a.buffers[0]] > f.size[b.buffers[0]]);
    });
    return found;
  }

  // Returns whether only fragmentation keeps a buffer of the last storage out.
  bool cramped() {
    for (const Missed& m : missed_)
      if (!board.placed[m.buffer] &&
          board.fullest(m.start, m.end) + f.size[m.buffer] <= f.fast_size())
        return true;
    return false;
  }

  bool round(const PlacementOdds& w, i64 bear) {
    const i64 before = board.reward;
    size_t n = 0;
    for (i64 s : round_)
      for (i64 k = f.member_at[s]; k < f.member_at[s + 1]; ++k) {
        const i64 i = f.members[k];
        if (!board.placed[i]) continue;
        if (n == old_.size()) old_.emplace_back();
        old_[n].buffer = i;
        old_[n].move = board.moves[i];
        old_[n].used = board.used[i];
        ++n;
      }
    for (i64 s : round_) remove(s);
    for (i64 s : round_) place(s, w);
    if (board.reward >= before - bear) {
      note();
      return true;
    }
    for (i64 s : round_) remove(s);
    for (size_t k = 0; k < n; ++k) board.put(old_[k].buffer, old_[k].move, &old_[k].used);
    return false;
  }

  void remove(i64 s) {
    for (i64 k = f.member_at[s]; k < f.member_at[s + 1]; ++k)
      if (board.placed[f.members[k]]) board.take(f.members[k]);
  }

  Move output(i64 i, i64 fixed, bool brief) {
    const i64 t = f.at[i];
    if (!f.live_out[i] && !brief) {
      const i64 offset = room(i, t, f.life_end[i], fixed);
      if (offset != kNowhere) {
        free_ = Free{};
        return Move{offset, t, f.life_end[i], false, false};
      }
    }
    const i64 end = board.copy_end(i);
    return end < 0 ? Move{} : copied(i, t, end, fixed);
  }

  Move operand(i64 i, i64 fixed, i64 offset, i64 covered, i64 slow, const PlacementOdds& w) {
    const i64 t = f.at[i];
    const bool copy_first = draw(w.seed, i, 2) < w.copy;
    for (bool copy : {copy_first, !copy_first}) {
      if (copy && slow < t) {
        const i64 start = board.copy_start(i, slow);
        if (start < 0) continue;
        const Move m = copied(i, start, t, fixed);
        if (m.ok()) return m;
      } else if (!copy && covered >= 0) {
        if (stays(i, covered + 1, t, offset))
          return Move{offset, covered + 1, t, false, false};
      }
    }
    return Move{};
  }

  // Returns whether the tensor's addresses are still free, which later uses share.
  bool stays(i64 i, i64 start, i64 t, i64 offset) {
    if (t > free_.until && !free_.exactly) {
      const i64 last = f.at[f.members[f.member_at[f.storage[i] + 1] - 1]];
      free_ = Free{board.free_until(i, start, std::max(t, last), offset), true};
    }
    if (t > free_.until) missed_.push_back({i, start, t});
    return t <= free_.until;
  }

  i64 room(i64 i, i64 start, i64 end, i64 fixed) {
    const i64 offset = asked(i, start, end, fixed);
    if (offset == kNowhere) missed_.push_back({i, start, end});
    return offset;
  }

  // `board.lowest`. A failure of a group is a failure of any buffer, but not the reverse.
  i64 asked(i64 i, i64 start, i64 end, i64 fixed) {
    if (!adding_ || fixed != kNowhere) return board.lowest(i, start, end, fixed);
    if (!f.grouped[f.storage[i]] && refusals_.covers(start, end, f.size[i])) return kNowhere;
    const i64 offset = board.lowest(i, start, end);
    if (offset == kNowhere) refusals_.add(start, end, f.size[i]);
    return offset;
  }

  // The move by which a copy could stay until the next use, if there is one.
  Move copied(i64 i, i64 start, i64 end, i64 fixed) {
    i64 offset = kNowhere;
    Free free;
    if (fixed == kNowhere && f.next_use[i] > end) {
      offset = room(i, start, f.next_use[i], kNowhere);
      if (offset != kNowhere) free.until = f.next_use[i];
    }
    if (offset == kNowhere) offset = room(i, start, end, fixed);
    if (offset != kNowhere) free_ = free;
    return Move{offset, start, end, true, false};
  }
};

}  // namespace mapping
