// The window: tasks in program order -> the tasks that may run now, as in window/python_window.py.
// Not synchronized; pool.hpp is.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "rows.hpp"

namespace recurra {

struct Accesses {
  std::vector<Segment> reads, writes;
};

class Window {
 public:
  enum class State { pending, ready, executing };
  struct Slot {
    Word ticket;
    State state;
    std::vector<Word> upstream;  // tickets
  };

  Window(int size, std::size_t queue) : size_(size), queue_(queue) {}

  // Returns the slots on which a new task depends: read after write, write after read, write after
  // write.
  Word upstream_of(const Accesses& a) const {
    return writes_.hits(a.reads, size_) | reads_.hits(a.writes, size_) |
           writes_.hits(a.writes, size_);
  }

  // Does the same for a task whose writes no task in the window accesses.
  Word before_reads(const Accesses& a) const { return writes_.hits(a.reads, size_); }

  // Adds the next task of the program; nothing if the FIFO is full.
  std::optional<Word> offer(const Accesses& accesses) {
    if (full()) return std::nullopt;
    const Word ticket = next_++;
    if (crowded()) {
      fifo_.push_back({ticket, accesses});
    } else {
      enter(ticket, accesses, upstream_of(accesses));
    }
    return ticket;
  }

  // Adds a task where there is a free slot, with an earlier result of `upstream_of`; returns its
  // slot.
  int enter(const Accesses& accesses, Word upstream) {
    return enter(next_++, accesses, upstream & busy_);
  }

  // Starts executing the oldest ready task.
  std::optional<Word> take() {
    const int slot = take_slot();
    if (slot < 0) return std::nullopt;
    return ticket_[slot];
  }

  // Does the same, and returns its slot, or -1.
  int take_slot() {
    const int slot = oldest(ready_);
    if (slot >= 0) run(slot);
    return slot;
  }

  // Returns the slot of the oldest task, or -1.
  int oldest() const { return oldest(busy_); }

  // Starts executing a task if it is ready.
  bool claim(Word ticket) {
    const int slot = find(ready_, ticket);
    if (slot >= 0) run(slot);
    return slot >= 0;
  }

  // Returns the slot of the only task on which a new one depends, if it has not started and the
  // FIFO is empty, or -1.
  int only_before(Word upstream) const {
    const bool alone = fifo_.empty() && std::popcount(upstream) == 1 && !(upstream & executing_);
    return alone ? std::countr_zero(upstream) : -1;
  }

  // Adds accesses to a task that has not started.
  void extend(int slot, const Accesses& more) {
    reads_.put(slot, more.reads);
    writes_.put(slot, more.writes);
  }

  // Removes an executing task that is done; false if there is none of this ticket.
  bool retire(Word ticket) {
    const int slot = find(executing_, ticket);
    if (slot >= 0) retire_slot(slot);
    return slot >= 0;
  }

  void retire_slot(int slot) {
    const Word bit = Word{1} << slot;
    executing_ &= ~bit;
    busy_ &= ~bit;
    reads_.clear(slot);
    writes_.clear(slot);
    for (Word left = busy_ & ~ready_ & ~executing_; left; left &= left - 1) {
      const int other = std::countr_zero(left);
      upstream_[other] &= ~bit;
      if (!upstream_[other]) ready_ |= Word{1} << other;
    }
    fill();
  }

  std::vector<Slot> slots() const {
    std::vector<Slot> found;
    for (Word left = busy_; left; left &= left - 1) {
      const int slot = std::countr_zero(left);
      const Word bit = Word{1} << slot;
      const State waits = (ready_ & bit) ? State::ready : State::pending;
      Slot one{ticket_[slot], (executing_ & bit) ? State::executing : waits, {}};
      for (Word up = upstream_[slot]; up; up &= up - 1) {
        one.upstream.push_back(ticket_[std::countr_zero(up)]);
      }
      found.push_back(std::move(one));
    }
    return found;
  }

  std::size_t waiting() const { return fifo_.size(); }
  Word offered() const { return next_; }
  int ready() const { return std::popcount(ready_); }
  bool any_ready() const { return ready_ != 0; }
  bool empty() const { return busy_ == 0 && fifo_.empty(); }
  bool full() const { return fifo_.size() == queue_; }
  bool crowded() const { return busy_ == all(); }  // the next one waits in the FIFO

 private:
  int oldest(Word some) const {
    if (!some) return -1;
    int found = std::countr_zero(some);
    for (Word left = some & (some - 1); left; left &= left - 1) {
      const int slot = std::countr_zero(left);
      if (ticket_[slot] < ticket_[found]) found = slot;
    }
    return found;
  }

  struct Waiting {
    Word ticket;
    Accesses accesses;
  };

  // Returns the slot among `some` with this ticket, or -1.
  int find(Word some, Word ticket) const {
    for (; some; some &= some - 1) {
      if (ticket_[std::countr_zero(some)] == ticket) return std::countr_zero(some);
    }
    return -1;
  }

  void run(int slot) {
    ready_ &= ~(Word{1} << slot);
    executing_ |= Word{1} << slot;
  }

  // Moves tasks from the FIFO to free slots, in order.
  void fill() {
    while (!fifo_.empty() && !crowded()) {
      const Waiting& first = fifo_.front();
      enter(first.ticket, first.accesses, upstream_of(first.accesses));
      fifo_.pop_front();
    }
  }

  int enter(Word ticket, const Accesses& accesses, Word upstream) {
    const int slot = std::countr_zero(~busy_);
    upstream_[slot] = upstream;
    ticket_[slot] = ticket;
    reads_.put(slot, accesses.reads);
    writes_.put(slot, accesses.writes);
    busy_ |= Word{1} << slot;
    if (!upstream) ready_ |= Word{1} << slot;
    return slot;
  }

  Word all() const { return size_ == kSlots ? ~Word{0} : (Word{1} << size_) - 1; }

  int size_;
  std::size_t queue_;
  std::deque<Waiting> fifo_;
  Rows reads_, writes_;
  Word busy_ = 0, ready_ = 0, executing_ = 0;
  Word upstream_[kSlots] = {}, ticket_[kSlots] = {};
  Word next_ = 0;
};

}  // namespace recurra
