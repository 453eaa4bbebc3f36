// The observation of a game by a learner: the native twin of observation.py.
#pragma once
#include "game.h"

namespace mapping {

constexpr i64 kGrid = 128;  // cells of the memory map, in both directions

// grid [kGrid, kGrid]: addresses × steps around the target time; profile [cells]: addresses at the
// target time; supply [kGrid]: what is left; moves [3, 4]: legal, start, end, offset.
inline void observe(Game& g, i64 cells, uint8_t* grid, uint8_t* profile, i64* supply, i64* moves) {
  const Flat& f = g.f;
  const i64 t = f.at[std::min(g.index, f.buffers() - 1)], first = t - kGrid / 2;
  const i64 size = std::max<i64>(1, f.fast_size());
  std::fill(grid, grid + kGrid * kGrid, 0);
  std::fill(profile, profile + cells, 0);
  auto share = [&](i64 low, i64 high, i64 parts) {
    const i64 a = low * parts / size;
    return std::make_pair(a, std::max(a + 1, (high * parts + size - 1) / size));
  };
  g.board.during(first, first + kGrid - 1, [&](i64 start, i64 end, i64 low, i64 high) {
    const auto [a, b] = share(low, high, kGrid);
    const i64 left = std::max<i64>(0, start - first), right = std::min(kGrid, end - first + 1);
    for (i64 row = a; row < b; ++row)
      std::fill(grid + row * kGrid + left, grid + row * kGrid + right, 1);
    if (start <= t && t <= end) {
      const auto [c, d] = share(low, high, cells);
      std::fill(profile + c, profile + d, 1);
    }
  });
  for (i64 k = 0; k < kGrid; ++k) {
    const i64 step = first + k;
    supply[k] = step < 0 || step >= f.steps() ? 0 : g.board.left[step];
  }
  Move m;
  for (Action a : {kCopy, kNoCopy, kDrop}) {
    const bool legal = !g.done() && g.move(a, m);
    const i64 row[] = {legal, legal ? m.start : 0, legal ? m.end : 0, legal ? m.offset : 0};
    std::copy(row, row + 4, moves);
    moves += 4;
  }
}

}  // namespace mapping
