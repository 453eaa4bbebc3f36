"""MMapGame as pure functions of arrays, for `jax.jit` and `jax.vmap`: the JAX twin of `game.py`.

    with jax.enable_x64(True):
        rules = rules_of(problem)
        state = reset(rules)
        state, gained = jax.jit(step)(rules, state, action)

All integers have 64 bits, as in the other engines, so that the three agree in every bit. The state
keeps the target of Drop-backup: the last board from which all that follows could be dropped. Each
step scans all arrays, so it is no faster than `engine/`, but it runs on the device of a batch of
learners.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from recurra.mapping.game import Action
from recurra.mapping.game_state import NOWHERE
from recurra.mapping.struct_of_arrays import NEVER, flat
from recurra.storage.mapping_problem import Placement, Problem, ProblemError, Solution

_OPEN, _FAST, _SLOW = 0, 1, 2  # the state of an alias group

State = TypeVar("State")


class ProblemArrays(NamedTuple):
    """The fixed part of a game, over buffers [N], steps [T], tensors [X], storages [S]."""

    size: Array
    output: Array
    at: Array
    tensor: Array
    storage: Array
    life_end: Array
    live_out: Array
    demand: Array
    evict_by: Array
    gain: Array
    bit: Array
    live_in: Array
    grouped: Array
    supply: Array
    compute: Array
    traffic: Array
    times: Array
    table_at: Array
    tables: Array
    last: Array  # [S] the last buffer of a storage
    fast_size: Array


class BoardState(NamedTuple):
    """The part of a game that an action changes."""

    index: Any  # an array; `tuple` has a method of this name
    reward: Array  # picoseconds
    left: Array  # [T] supply that no copy uses
    crossed: Array  # [T] a copy goes on from this step to the next
    traffic: Array  # [T]
    mask: Array  # [T]
    offset: Array  # [N] NOWHERE outside
    start: Array  # [N]
    end: Array  # [N]
    copied: Array  # [N]
    covered: Array  # [N] by a placement that was already there
    until: Array  # [X] the last step a tensor is in fast memory
    slow: Array  # [X] the step after which it is in slow memory
    last_offset: Array  # [S] the last offset of a storage
    group_state: Array  # [S]
    open: Array  # the number of groups in fast memory that have more buffers


class Moves(NamedTuple):
    """The placement of the current buffer by each of the three actions [3]."""

    legal: Array
    offset: Array
    start: Array
    end: Array
    copied: Array
    covered: Array


class GameArrays(NamedTuple):
    """One game; `lost` after an illegal action."""

    board: BoardState
    safe: BoardState  # the last with no open group
    forced: Array  # [S] groups that Drop-backup keeps out
    moves: Moves
    lost: Array


def rules_of(problem: Problem) -> ProblemArrays:
    """Return the arrays of a problem; raises `ProblemError` if JAX would round them."""
    if jnp.array(0).dtype != np.int64:
        raise ProblemError(
            f"{problem.name}: times in picoseconds need integers of 64 bits",
            facts="JAX is at 32",
            hint="with jax.enable_x64(True): ..",
        )
    f = flat(problem)
    columns = {k: getattr(f, k) for k in ProblemArrays._fields[:-3]}
    last = np.array([members[-1] for members in problem.storages])
    tables = f.tables if f.tables.size else np.zeros(1, np.int64)
    more = {"tables": tables, "last": last, "fast_size": np.int64(problem.fast_size)}
    return ProblemArrays(**{k: jnp.asarray(v, jnp.int64) for k, v in {**columns, **more}.items()})


def reset(rules: ProblemArrays) -> GameArrays:
    """Begin at the first buffer, with nothing placed and no group forced out."""
    n, t = rules.size.shape, rules.supply.shape
    x, s = rules.live_in.shape, rules.grouped.shape
    zero = jnp.zeros((), jnp.int64)

    def filled(shape: tuple[int, ...], value: int) -> Array:
        return jnp.full(shape, value, jnp.int64)

    board = BoardState(
        index=zero,
        reward=zero,
        left=rules.supply,
        crossed=jnp.zeros(t, bool),
        traffic=rules.traffic,
        mask=filled(t, 0),
        offset=filled(n, NOWHERE),
        start=filled(n, 0),
        end=filled(n, -1),
        copied=jnp.zeros(n, bool),
        covered=jnp.zeros(n, bool),
        until=filled(x, -1),
        slow=jnp.where(rules.live_in == 1, -1, NEVER),
        last_offset=filled(s, NOWHERE),
        group_state=filled(s, _OPEN),
        open=zero,
    )
    forced = jnp.zeros(s, bool)
    return GameArrays(board, board, forced, moves(rules, board, forced), jnp.zeros((), bool))


def done(rules: ProblemArrays, state: GameArrays) -> Array:
    """Return whether the game is over or lost."""
    return state.lost | (state.board.index >= len(rules.size))


def step(rules: ProblemArrays, state: GameArrays, action: Array) -> tuple[GameArrays, Array]:
    """Play an action as `environment.MapGame` does; return the picoseconds gained, too.

    A state without a legal action is backed up, and the reward of the actions taken back is lost.
    An illegal action loses all that was gained; after the end nothing changes.
    """
    over = done(rules, state)
    legal = state.moves.legal[action]
    board = _played(rules, state.board, state.moves, action)
    safe = _either(board.open == 0, board, state.safe)
    placed = (board, state.forced, moves(rules, board, state.forced))

    def stuck(carried: tuple[BoardState, Array, Moves]) -> Array:
        return (carried[0].index < len(rules.size)) & ~carried[2].legal.any()

    def backed(carried: tuple[BoardState, Array, Moves]) -> tuple[BoardState, Array, Moves]:
        forced = carried[1].at[rules.storage[carried[0].index]].set(True)
        return safe, forced, moves(rules, safe, forced)

    board, forced, after = lax.while_loop(lambda x: legal & ~over & stuck(x), backed, placed)
    played = GameArrays(board, safe, forced, after, state.lost)
    lost = state._replace(lost=state.lost | ~over)
    gained = jnp.where(legal, board.reward - state.board.reward, -state.board.reward.clip(0))
    return _either(legal & ~over, played, lost), jnp.where(over, 0, gained)


def _either(which: Array, this: State, that: State) -> State:
    return jax.tree.map(lambda x, y: jnp.where(which, x, y), this, that)


def moves(rules: ProblemArrays, board: BoardState, forced: Array) -> Moves:
    """Find the placement of the current buffer by each action, and which actions are legal."""
    i = board.index.clip(0, len(rules.size) - 1)
    x, s, t = rules.tensor[i], rules.storage[i], rules.at[i]
    output, until, slow = rules.output[i] == 1, board.until[x], board.slow[x]
    group_state = jnp.where(forced[s], _SLOW, board.group_state[s])
    fixed = jnp.where(rules.grouped[s] == 1, board.last_offset[s], NOWHERE)
    order = jnp.argsort(jnp.where(board.offset < 0, 2**62, board.offset))

    copy_start, copy_end = _copy_start(rules, board, i, slow), _copy_end(rules, board, i)
    start = jnp.where(output, t, copy_start)
    end = jnp.where(output, copy_end, t)
    timely = jnp.where(output, copy_end >= 0, (until < t) & (slow < t) & (copy_start >= 0))
    at, free = _lowest(rules, board, i, order, start, end, fixed)
    copy = (timely & free, at, start, end, True, False)

    covered = ~output & (until >= t)
    start = jnp.where(output | covered, t, until + 1)
    end = jnp.where(output, rules.life_end[i], t)
    resident = jnp.where(output, rules.live_out[i] == 0, until >= 0)
    required = jnp.where(output, fixed, board.last_offset[s])
    at, free = _lowest(rules, board, i, order, start, end, required)
    at = jnp.where(covered, board.last_offset[s], at)
    stay = (covered | (resident & free), at, start, end, False, covered)

    drop = (output | (slow < t), NOWHERE, 0, -1, False, False)
    every = Moves(
        *(jnp.stack(list(map(jnp.asarray, v))) for v in zip(copy, stay, drop, strict=True))
    )
    allowed = jnp.stack([group_state != _SLOW, group_state != _SLOW, group_state != _FAST])
    return every._replace(legal=every.legal & allowed & (board.index < len(rules.size)))


def _copy_start(rules: ProblemArrays, board: BoardState, index: Array, after: Array) -> Array:
    """Return the latest first step of an operand's copy that begins after step `after`; or -1."""
    t, steps = rules.at[index], jnp.arange(len(rules.supply))
    sums = _sums(board)
    enough = (steps <= t) & (sums[t] - sums[:-1] >= rules.demand[index])
    start = jnp.where(enough, steps, -1).max()
    used = (steps >= start) & (steps < t)
    barred = used & ((steps <= after) | ((steps + 1 < t) & board.crossed))
    return jnp.where(barred.any(), -1, start)


