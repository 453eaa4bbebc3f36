// Kernels in program order -> streams of a GPU. The host never waits for a kernel, unless the
// window is full: who must follow another is put behind it on its stream, or waits there for its
// event. Not synchronised: one thread issues.
#pragma once

#include <bit>
#include <memory>
#include <optional>

#include "driver.hpp"
#include "window.hpp"

namespace recurra {

class Issuer {
 public:
  Issuer(std::shared_ptr<Driver> driver, int slots, int streams)
      : driver_(std::move(driver)), slots_(slots), most_(static_cast<std::size_t>(streams)) {}

  ~Issuer() {
    for (const Stream& s : streams_) driver_->stream_destroy(s.handle);
    for (Driver::Handle e : events_) driver_->event_destroy(e);
  }

  Issuer(const Issuer&) = delete;
  Issuer& operator=(const Issuer&) = delete;

  // The next kernel of the program; its ticket, or nothing if the driver failed: see `failure`.
  std::optional<Word> issue(const Accesses& accesses, const Kernel& kernel) {
    while (!failed() && busy_ == all()) retire();
    if (failed()) return std::nullopt;
    const int slot = std::countr_zero(~busy_);
    const Word upstream = writes_.hits(accesses.reads, slots_) |
                          reads_.hits(accesses.writes, slots_) |
                          writes_.hits(accesses.writes, slots_);
    const Word ticket = next_;
    at_ = ticket;
    const int stream = stream_for(upstream);
    if (stream < 0 || !wait(stream, upstream) || !prepare(slot)) return std::nullopt;
    if (!fine(driver_->launch(kernel, ticket, streams_[index(stream)].handle), "launch")) {
      return std::nullopt;
    }
    hold(slot, stream, ticket, accesses);  // it runs: whatever fails from here on
    const Driver::Handle handle = streams_[index(stream)].handle;
    if (!fine(driver_->event_record(event_[slot], handle), "event record")) return std::nullopt;
    recorded_ |= Word{1} << slot;
    return ticket;
  }

  // Lets go of what is done, without waiting. What has no event, or a broken one, is kept for ever.
  void retire() {
    for (Word left = busy_ & recorded_; left && !broken_; left &= left - 1) {
      const int slot = std::countr_zero(left);
      at_ = ticket_[slot];
      const int status = driver_->event_query(event_[slot]);
      if (status == Driver::kNotReady) continue;
      if (!fine(status, "event query")) {
        broken_ = true;
        return;
      }
      release(slot);
    }
  }

  // Returns when all that was issued, and whose end can be known, is done.
  void settle() {
    while ((busy_ & recorded_) && !broken_) retire();
  }

  // Tickets of kernels whose memory must be kept.
  std::vector<Word> held() const {
    std::vector<Word> found;
    for (Word left = busy_; left; left &= left - 1) {
      found.push_back(ticket_[std::countr_zero(left)]);
    }
    return found;
  }

  bool failed() const { return status_ != Driver::kFine; }
  std::string failure() const {
    return what_ + " of kernel " + std::to_string(failed_at_) + " gives " + std::to_string(status_);
  }

 private:
  struct Stream {
    Driver::Handle handle;
    int last = -1;  // the slot of the last kernel on it, while that is in flight
    Word used = 0;  // when
  };

  static std::size_t index(int k) { return static_cast<std::size_t>(k); }
  Word all() const { return slots_ == kSlots ? ~Word{0} : (Word{1} << slots_) - 1; }

  bool fine(int status, const char* what) {
    if (status == Driver::kFine) return true;
    if (!failed()) status_ = status, what_ = what, failed_at_ = at_;
    return false;
  }

  // That of a kernel which it follows, if nothing is behind that; else one with nothing in flight,
  // a new one, or the one that was used longest ago.
  int stream_for(Word upstream) {
    int idle = -1, oldest = 0;
    for (int k = 0; k < static_cast<int>(streams_.size()); ++k) {
      const int last = streams_[index(k)].last;
      if (last >= 0 && (upstream >> last & 1)) return k;
      if (last < 0 && idle < 0) idle = k;
      if (streams_[index(k)].used < streams_[index(oldest)].used) oldest = k;
    }
    if (idle >= 0) return idle;
    if (streams_.size() == most_) return oldest;
    Driver::Handle handle = nullptr;
    if (!fine(driver_->stream_create(&handle), "stream create")) return -1;
    streams_.push_back({handle});
    return static_cast<int>(streams_.size()) - 1;
  }

  bool wait(int stream, Word upstream) {
    for (; upstream; upstream &= upstream - 1) {
      const int slot = std::countr_zero(upstream);
      if (stream_of_[slot] == stream) continue;  // streams keep their order
      const Driver::Handle handle = streams_[index(stream)].handle;
      if (!fine(driver_->stream_wait(handle, event_[slot]), "stream wait")) return false;
    }
    return true;
  }

  // A slot has an event, which is used again.
  bool prepare(int slot) {
    if (event_[slot]) return true;
    if (!fine(driver_->event_create(&event_[slot]), "event create")) return false;
    events_.push_back(event_[slot]);
    return true;
  }

  void hold(int slot, int stream, Word ticket, const Accesses& accesses) {
    ++next_;
    busy_ |= Word{1} << slot;
    ticket_[slot] = ticket;
    stream_of_[slot] = stream;
    streams_[index(stream)].last = slot;
    streams_[index(stream)].used = ticket + 1;
    reads_.put(slot, accesses.reads);
    writes_.put(slot, accesses.writes);
  }

  void release(int slot) {
    busy_ &= ~(Word{1} << slot);
    recorded_ &= ~(Word{1} << slot);
    reads_.clear(slot);
    writes_.clear(slot);
    Stream& stream = streams_[index(stream_of_[slot])];
    if (stream.last == slot) stream.last = -1;
  }

  std::shared_ptr<Driver> driver_;
  int slots_;
  std::size_t most_;
  Rows reads_, writes_;
  Word busy_ = 0, recorded_ = 0, next_ = 0, at_ = 0, failed_at_ = 0;
  Word ticket_[kSlots] = {};
  int stream_of_[kSlots] = {};
  Driver::Handle event_[kSlots] = {};
  std::vector<Stream> streams_;
  std::vector<Driver::Handle> events_;
  bool broken_ = false;
  int status_ = Driver::kFine;
  std::string what_;
};

}  // namespace recurra
