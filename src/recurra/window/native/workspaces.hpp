// Memory that kernels of a library ask for while they run: one block per stream, which grows. What
// was too small is given back when the last kernel that was given it is done.
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
  std::uint64_t last = 0;  // the last kernel that was given it
};

class Workspaces {
 public:
  explicit Workspaces(Driver& driver) : driver_(driver) {}

  // This kernel will have at least so many bytes; the driver's status.
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

  // It is not given to anybody any more.
  void leave(const Workspace& workspace) {
    if (workspace.bytes) left_.push_back(workspace);
  }

  // Gives back what only kernels before `oldest` were given; the first status that is not fine.
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
