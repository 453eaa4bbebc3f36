// A driver without a GPU: streams are queues on a clock that advances with every call. It records
// the times of kernels and misuses of handles, and can fail at any call, or refuse a kind of calls.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>

#include "driver.hpp"

namespace recurra {

class StubDriver : public Driver {
 public:
  static constexpr double kCall = 0.5;    // µs of the host
  static constexpr int kBroken = 700;     // status of a failing call
  static constexpr int kMisused = 400;    // an invalid handle
  static constexpr int kRefused = 801;    // not supported
  using Span = std::tuple<std::uint64_t, double, double>;  // ticket, start, end
  struct Ran {
    std::uint64_t ticket;
    Kernel kernel;
  };

  int enter() override { return call("enter"); }

  int allocate(Address* memory, std::uint64_t bytes) override {
    if (const int status = call("allocate")) return status;
    *memory = top_;
    top_ += (bytes + 255) / 256 * 256;
    blocks_[*memory] = {bytes, 0};
    return kFine;
  }
  int release(Address memory) override {
    if (const int status = call("release")) return status;
    const auto found = blocks_.find(memory);
    if (found == blocks_.end() || found->second.until > now_) return misused("release");
    blocks_.erase(found);
    return kFine;
  }

  int stream_create(Handle* stream) override {
    if (const int status = call("stream_create")) return status;
    *stream = add(streams_);
    return kFine;
  }
  int stream_destroy(Handle stream) override { return drop("stream_destroy", streams_, stream); }
  int event_create(Handle* event) override {
    if (const int status = call("event_create")) return status;
    *event = add(events_);
    return kFine;
  }
  int event_destroy(Handle event) override { return drop("event_destroy", events_, event); }

  int event_record(Handle event, Handle stream) override {
    if (const int status = call("event_record")) return status;
    double *at = find(events_, event), *end = find(streams_, stream);
    if (!at || !end) return misused("event_record");
    *at = std::max(*end, now_);
    return kFine;
  }
  int event_query(Handle event) override {
    if (const int status = call("event_query")) return status;
    const double* at = find(events_, event);
    if (!at) return misused("event_query");
    return *at <= now_ ? kFine : kNotReady;
  }
  int stream_wait(Handle stream, Handle event) override {
    if (const int status = call("stream_wait")) return status;
    double *end = find(streams_, stream), *at = find(events_, event);
    if (!at || !end) return misused("stream_wait");
    *end = std::max(*end, *at);
    return kFine;
  }
  int launch(const Kernel& kernel, std::uint64_t ticket, Handle stream) override {
    if (const int status = call("launch")) return status;
    double* end = find(streams_, stream);
    if (!end) return misused("launch");
    *end = run(kernel, ticket, std::max(*end, now_));
    return kFine;
  }

  int graph_create(Handle* graph) override {
    if (const int status = call("graph_create")) return status;
    *graph = add(graphs_);
    return kFine;
  }
  int graph_destroy(Handle graph) override { return drop("graph_destroy", graphs_, graph); }
  int graph_add(Handle* node, Handle graph, std::span<const Handle> after,
                const Kernel& kernel) override {
    if (const int status = call("graph_add")) return status;
    Graph* to = find(graphs_, graph);
    if (!to) return misused("graph_add");
    Node made{kernel, {}};
    for (Handle h : after) {
      if (place(h) >= to->nodes.size()) return misused("graph_add");
      made.after.push_back(place(h));
    }
    to->nodes.push_back(std::move(made));
    *node = reinterpret_cast<Handle>(to->nodes.size());
    return kFine;
  }
  int instantiate(Handle* runnable, Handle graph) override {
    if (const int status = call("instantiate")) return status;
    const Graph* from = find(graphs_, graph);
    if (!from) return misused("instantiate");
    *runnable = add(runnables_);
    *find(runnables_, *runnable) = *from;
    return kFine;
  }
  int runnable_destroy(Handle runnable) override {
    const Graph* found = find(runnables_, runnable);
    if (found && found->until > now_ + kCall) misused("runnable_destroy");
    return drop("runnable_destroy", runnables_, runnable);
  }
  int runnable_set(Handle runnable, Handle node, const Kernel& kernel) override {
    if (const int status = call("runnable_set")) return status;
    Graph* in = find(runnables_, runnable);
    if (!in || place(node) >= in->nodes.size()) return misused("runnable_set");
    in->nodes[place(node)].kernel = kernel;
    return kFine;
  }
  // Runs nodes in an order that the graph allows, each as soon as possible or much later.
  int runnable_launch(Handle runnable, std::uint64_t first, Handle stream) override {
    if (const int status = call("runnable_launch")) return status;
    Graph* in = find(runnables_, runnable);
    double* end = find(streams_, stream);
    if (!in || !end) return misused("runnable_launch");
    const double begin = std::max({*end, now_, in->until});
    in->until = begin;
    std::vector<double> ends;
    for (const Node& node : in->nodes) {  // in topological order
      double start = begin + (random_() % 3 ? 0.0 : static_cast<double>(random_() % 100));
      for (std::size_t before : node.after) start = std::max(start, ends[before]);
      ends.push_back(run(node.kernel, first + ends.size(), start));
      in->until = std::max(in->until, ends.back());
    }
    *end = in->until;
    return kFine;
  }

