// Workspaces of kernels: one block of memory per stream, which grows. A block that was too small is
// released when its last kernel is done.
#pragma once

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "driver.hpp"

namespace recurra {

struct Workspace {
  Driver::Address address = 0;
  std::uint64_t bytes = 0;
  std::uint64_t last = 0;  // the last kernel that uses it
};

class Workspaces {
 public:
  explicit Workspaces(Driver& driver) : driver_(driver) {}

  // Gives a kernel at least so many bytes; returns the driver's status.
  int grant(Workspace& workspace, std::uint64_t bytes, std::uint64_t ticket) {
    if (workspace.bytes < bytes) {
      Workspace larger{0, std::bit_ceil(bytes)};
      const int status = driver_.allocate(&larger.address, larger.bytes);
      if (status != Driver::kFine) return status;
      leave(std::exchange(workspace, larger));
    }
    workspace.last = ticket;
    return Driver::kFine;
  }

  // Retires a block, which is released later.
  void leave(const Workspace& workspace) {
    if (workspace.bytes) left_.push_back(workspace);
  }

  // Releases retired blocks of kernels before `oldest`; returns the first failing status.
  int tidy(std::uint64_t oldest) {
    int first = Driver::kFine;
    std::erase_if(left_, [&](const Workspace& w) {
      if (w.last >= oldest) return false;
      const int status = driver_.release(w.address);
      if (first == Driver::kFine) first = status;
      return true;
    });
    return first;
  }

 private:
  Driver& driver_;
  std::vector<Workspace> left_;
};

}  // namespace recurra