def _copy_end(rules: ProblemArrays, board: BoardState, index: Array) -> Array:
    """Return the earliest last step of an output's copy; or -1."""
    t, steps = rules.at[index], jnp.arange(len(rules.supply))
    sums = _sums(board)
    enough = (steps >= t) & (sums[1:] - sums[t + 1] >= rules.demand[index])
    end = jnp.where(enough, steps, NEVER).min()
    used = (steps > t) & (steps <= end)
    crossed = jnp.roll(board.crossed, 1)  # of the step before
    barred = used & ((steps > rules.evict_by[index]) | ((steps - 1 > t) & crossed))
    return jnp.where(barred.any() | (end == NEVER), -1, end)


def _sums(board: BoardState) -> Array:
    """Return [T + 1]: the supply that is left before each step."""
    return jnp.concatenate([jnp.zeros(1, jnp.int64), jnp.cumsum(board.left)])


def _lowest(
    rules: ProblemArrays,
    board: BoardState,
    index: Array,
    order: Array,
    start: Array,
    end: Array,
    fixed: Array,
) -> tuple[Array, Array]:
    """Return the lowest offset, or `fixed` if given, and whether the buffer fits in `start..end`.

    `order`: buffers by offset. Members of an alias group may overlap each other.
    """
    size, s = rules.size[index], rules.storage[index]
    meet = (board.offset >= 0) & ~board.covered & (board.start <= end) & (board.end >= start)
    occupied = (meet & ~((rules.grouped[s] == 1) & (rules.storage == s)))[order]
    low = board.offset[order]
    high = jnp.where(occupied, low + rules.size[order], 0)
    tops = lax.cummax(high)
    below = jnp.concatenate([jnp.zeros(1, jnp.int64), tops[:-1]])
    gap = occupied & (low >= below + size)
    first = jnp.where(gap.any(), below[gap.argmax()], tops[-1])
    apart = (~occupied | (high <= fixed) | (fixed + size <= low)).all()
    at = jnp.where(fixed == NOWHERE, first, fixed)
    return at, (at + size <= rules.fast_size) & ((fixed == NOWHERE) | apart)