  double now() const { return now_; }
  std::size_t streams() const { return streams_.size(); }
  std::size_t events() const { return events_.size(); }
  std::size_t graphs() const { return std::max(graphs_.size(), runnables_.size()); }
  std::size_t blocks() const { return blocks_.size(); }

  std::vector<Span> spans;
  std::vector<Ran> ran;
  std::map<std::string, std::uint64_t> counts;  // of calls
  std::vector<std::string> misuses;
  std::uint64_t calls = 0, fail_at = ~std::uint64_t{0};
  std::string refuses;  // the name of a call

 private:
  struct Node {
    Kernel kernel;
    std::vector<std::size_t> after;
  };
  struct Graph {
    std::vector<Node> nodes;
    double until = 0;  // end of its last run
  };
  struct Block {
    std::uint64_t bytes;
    double until;  // end of its last use
  };
  template <class T>
  using Things = std::vector<std::unique_ptr<T>>;

  int call(const char* name) {
    now_ += kCall;
    ++counts[name];
    if (calls++ == fail_at) return kBroken;
    return refuses == name ? kRefused : kFine;
  }
  int misused(const char* name) {
    misuses.push_back(name);
    return kMisused;
  }

  // Returns the end of a kernel; its workspace must exist and be large enough.
  double run(const Kernel& kernel, std::uint64_t ticket, double start) {
    spans.push_back({ticket, start, start + kernel.us});
    ran.push_back({ticket, kernel});
    if (kernel.workspace) {
      const auto found = blocks_.find(kernel.parameters.empty() ? 0 : kernel.parameters.back());
      if (found == blocks_.end() || found->second.bytes < kernel.workspace) {
        misused("workspace");
      } else {
        found->second.until = std::max(found->second.until, start + kernel.us);
      }
    }
    return start + kernel.us;
  }

  static std::size_t place(Handle node) { return reinterpret_cast<std::uintptr_t>(node) - 1; }
  template <class T>
  static Handle add(Things<T>& things) {
    things.push_back(std::make_unique<T>());
    return things.back().get();
  }
  template <class T>
  static T* find(const Things<T>& things, Handle handle) {
    for (const auto& thing : things) {
      if (thing.get() == handle) return thing.get();
    }
    return nullptr;
  }
  template <class T>
  int drop(const char* name, Things<T>& things, Handle handle) {
    if (const int status = call(name)) return status;
    const auto gone = std::erase_if(things, [&](const auto& t) { return t.get() == handle; });
    return gone ? kFine : misused(name);
  }

  double now_ = 0;
  Address top_ = 0x7000'0000'0000;
  std::map<Address, Block> blocks_;
  std::minstd_rand random_{1};
  Things<double> streams_, events_;
  Things<Graph> graphs_, runnables_;
};

}  // namespace recurra
