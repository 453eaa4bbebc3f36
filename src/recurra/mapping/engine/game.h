// MMapGame: buffers in order of time, each Copy, NoCopy or Drop. The native twin of game.py.
#pragma once
#include "board.h"

namespace mapping {

enum Action { kCopy, kNoCopy, kDrop };

constexpr Action kPreferences[4][3] = {{kCopy, kNoCopy, kDrop},
                                       {kNoCopy, kCopy, kDrop},
                                       {kDrop, kNoCopy, kCopy},
                                       {kNoCopy, kDrop, kCopy}};

class Game {
 public:
  const Flat& f;
  Board board;
  i64 index = 0;

  explicit Game(const Flat& flat) : f(flat), board(flat), last_(flat.storages()) {
    for (i64 i = 0; i < f.buffers(); ++i) last_[f.storage[i]] = i;
    reset();
  }

  void reset() {
    board.clear();
    index = open_ = 0;
    forced_.assign(f.storages(), 0);
    covered_.assign(f.tensors(), -1);
    slow_.resize(f.tensors());
    for (i64 x = 0; x < f.tensors(); ++x) slow_[x] = f.live_in[x] ? -1 : kNever;
    offset_.assign(f.storages(), kNowhere);
    decided_.assign(f.storages(), kOpen);
    log_.clear();
  }

  bool done() const { return index == f.buffers(); }

  bool move(Action a, Move& m) {
    const i64 i = index, s = f.storage[i], x = f.tensor[i], t = f.at[i];
    const uint8_t state = forced_[s] ? kSlow : decided_[s];
    m = Move{};
    if (a == kDrop) return state != kFast && (f.output[i] || slow_[x] < t);
    if (state == kSlow) return false;
    const i64 fixed = f.grouped[s] ? offset_[s] : kNowhere;
    if (f.output[i]) {
      if (a == kNoCopy) return !f.live_out[i] && room(m, i, t, f.life_end[i], fixed, false);
      const i64 end = board.copy_end(i);
      return end >= 0 && room(m, i, t, end, fixed, true);
    }
    if (a == kNoCopy) {
      if (covered_[x] >= t) {
        m = Move{offset_[s], t, t, false, true};
        return true;
      }
      return covered_[x] >= 0 && room(m, i, covered_[x] + 1, t, offset_[s], false);
    }
    if (covered_[x] >= t || slow_[x] >= t) return false;
    const i64 start = board.copy_start(i, slow_[x]);
    return start >= 0 && room(m, i, start, t, fixed, true);
  }

  i64 step(Action a, const Move& m) {
    const i64 i = index, s = f.storage[i], x = f.tensor[i];
    const bool fast = a != kDrop;
    Before b{covered_[x], slow_[x], offset_[s], open_, 0, decided_[s], fast};
    if (fast) b.reward = board.put(i, m);
    log_.push_back(b);
    if (f.output[i]) {
      covered_[x] = fast ? m.end : -1;
      slow_[x] = a == kCopy ? m.end : a == kNoCopy ? kNever : f.at[i];
    } else if (fast) {
      covered_[x] = std::max(covered_[x], m.end);
    }
    if (fast) offset_[s] = m.offset;
    if (f.grouped[s]) {
      open_ += fast && decided_[s] == kOpen;
      open_ -= fast && last_[s] == i;
      decided_[s] = fast ? kFast : kSlow;
    }
    ++index;
    return b.reward;
  }

  i64 undo() {
    const i64 i = --index, s = f.storage[i], x = f.tensor[i];
    const Before b = log_.back();
    log_.pop_back();
    if (b.placed) board.take(i);
    covered_[x] = b.covered;
    slow_[x] = b.slow;
    offset_[s] = b.offset;
    decided_[s] = b.decided;
    open_ = b.open;
    return b.reward;
  }

  // Goes back to the last state from which all that follows could be dropped; drops the group.
  i64 backup() {
    const i64 before = index, stuck = f.storage[index];
    while (open_) undo();
    forced_[stuck] = 1;
    return before - index;
  }

  // The reward that Drop-backup would take back from here.
  i64 price() const {
    i64 sum = 0;
    for (size_t k = open_ ? log_.size() : 0; k-- > 0;) {
      sum += log_[k].reward;
      if (!log_[k].open) break;
    }
    return sum;
  }

  // Plays all forced moves; returns how many actions are legal then, 0 at the end or if it is lost.
  i64 advance(bool backed) {
    Move m[3];
    Action legal[3];
    while (!done()) {
      i64 n = 0;
      for (Action a : {kCopy, kNoCopy, kDrop})
        if (move(a, m[n])) legal[n++] = a;
      if (n > 1 || (n == 0 && !backed)) return n;
      if (n == 0)
        backup();
      else
        step(legal[0], m[0]);
    }
    return 0;
  }

  i64 play(const uint8_t* preferences) {
    while (!play_on(preferences)) backup();
    return board.reward;
  }

  bool play_on(const uint8_t* preferences) {
    Move m;
    while (!done()) {
      bool moved = false;
      for (Action a : kPreferences[preferences[index]])
        if (move(a, m)) {
          step(a, m);
          moved = true;
          break;
        }
      if (!moved) return false;
    }
    return true;
  }

  i64 play_random(const i64* draws, i64 count, i64 limit) {
    i64 steps = 0;
    Move m[3];
    Action legal[3];
    while (!done() && steps < limit) {
      i64 n = 0;
      for (Action a : {kCopy, kNoCopy, kDrop})
        if (move(a, m[n])) legal[n++] = a;
      if (n == 0) {
        backup();
        continue;
      }
      const i64 k = draws[steps % count] % n;
      step(legal[k], m[k]);
      ++steps;
    }
    return steps;
  }

 private:
  static constexpr uint8_t kOpen = 0, kFast = 1, kSlow = 2;
  struct Before {
    i64 covered, slow, offset, open, reward;
    uint8_t decided;
    bool placed;
  };
  i64 open_ = 0;
  Ints last_, covered_, slow_, offset_;
  std::vector<uint8_t> forced_, decided_;
  std::vector<Before> log_;

  bool room(Move& m, i64 i, i64 start, i64 end, i64 fixed, bool copied) {
    m = Move{board.lowest(i, start, end, fixed), start, end, copied, false};
    return m.ok();
  }
};

}  // namespace mapping
