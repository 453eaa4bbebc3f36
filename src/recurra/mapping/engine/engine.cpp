// The C interface of the native engine, for native.py. All numbers are int64.
#include "arrange.h"
#include "game.h"
#include "observe.h"
#include "pack.h"

using namespace mapping;

namespace {

// Rows of offset, start, end, copied; offset -1 for slow memory.
void write(const std::vector<Move>& moves, i64* out) {
  for (const Move& m : moves) {
    *out++ = m.offset;
    *out++ = m.start;
    *out++ = m.end;
    *out++ = m.copied;
  }
}

}  // namespace

extern "C" {

// Change this number with anything below; native.py checks it.
i64 recurra_mapping_version() { return 5; }

void* flat_new(const i64* const* arrays, const i64* lengths) {
  Flat* f = new Flat;
  Ints* fields[] = {&f->size,    &f->output,    &f->at,      &f->tensor,   &f->storage,
                    &f->life_end, &f->live_out,   &f->demand,  &f->evict_by, &f->next_use,
                    &f->gain,    &f->bit,       &f->live_in,  &f->grouped,  &f->member_at,
                    &f->members, &f->supply,    &f->compute, &f->traffic,  &f->times,
                    &f->table_at, &f->tables,   &f->counts};
  for (size_t k = 0; k < sizeof(fields) / sizeof(*fields); ++k)
    fields[k]->assign(arrays[k], arrays[k] + lengths[k]);
  return f;
}
void flat_delete(void* f) { delete static_cast<Flat*>(f); }

void* game_new(void* f) { return new Game(*static_cast<Flat*>(f)); }
void game_delete(void* g) { delete static_cast<Game*>(g); }
void game_reset(void* g) { static_cast<Game*>(g)->reset(); }
i64 game_index(void* g) { return static_cast<Game*>(g)->index; }
i64 game_reward(void* g) { return static_cast<Game*>(g)->board.reward; }
i64 game_undo(void* g) { return static_cast<Game*>(g)->undo(); }
void game_rewind(void* g, i64 index) {
  Game& game = *static_cast<Game*>(g);
  while (game.index > index) game.undo();
}
i64 game_backup(void* g) { return static_cast<Game*>(g)->backup(); }
i64 game_play(void* g, const uint8_t* actions) { return static_cast<Game*>(g)->play(actions); }
i64 game_play_on(void* g, const uint8_t* actions) { return static_cast<Game*>(g)->play_on(actions); }
i64 game_play_random(void* g, const i64* draws, i64 count, i64 limit) {
  return static_cast<Game*>(g)->play_random(draws, count, limit);
}
i64 game_price(void* g) { return static_cast<Game*>(g)->price(); }
i64 game_advance(void* g, i64 backed) { return static_cast<Game*>(g)->advance(backed); }
void game_observe(void* g, i64 cells, uint8_t* grid, uint8_t* profile, i64* supply, i64* moves) {
  observe(*static_cast<Game*>(g), cells, grid, profile, supply, moves);
}
// 1 if legal; out: offset, start, end, copied, covered.
i64 game_move(void* g, i64 action, i64* out) {
  Move m;
  if (!static_cast<Game*>(g)->move(static_cast<Action>(action), m)) return 0;
  const i64 values[] = {m.offset, m.start, m.end, m.copied, m.covered};
  std::copy(values, values + 5, out);
  return 1;
}
// Returns the reward; the smallest number if the action is illegal.
i64 game_step(void* g, i64 action) {
  Game& game = *static_cast<Game*>(g);
  Move m;
  if (!game.move(static_cast<Action>(action), m)) return INT64_MIN;
  return game.step(static_cast<Action>(action), m);
}
void game_moves(void* g, i64* out) { write(static_cast<Game*>(g)->board.moves, out); }

void* arranger_new(void* f) { return new Arranger(*static_cast<Flat*>(f)); }
void arranger_delete(void* a) { delete static_cast<Arranger*>(a); }
i64 arranger_reward(void* a) { return static_cast<Arranger*>(a)->board.reward; }
i64 arranger_best(void* a) { return static_cast<Arranger*>(a)->best; }
i64 arranger_arrange_repacking(void* a, const i64* order, i64 count, i64 most) {
  return static_cast<Arranger*>(a)->arrange_repacking(order, count, most);
}
i64 arranger_repack(void* a) { return static_cast<Arranger*>(a)->repack(); }
i64 arranger_improve(void* a, i64 count, i64 width, const i64* order, const i64* seed,
                     const i64* skip, const i64* copy, const i64* brief, const i64* bear) {
  return static_cast<Arranger*>(a)->improve(count, width, order, seed, skip, copy, brief, bear);
}
void arranger_moves(void* a, i64* out) { write(static_cast<Arranger*>(a)->board.moves, out); }
void arranger_best_moves(void* a, i64* out) { write(static_cast<Arranger*>(a)->best_moves, out); }

// Packs the buffers of a problem; see pack.h. Writes offsets [N] if there is a packing.
i64 pack(void* flat, const i64* rank, i64 by_load, i64 nodes, i64* offsets) {
  const Flat& f = *static_cast<Flat*>(flat);
  Packer packer(f.buffers(), f.steps(), f.fast_size(), f.at.data(), f.life_end.data(),
                f.size.data(), rank, by_load);
  const Packer::Result found = packer.pack(nodes);
  std::copy(packer.offset.begin(), packer.offset.end(), offsets);
  return found;
}

}  // extern "C"
