// Issues kernels in program order to streams of a GPU. The host waits for kernels only if the
// window is full: a kernel that follows another goes behind it on its stream, or waits for its
// event. A segment that came before is one graph. Not synchronized: one thread issues.
#pragma once

#include <bit>
#include <memory>
#include <optional>

#include "graphs.hpp"
#include "workspaces.hpp"

namespace recurra {

class Issuer {
 public:
  Issuer(std::shared_ptr<Driver> driver, int slots, int streams, std::size_t graphs)
      : driver_(std::move(driver)),
        slots_(slots),
        most_(static_cast<std::size_t>(streams)),
        graphs_(*driver_, graphs),
        workspaces_(*driver_) {}

  Issuer(const Issuer&) = delete;
  Issuer& operator=(const Issuer&) = delete;

  // Issues the next kernels of the program, from this ticket on, in segments of at most kSlots. If
  // the driver fails, the rest is not issued: see `failure`.
  void issue(Word first, std::span<Launch> launches) {
    while (!launches.empty() && !failed()) {
      const std::size_t count = std::min<std::size_t>(launches.size(), kSlots);
      issue_piece(first, launches.first(count));
      first += count;
      launches = launches.subspan(count);
    }
  }

  // Releases what is done, without waiting. Kernels without a valid event are kept forever.
  void retire() {
    for (Word left = busy_ & recorded_; left && !broken_; left &= left - 1) {
      const int slot = std::countr_zero(left);
      at_ = slot_[slot].first;
      const int status = driver_->event_query(slot_[slot].event);
      if (status == Driver::kNotReady) continue;
      broken_ = !fine(status, "event query");
      if (!broken_) release(slot);
    }
    if (!broken_) fine(workspaces_.tidy(oldest(busy_)), "release");
  }

  // Releases all resources that are not in use. Nothing can be issued afterwards.
  void close() {
    graphs_.clear();
    if (!busy_) {
      for (Stream& s : streams_) workspaces_.leave(s.workspace);
      workspaces_.tidy(oldest(0));
    }
    for (const Stream& s : streams_) driver_->stream_destroy(s.handle);
    for (const Slot& s : slot_) {
      if (s.event) driver_->event_destroy(s.event);
    }
  }

  // Returns first ticket and number of kernels of each busy slot, whose memory must stay alive.
  std::vector<std::pair<Word, Word>> held() const {
    std::vector<std::pair<Word, Word>> found;
    for (Word left = busy_; left; left &= left - 1) {
      const Slot& slot = slot_[std::countr_zero(left)];
      found.push_back({slot.first, slot.count});
    }
    return found;
  }

  // Returns the oldest kernel in flight with a valid event, or the greatest word.
  Word awaited() const { return broken_ ? ~Word{0} : oldest(busy_ & recorded_); }

  bool fine(int status, const char* what) {
    if (status == Driver::kFine) return true;
    if (!failed()) {
      status_ = status;
      failure_ = std::string(what) + " of kernel " + std::to_string(at_) + " gives " +
                 std::to_string(status);
    }
    return false;
  }
  bool failed() const { return status_ != Driver::kFine; }
  const std::string& failure() const { return failure_; }
  const Graphs& graphs() const { return graphs_; }

 private:
  struct Stream {
    Driver::Handle handle;
    int last = -1;  // the slot of the last kernel on it, while that is in flight
    Word used = 0;  // time of the last use
    Workspace workspace{};
  };
  struct Slot {
    Word first = 0, count = 0;  // tickets
    int stream = 0;
    Graph* graph = nullptr;
    Driver::Handle event = nullptr;  // reused
  };

  static std::size_t index(int k) { return static_cast<std::size_t>(k); }
  Word all() const { return slots_ == kSlots ? ~Word{0} : (Word{1} << slots_) - 1; }
  Word oldest(Word some) const {
    Word first = ~Word{0};
    for (; some; some &= some - 1) first = std::min(first, slot_[std::countr_zero(some)].first);
    return first;
  }

