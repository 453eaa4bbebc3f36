// A driver without a GPU: streams are queues on a clock that goes on with every call. It keeps when
// each kernel ran, and fails at any call if it is told to.
#pragma once

#include <algorithm>
#include <memory>
#include <tuple>

#include "driver.hpp"

namespace recurra {

class StubDriver : public Driver {
 public:
  static constexpr double kCall = 0.5;    // µs of the host
  static constexpr int kBroken = 700;     // what a call that fails gives
  static constexpr int kMisused = 400;    // a handle that is none
  using Span = std::tuple<std::uint64_t, double, double>;  // ticket, start, end

  int stream_create(Handle* stream) override {
    if (const int status = call()) return status;
    *stream = add(streams_);
    return kFine;
  }
  int stream_destroy(Handle stream) override { return drop(streams_, stream); }
  int event_create(Handle* event) override {
    if (const int status = call()) return status;
    *event = add(events_);
    return kFine;
  }
  int event_destroy(Handle event) override { return drop(events_, event); }

  int event_record(Handle event, Handle stream) override {
    if (const int status = call()) return status;
    double *at = find(events_, event), *end = find(streams_, stream);
    if (!at || !end) return kMisused;
    *at = std::max(*end, now_);
    return kFine;
  }
  int event_query(Handle event) override {
    if (const int status = call()) return status;
    const double* at = find(events_, event);
    if (!at) return kMisused;
    return *at <= now_ ? kFine : kNotReady;
  }
  int stream_wait(Handle stream, Handle event) override {
    if (const int status = call()) return status;
    double *end = find(streams_, stream), *at = find(events_, event);
    if (!at || !end) return kMisused;
    *end = std::max(*end, *at);
    ++waits;
    return kFine;
  }
  int launch(const Kernel& kernel, std::uint64_t ticket, Handle stream) override {
    if (const int status = call()) return status;
    double* end = find(streams_, stream);
    if (!end) return kMisused;
    const double start = std::max(*end, now_);
    *end = start + kernel.us;
    spans.push_back({ticket, start, *end});
    return kFine;
  }

  double now() const { return now_; }
  std::size_t streams() const { return streams_.size(); }
  std::size_t events() const { return events_.size(); }

  std::vector<Span> spans;
  std::uint64_t calls = 0, waits = 0, fail_at = ~std::uint64_t{0};

 private:
  using Things = std::vector<std::unique_ptr<double>>;

  int call() {
    now_ += kCall;
    return calls++ == fail_at ? kBroken : kFine;
  }
  static Handle add(Things& things) {
    things.push_back(std::make_unique<double>(0));
    return things.back().get();
  }
  static double* find(const Things& things, Handle handle) {
    for (const auto& thing : things) {
      if (thing.get() == handle) return thing.get();
    }
    return nullptr;
  }
  int drop(Things& things, Handle handle) {
    if (const int status = call()) return status;
    return std::erase_if(things, [&](const auto& t) { return t.get() == handle; }) ? kFine
                                                                                  : kMisused;
  }

  double now_ = 0;
  Things streams_, events_;
};

}  // namespace recurra
