// The interface of a GPU driver, implemented by CUDA's (cuda_driver.hpp) and a stub
// (stub_driver.hpp). Statuses are CUDA's: 0 is success.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace recurra {

struct Kernel {
  std::uint64_t function = 0;  // CUfunction
  std::array<unsigned, 3> grid{1, 1, 1}, block{1, 1, 1};
  unsigned shared = 0;
  std::vector<std::uint64_t> parameters;  // eight bytes each
  std::uint64_t workspace = 0;            // bytes; their address is one more parameter
  double us = 1;                          // for the stub: the duration

  bool operator==(const Kernel&) const = default;
};

struct Driver {
  using Handle = void*;
  using Address = std::uint64_t;
  static constexpr int kFine = 0, kNotReady = 600;

  Driver() = default;
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;
  virtual ~Driver() = default;

  virtual int enter() = 0;  // called first in each thread
  virtual int allocate(Address* memory, std::uint64_t bytes) = 0;
  virtual int release(Address memory) = 0;

  virtual int stream_create(Handle* stream) = 0;
  virtual int stream_destroy(Handle stream) = 0;
  virtual int event_create(Handle* event) = 0;
  virtual int event_destroy(Handle event) = 0;
  virtual int event_record(Handle event, Handle stream) = 0;
  virtual int event_query(Handle event) = 0;
  virtual int stream_wait(Handle stream, Handle event) = 0;
  virtual int launch(const Kernel& kernel, std::uint64_t ticket, Handle stream) = 0;

  // A graph has nodes; `instantiate` makes a runnable of it, which can be launched repeatedly, one
  // launch at a time. Nodes belong to the graph, which must outlive the runnable.
  virtual int graph_create(Handle* graph) = 0;
  virtual int graph_destroy(Handle graph) = 0;
  virtual int graph_add(Handle* node, Handle graph, std::span<const Handle> after,
                        const Kernel& kernel) = 0;
  virtual int instantiate(Handle* runnable, Handle graph) = 0;
  virtual int runnable_destroy(Handle runnable) = 0;
  virtual int runnable_set(Handle runnable, Handle node, const Kernel& kernel) = 0;
  virtual int runnable_launch(Handle runnable, std::uint64_t first, Handle stream) = 0;
};

}  // namespace recurra