  void issue_piece(Word first, std::span<Launch> launches) {
    Graph* graph = launches.size() > 1 ? graphs_.ready(launches) : nullptr;
    if (graph) {
      place(first, launches.size(), together(launches), graph, [&](Stream& s) {
        return fine(driver_->runnable_launch(graph->runnable, first, s.handle), "graph launch");
      });
      return;
    }
    for (Launch& l : launches) {
      if (failed()) return;
      place(first, 1, l.accesses, nullptr, [&](Stream& s) {
        return grant(s, l.kernel, first) &&
               fine(driver_->launch(l.kernel, first, s.handle), "launch");
      });
      ++first;
    }
  }

  bool grant(Stream& stream, Kernel& kernel, Word ticket) {
    if (!kernel.workspace) return true;
    const int status = workspaces_.grant(stream.workspace, kernel.workspace, ticket);
    kernel.parameters.push_back(stream.workspace.address);
    return fine(status, "workspace");
  }

  // Takes a slot and a stream, waits for the upstream kernels there, and launches by `go`.
  template <class Go>
  void place(Word first, Word count, const Accesses& accesses, Graph* graph, Go go) {
    at_ = first;
    while (!failed() && busy_ == all()) retire();
    at_ = first;
    if (failed()) return;
    const int slot = std::countr_zero(~busy_);
    const Word upstream = writes_.hits(accesses.reads, slots_) |
                          reads_.hits(accesses.writes, slots_) |
                          writes_.hits(accesses.writes, slots_);
    const int stream = stream_for(upstream);
    if (stream < 0 || !wait(stream, upstream) || !prepare(slot)) return;
    if (!go(streams_[index(stream)])) return;
    hold(slot, stream, accesses, {first, count, stream, graph, slot_[slot].event});
    const Driver::Handle handle = streams_[index(stream)].handle;
    if (fine(driver_->event_record(slot_[slot].event, handle), "event record")) {
      recorded_ |= Word{1} << slot;
    }
  }

  // Chooses the stream of an upstream kernel that is the last on it, else an idle stream, a new
  // one, or the least recently used one.
  int stream_for(Word upstream) {
    int idle = -1, longest = 0;
    for (int k = 0; k < static_cast<int>(streams_.size()); ++k) {
      const int last = streams_[index(k)].last;
      if (last >= 0 && (upstream >> last & 1)) return k;
      if (last < 0 && idle < 0) idle = k;
      if (streams_[index(k)].used < streams_[index(longest)].used) longest = k;
    }
    if (idle >= 0) return idle;
    if (streams_.size() == most_) return longest;
    Driver::Handle handle = nullptr;
    if (!fine(driver_->stream_create(&handle), "stream create")) return -1;
    streams_.push_back({handle});
    return static_cast<int>(streams_.size()) - 1;
  }

  bool wait(int stream, Word upstream) {
    for (; upstream; upstream &= upstream - 1) {
      const Slot& slot = slot_[std::countr_zero(upstream)];
      if (slot.stream == stream) continue;  // streams keep their order
      const Driver::Handle handle = streams_[index(stream)].handle;
      if (!fine(driver_->stream_wait(handle, slot.event), "stream wait")) return false;
    }
    return true;
  }

  bool prepare(int slot) {
    return slot_[slot].event || fine(driver_->event_create(&slot_[slot].event), "event create");
  }

  void hold(int slot, int stream, const Accesses& accesses, const Slot& what) {
    busy_ |= Word{1} << slot;
    slot_[slot] = what;
    if (what.graph) ++what.graph->in_flight;
    streams_[index(stream)].last = slot;
    streams_[index(stream)].used = what.first + 1;
    reads_.put(slot, accesses.reads);
    writes_.put(slot, accesses.writes);
  }

  void release(int slot) {
    busy_ &= ~(Word{1} << slot);
    recorded_ &= ~(Word{1} << slot);
    reads_.clear(slot);
    writes_.clear(slot);
    if (slot_[slot].graph) --slot_[slot].graph->in_flight;
    Stream& stream = streams_[index(slot_[slot].stream)];
    if (stream.last == slot) stream.last = -1;
  }

  std::shared_ptr<Driver> driver_;
  int slots_;
  std::size_t most_;
  Graphs graphs_;
  Workspaces workspaces_;
  Rows reads_, writes_;
  Word busy_ = 0, recorded_ = 0, at_ = 0;
  Slot slot_[kSlots] = {};
  std::vector<Stream> streams_;
  bool broken_ = false;
  int status_ = Driver::kFine;
  std::string failure_;
};

}  // namespace recurra
