// The window: tasks in program order -> which of them may run now. Twin of window/core.py.
//
// Segments lie in columns of slots: row k holds the k-th segment of every slot, so that comparing
// one segment with row k is one pass over neighbouring words whose lanes are the bits of an
// upstream set. Not synchronised: pool.hpp is.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace recurra {

using Word = std::uint64_t;
constexpr int kSlots = 64;  // bits of a word

struct Segment {
  Word start, stop;  // stop is exclusive; start < stop
};

struct Accesses {
  std::vector<Segment> reads, writes;
};

// All segments of one kind, reads or writes, of the tasks in the window.
class Rows {
 public:
  // The slots of which any segment overlaps any of `segments`.
  Word hits(std::span<const Segment> segments, int slots) const {
    Word found = 0;
    for (int first = 0; first < slots; first += 8) {
      found |= block(segments, first) << first;
    }
    return found;
  }

  void put(int slot, std::span<const Segment> segments) {
    if (rows_.size() < segments.size()) rows_.resize(segments.size());
    for (std::size_t k = 0; k < segments.size(); ++k) {
      rows_[k].start[slot] = segments[k].start;
      rows_[k].stop[slot] = segments[k].stop;
      if (!rows_[k].count++) used_ = k + 1 > used_ ? k + 1 : used_;
    }
    length_[slot] = segments.size();
  }

  void clear(int slot) {
    for (std::size_t k = 0; k < length_[slot]; ++k) {
      rows_[k].start[slot] = ~Word{0};  // an empty lane starts behind everything and ends before
      rows_[k].stop[slot] = 0;
      --rows_[k].count;
    }
    length_[slot] = 0;
    while (used_ && !rows_[used_ - 1].count) --used_;
  }

 private:
  struct alignas(64) Row {
    Row() {
      for (int s = 0; s < kSlots; ++s) start[s] = ~Word{0}, stop[s] = 0;
    }
    Word start[kSlots], stop[kSlots];
    int count = 0;  // slots with a segment in this row
  };

  // Eight slots at once, as eight bits.
  Word block(std::span<const Segment> segments, int first) const {
#if defined(__AVX512F__)
    __mmask8 found = 0;
    for (const Segment& s : segments) {
      const __m512i start = _mm512_set1_epi64(static_cast<long long>(s.start));
      const __m512i stop = _mm512_set1_epi64(static_cast<long long>(s.stop));
      for (std::size_t k = 0; k < used_; ++k) {
        const __m512i starts = _mm512_load_si512(rows_[k].start + first);
        const __m512i stops = _mm512_load_si512(rows_[k].stop + first);
        found |= _mm512_mask_cmpgt_epu64_mask(_mm512_cmplt_epu64_mask(starts, stop), stops, start);
      }
    }
    return found;
#else
    Word lane[8] = {};
    for (const Segment& s : segments) {
      for (std::size_t k = 0; k < used_; ++k) {
        const Row& row = rows_[k];
        for (int j = 0; j < 8; ++j) {
          lane[j] |= (row.start[first + j] < s.stop) & (row.stop[first + j] > s.start);
        }
      }
    }
    Word found = 0;
    for (int j = 0; j < 8; ++j) found |= lane[j] << j;
    return found;
#endif
  }

  std::vector<Row> rows_;
  std::size_t used_ = 0;  // rows that hold anything
  std::size_t length_[kSlots] = {};
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

  // The slots that a newcomer must follow: read after write, write after read, write after write.
  Word upstream_of(const Accesses& a) const {
    return writes_.hits(a.reads, size_) | reads_.hits(a.writes, size_) |
           writes_.hits(a.writes, size_);
  }

  // The next task of the program; nothing if the FIFO is full.
  std::optional<Word> offer(Accesses accesses) {
    if (fifo_.size() == queue_) return std::nullopt;
    const Word ticket = next_++;
    fifo_.push_back({ticket, std::move(accesses)});
    fill();
    return ticket;
  }

  // The oldest ready task, now executing.
  std::optional<Word> take() {
    if (!ready_) return std::nullopt;
    int oldest = std::countr_zero(ready_);
    for (Word left = ready_ & (ready_ - 1); left; left &= left - 1) {
      const int slot = std::countr_zero(left);
      if (ticket_[slot] < ticket_[oldest]) oldest = slot;
    }
    run(oldest);
    return ticket_[oldest];
  }

  // This very task, if it is ready.
  bool claim(Word ticket) {
    const int slot = find(ready_, ticket);
    if (slot >= 0) run(slot);
    return slot >= 0;
  }

  // An executing task is done; false if there is none of this ticket.
  bool retire(Word ticket) {
    const int slot = find(executing_, ticket);
    if (slot < 0) return false;
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
    return true;
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
  bool any_ready() const { return ready_ != 0; }
  bool empty() const { return busy_ == 0 && fifo_.empty(); }
  bool full() const { return fifo_.size() == queue_; }

 private:
  struct Waiting {
    Word ticket;
    Accesses accesses;
  };

  // The slot among `some` that holds this ticket, or -1.
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

  // FIFO -> free slots, in order: all that a task may depend on is in the window or done.
  void fill() {
    const Word all = size_ == kSlots ? ~Word{0} : (Word{1} << size_) - 1;
    while (!fifo_.empty() && busy_ != all) {
      const Waiting& w = fifo_.front();
      const int slot = std::countr_zero(~busy_);
      const Word upstream = upstream_of(w.accesses);  // empty lanes never hit
      upstream_[slot] = upstream;
      ticket_[slot] = w.ticket;
      reads_.put(slot, w.accesses.reads);
      writes_.put(slot, w.accesses.writes);
      busy_ |= Word{1} << slot;
      if (!upstream) ready_ |= Word{1} << slot;
      fifo_.pop_front();
    }
  }

  int size_;
  std::size_t queue_;
  std::deque<Waiting> fifo_;
  Rows reads_, writes_;
  Word busy_ = 0, ready_ = 0, executing_ = 0;
  Word upstream_[kSlots] = {}, ticket_[kSlots] = {};
  Word next_ = 0;
};

}  // namespace recurra
