// Segments, which are launches that are given together, and the key by which they recur.
#pragma once

#include <algorithm>
#include <bit>

#include "driver.hpp"
#include "window.hpp"

namespace recurra {

struct Launch {
  Accesses accesses;
  Kernel kernel;
};

// Kernels, grids, blocks, numbers of parameters, and dependences. Kernels with workspaces that
// follow each other share a lane of it.
struct Shape {
  std::vector<Word> key;
  std::vector<Word> after;           // per kernel: direct dependences
  std::vector<int> lane;             // per kernel, or -1
  std::vector<std::uint64_t> bytes;  // per lane
};

// Returns the shape of at most kSlots launches, with the transitive reduction of dependences.
inline Shape shape_of(std::span<const Launch> launches) {
  Shape shape;
  Rows reads, writes;
  std::vector<Word> behind;  // per kernel: all dependences
  std::vector<int> last;     // per lane
  for (int k = 0; k < static_cast<int>(launches.size()); ++k) {
    const auto& [accesses, kernel] = launches[static_cast<std::size_t>(k)];
    Word left = writes.hits(accesses.reads, kSlots) | reads.hits(accesses.writes, kSlots) |
                writes.hits(accesses.writes, kSlots);
    reads.put(k, accesses.reads), writes.put(k, accesses.writes);
    Word direct = 0, all = 0;
    while (left) {  // the latest first
      const int before = 63 - std::countl_zero(left);
      direct |= Word{1} << before;
      all |= behind[static_cast<std::size_t>(before)] | Word{1} << before;
      left &= ~all;
    }
    behind.push_back(all);
    shape.after.push_back(direct);
    shape.lane.push_back(-1);
    if (kernel.workspace) {
      const auto found = std::ranges::find_if(last, [&](int t) { return all >> t & 1; });
      shape.lane.back() = static_cast<int>(found - last.begin());
      if (found == last.end()) last.push_back(k), shape.bytes.push_back(0);
      const auto lane = static_cast<std::size_t>(shape.lane.back());
      last[lane] = k;
      shape.bytes[lane] = std::max(shape.bytes[lane], kernel.workspace);
    }
    shape.key.insert(shape.key.end(), {kernel.function, kernel.shared, kernel.parameters.size(),
                                       kernel.workspace, direct});
    for (const auto* size : {&kernel.grid, &kernel.block}) {
      shape.key.insert(shape.key.end(), size->begin(), size->end());
    }
  }
  return shape;
}

// Covers segments by at most `most`, which include the smallest gaps.
inline std::vector<Segment> covered(std::vector<Segment> segments, std::size_t most) {
  std::ranges::sort(segments, {}, &Segment::start);
  std::vector<Segment> found;
  for (const Segment& s : segments) {
    if (found.empty() || s.start > found.back().stop) {
      found.push_back(s);
    } else {
      found.back().stop = std::max(found.back().stop, s.stop);
    }
  }
  while (found.size() > most) {
    auto least = found.begin();
    for (auto it = found.begin(); it + 1 != found.end(); ++it) {
      if (it[1].start - it->stop < least[1].start - least->stop) least = it;
    }
    least->stop = least[1].stop;
    found.erase(least + 1);
  }
  return found;
}

// Returns the accesses of all launches, approximated by few segments.
inline Accesses together(std::span<const Launch> launches) {
  constexpr std::size_t kMost = 16;
  Accesses all;
  for (const Launch& l : launches) {
    all.reads.insert(all.reads.end(), l.accesses.reads.begin(), l.accesses.reads.end());
    all.writes.insert(all.writes.end(), l.accesses.writes.begin(), l.accesses.writes.end());
  }
  return {covered(std::move(all.reads), kMost), covered(std::move(all.writes), kMost)};
}

}  // namespace recurra
