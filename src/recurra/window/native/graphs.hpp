// A cache of the driver's graphs of segments, with LRU eviction. Not synchronized: one thread
// issues.
#pragma once

#include <list>
#include <memory>
#include <string>

#include "segment.hpp"

namespace recurra {

struct Graph {
  Shape shape;
  Driver::Handle graph = nullptr, runnable = nullptr;
  std::vector<Driver::Handle> nodes;
  std::vector<Kernel> kernels;             // current parameters
  std::vector<Driver::Address> workspaces;  // per lane
  int in_flight = 0;
  Word used = 0;         // time of the last use
  bool refused = false;  // by the driver; it is not tried again
};

struct GraphCounts {
  std::uint64_t first = 0;    // segments for the first time
  std::uint64_t built = 0, reused = 0, updated = 0;
  std::uint64_t refused = 0;  // sent to streams because the driver refuses the graph
  std::uint64_t crowded = 0;  // .. because all cached graphs are in flight
  std::uint64_t dropped = 0;  // evicted graphs
};

class Graphs {
 public:
  Graphs(Driver& driver, std::size_t most) : driver_(driver), most_(most) {}

  // Returns the graph of a segment that came before, or null if it goes to streams.
  Graph* ready(std::span<const Launch> segment) {
    if (!most_) return nullptr;
    Shape shape = shape_of(segment);
    Graph* graph = find(shape.key);
    if (!graph) {
      ++(remember(std::move(shape)) ? counts.first : counts.crowded);
      return nullptr;
    }
    graph->used = ++now_;
    if (!graph->refused) {
      graph->refused = !(graph->runnable ? update(*graph, segment) : build(*graph, segment));
    }
    if (graph->refused) ++counts.refused;
    return graph->refused ? nullptr : graph;
  }

  // Destroys all that are not in flight.
  void clear() {
    std::erase_if(known_, [&](Graph& g) { return !g.in_flight && (drop(g), true); });
  }

  std::size_t size() const { return known_.size(); }

  GraphCounts counts;
  std::string refusal;  // the last one

 private:
  Graph* find(const std::vector<Word>& key) {
    for (Graph& g : known_) {
      if (g.shape.key == key) return &g;
    }
    return nullptr;
  }

  bool remember(Shape shape) {
    if (known_.size() == most_) {
      auto oldest = known_.end();
      for (auto g = known_.begin(); g != known_.end(); ++g) {
        if (!g->in_flight && (oldest == known_.end() || g->used < oldest->used)) oldest = g;
      }
      if (oldest == known_.end()) return false;
      drop(*oldest);
      known_.erase(oldest);
      ++counts.dropped;
    }
    known_.emplace_back().shape = std::move(shape);
    known_.back().used = ++now_;
    return true;
  }

  bool fine(int status, const char* call) {
    if (status != Driver::kFine) refusal = std::string(call) + " gives " + std::to_string(status);
    return status == Driver::kFine;
  }

  Kernel with_workspace(const Graph& g, const Launch& launch, std::size_t k) const {
    Kernel kernel = launch.kernel;
    const int lane = g.shape.lane[k];
    if (lane >= 0) kernel.parameters.push_back(g.workspaces[static_cast<std::size_t>(lane)]);
    return kernel;
  }

  bool build(Graph& g, std::span<const Launch> segment) {
    for (const std::uint64_t bytes : g.shape.bytes) {
      Driver::Address address = 0;
      if (!fine(driver_.allocate(&address, bytes), "allocate")) return false;
      g.workspaces.push_back(address);
    }
    if (!fine(driver_.graph_create(&g.graph), "graph create")) return false;
    for (std::size_t k = 0; k < segment.size(); ++k) {
      std::vector<Driver::Handle> after;
      for (Word left = g.shape.after[k]; left; left &= left - 1) {
        after.push_back(g.nodes[static_cast<std::size_t>(std::countr_zero(left))]);
      }
      Driver::Handle node = nullptr;
      const int status = driver_.graph_add(&node, g.graph, after, with_workspace(g, segment[k], k));
      if (!fine(status, "graph add")) return false;
      g.nodes.push_back(node);
      g.kernels.push_back(segment[k].kernel);
    }
    if (!fine(driver_.instantiate(&g.runnable, g.graph), "instantiate")) return false;
    ++counts.built;
    return true;
  }

  // Sets changed parameters; launches in flight keep theirs.
  bool update(Graph& g, std::span<const Launch> segment) {
    bool changed = false;
    for (std::size_t k = 0; k < segment.size(); ++k) {
      if (g.kernels[k] == segment[k].kernel) continue;
      const Kernel kernel = with_workspace(g, segment[k], k);
      if (!fine(driver_.runnable_set(g.runnable, g.nodes[k], kernel), "runnable set")) return false;
      g.kernels[k] = segment[k].kernel;
      changed = true;
    }
    ++(changed ? counts.updated : counts.reused);
    return true;
  }

  // Destroys a graph; failures are recorded in `refusal`.
  void drop(Graph& g) {
    if (g.runnable) fine(driver_.runnable_destroy(g.runnable), "runnable destroy");
    if (g.graph) fine(driver_.graph_destroy(g.graph), "graph destroy");
    for (Driver::Address w : g.workspaces) fine(driver_.release(w), "release");
  }

  Driver& driver_;
  std::size_t most_;
  Word now_ = 0;
  std::list<Graph> known_;
};

}  // namespace recurra