def _played(rules: ProblemArrays, board: BoardState, moves: Moves, action: Array) -> BoardState:
    i = board.index.clip(0, len(rules.size) - 1)
    x, s, t = rules.tensor[i], rules.storage[i], rules.at[i]
    offset, start, end = moves.offset[action], moves.start[action], moves.end[action]
    copied, covered = moves.copied[action], moves.covered[action]
    fast, output = action != Action.DROP, rules.output[i] == 1
    left, crossed = _after_copy(rules, board, i, start, end, copied)

    before = _latency(rules, board.traffic, board.mask, t)
    traffic = board.traffic.at[t].add(jnp.where(fast, -rules.gain[i], 0))
    bit = jnp.where(fast & (rules.bit[i] >= 0), 1 << rules.bit[i].clip(0), 0)
    mask = board.mask.at[t].set(board.mask[t] | bit)
    gained = before - _latency(rules, traffic, mask, t)

    until = jnp.where(output, jnp.where(fast, end, -1), jnp.maximum(board.until[x], end))
    leaves = jnp.stack([end, jnp.asarray(NEVER), t])[action]
    grouped, group_state = rules.grouped[s] == 1, board.group_state[s]
    opened = fast & (group_state == _OPEN)
    closed = fast & (rules.last[s] == i)
    return BoardState(
        index=board.index + 1,
        reward=board.reward + gained,
        left=left,
        crossed=crossed,
        traffic=traffic,
        mask=mask,
        offset=board.offset.at[i].set(offset),
        start=board.start.at[i].set(start),
        end=board.end.at[i].set(end),
        copied=board.copied.at[i].set(copied),
        covered=board.covered.at[i].set(covered),
        until=board.until.at[x].set(jnp.where(output | fast, until, board.until[x])),
        slow=board.slow.at[x].set(jnp.where(output, leaves, board.slow[x])),
        last_offset=board.last_offset.at[s].set(jnp.where(fast, offset, board.last_offset[s])),
        group_state=board.group_state.at[s].set(
            jnp.where(grouped, jnp.where(fast, _FAST, _SLOW), group_state)
        ),
        open=board.open + jnp.where(grouped, opened.astype(int) - closed.astype(int), 0),
    )


def _after_copy(
    rules: ProblemArrays, board: BoardState, index: Array, start: Array, end: Array, copied: Array
) -> tuple[Array, Array]:
    """Return supply and crossings after a copy: the latest time for operands, the earliest else."""
    t, steps = rules.at[index], jnp.arange(len(rules.supply))
    sums, output = _sums(board), rules.output[index] == 1
    first, last = jnp.where(output, t + 1, start), jnp.where(output, end, t - 1)
    within = copied & (steps >= first) & (steps <= last)
    nearer = jnp.where(output, sums[:-1] - sums[t + 1], sums[t] - sums[1:])
    amount = jnp.clip(rules.demand[index] - nearer, 0, board.left)
    inner = within & (steps < last)
    return board.left - jnp.where(within, amount, 0), board.crossed | inner


def _latency(rules: ProblemArrays, traffic: Array, mask: Array, t: Array) -> Array:
    """The latency of an instruction, up to its overhead."""
    table = rules.table_at[t]
    measured = rules.tables[(table.clip(0) + mask[t]).clip(0, len(rules.tables) - 1)]
    slowest = jnp.maximum(rules.compute[t], traffic[t])
    return jnp.where(table >= 0, measured, rules.times[t] * slowest)


def solution(state: GameArrays) -> Solution:
    """Return the placements so far; all other buffers are in slow memory."""
    b = state.board
    rows = zip(*(x.tolist() for x in (b.offset, b.start, b.end, b.copied)), strict=True)
    return Solution(tuple(None if row[0] == NOWHERE else Placement(*row) for row in rows))
