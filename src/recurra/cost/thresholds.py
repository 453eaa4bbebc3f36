"""The thresholds of the compiler's choices, each with its unit and its source.

Choices compare costs by prices (`cost/prices.py`), which differ by machine; these are limits beside
them. "Measured" is on a core of a server with AVX-512; a guess has no measurement behind it.
"""

from __future__ import annotations

# ---- tiles and blocks (transforms: strip_mine/tiling.py, iteration_domains/peel_independent.py)

ROWS_PER_TILE = 512
"""Rows of a small matrix product that fill one core; the measurement is not on record."""
TORCH_ROWS_PER_TILE = 4096
"""The same on PyTorch, where every equation is a call: a guess, between calls and memory."""
XLA_UNTILED_STEP_NS = 20e3
"""Nanoseconds of a step that needs no tiles under XLA if batch axes go last, as a tile would first
be transposed, [te,f,b] → [f,te,b]; the measurement is not on record."""
XLA_ONE_RUN_LEVEL = 2
"""XLA's level of optimization (0 to 3) on a CPU for a region that runs once: the first parameters
of `examples/reinforce.py` take 0.35 s of process CPU to compile where level 3 takes 1.14, and run
as fast (AMD EPYC, jaxlib 0.10.2)."""
MAX_BLOCK_LAYER_BYTES = 1 << 18
"""Bytes of a layer over one block: several should stay in an L2 of 1 MiB or more."""
MIN_BLOCK_POINTS = 64
"""Points of a block: a product of fewer rows takes as long (`MIN_VECTOR_ROWS`)."""
MAX_TILE_VALUE_BYTES = 1 << 23
"""Bytes of a value over one tile, such as images: more rows do not use a core better. A guess,
between the memory of a tile and the steps of its loop."""

# ---- demanded points of equations (analysis/demanded_points.py, analysis/cycles.py)

MAX_DEMAND_ROUNDS = 4
"""Times that the demanded points of an equation may grow before all of them are taken. A guess."""
MAX_CLOSED_EQUATIONS = 24
"""Equations on a cycle whose demand in all steps is computed exactly; with more, a convex superset
is. A guess."""
MAX_SET_PARTS = 12
"""Convex parts of demanded points, and quotients in these; with more, their convex hull is used.
The steps of 21 took isl 12 s, those of 34 did not end in 15 s."""
MAX_CLOSED_PARTS = 6
"""The same of a relation whose steps are repeated. A guess: with 12, one in 300 did not end."""
MAX_ASKED_COMPARISONS = 12
"""Comparisons in a condition that restricts a definition to demanded points: with 16, in four
branches by periods of sums of dims, isl did not end in 20 s. A guess."""
MAX_TAKERS = 8
"""Conditions under which choices use a value; with more, it is computed everywhere. A guess."""
MAX_COMPARISONS = 96
"""Comparisons in a condition; with more, isl may never end."""
MAX_CYCLE_CELLS = 512
"""Parts of a domain with different reads that are searched for a point that depends on itself; with
more, the scheduler decides. A guess."""

# ---- cuts of branches (schedule/allen_kennedy.py)

MAX_CUT_ROUNDS = 8
"""Times that equations without an order are split at more points to find one: programs needed at
most two. Each takes longer than the one before, and an error should come in seconds."""

# ---- batch axes, last or first (transforms/vectorize/plan.py has the measurements)

MIN_VECTOR_ROWS = 64
"""Rows of a batch; fewer take as long, without full vectors. Measured: the table of granularity."""
MAX_BATCH_LAST_GAIN = 0.2
"""Share of their time that layers gain by a batch axis that goes last: the middle of the table of
granularity, 1.2 times as fast."""
VECTOR_ELEMENTS = 16
"""Elements of f32 in a vector of AVX-512: shorter rows leave a part of each empty."""
TURNED_ELEMENT_NS = 1.0
"""Nanoseconds to transpose an element of an input or output with its batch axis first. Measured
under XLA: 0.2 of rows of 3 to 9 elements, 1.1 of 64 (Xeon with AVX-512, jaxlib 0.10.2)."""
SCATTERED_ELEMENT_NS = 10.0
"""Nanoseconds to read an element of a row whose elements are not contiguous: measured."""

# ---- inputs that loops read across (transforms/vectorize/transpose_inputs.py)

LINE_BYTES = 64
"""Bytes that a core fetches from memory at once; a run of so many is read as fast as a long one."""
MAX_TURNED_BYTES = 1 << 24
"""Bytes of an input of which a turned copy is held. A guess, between memory and time."""

# ---- shifts of an array (transforms/shared_borders.py)

MAX_BORDER_ELEMENTS = 64
"""Elements that a shift puts before an array and behind it: a guess; neighbors are 1 or 2 away."""

# ---- reductions of few elements (backends/jax/array_namespace.py)

MAX_LOOP_ROW = 12
"""Elements along the last axis that a loop of XLA's own reduces faster than YNNPACK. Measured, us
of a step that adds up 1,024 rows of 8, 12, 16 and 64: 1.9, 10.7, 14.5 and 52 by a loop; 6.1, 14.8,
15.3 and 14 by the library; 65,536 rows of 3: 35 and 1,520 (Xeon with AVX-512, jaxlib 0.10.2)."""
MAX_LOOP_AXIS = 32
"""The same along another axis: 1.2, 2.5, 3.7 and 17, and 2.1, 4.0, 5.5 and 15."""

# ---- operands of fewer bits (transforms/fuse_casts.py, codegen/widened_product.py)

MAX_WIDENED_BYTES = 1 << 20
"""Bytes in which an operand of a product is held, beside a loop, in more bits than it has."""
WIDENED_PART_BYTES = 1 << 22
"""Bytes in which a part of an operand is held in more bits than it has, while a product reads it.
Machines differ. Under XLA, of 44M weights in bf16: parts of 1 MiB take 14 ms, of 256 KiB 33, of 4
MiB 21, and weights that were widened once 17 (AMD EPYC, jaxlib 0.10.2). 16 tokens of 68M weights:
parts of 1 MiB take 1.6 s, of 4 MiB 0.98, of 8 MiB 0.89, of 16 MiB 0.87 (Xeon with AVX-512); PyTorch
1.36, 1.44, 1.10, 1.04; NumPy 2.1, 1.9, 2.0, 1.8."""

# ---- ranges that grow, in tiles (transforms/growing_ranges.py)

STRIP_POINTS = 256
"""Points of a tile of a range: a guess, between its temporary and the steps of its loop."""
MIN_STRIP_POINTS = 16
"""Points below which a tile is not halved further: one vector of f32."""
MAX_STRIP_BYTES = 1 << 20
"""Bytes of a tile: it is to stay in the L2 of a core."""
MIN_STRIPPED_POINTS = 512
"""Points of a range; shorter ones, of less than two tiles, are read whole."""

# ---- iterations that wait for nothing, peeled into one batch (transforms/peel/)

MIN_PEELED_POINTS = 16
"""Points that wait for nothing of their loop and are worth an axis: a guess, one vector of f32."""
MIN_STREAMED_BYTES = 1 << 12
"""Bytes of a point of a range that are worth a statement of their own: a call of NumPy or PyTorch
takes as long as it works on so many (calibrated: 430 and 1,100 ns). Smaller ones are kept for all
points, and worked on at once."""
MAX_PEELED_BYTES = 1 << 28
"""Bytes of one value at all of these points; the others stay in the loop. A guess, between memory
and the steps that are saved."""
MAX_CACHED_BYTES = 1 << 16
"""Bytes of a value at all points of a loop that stay in the L2, of 1 MiB or more, beside a dozen
others: a guess."""
MAX_CHUNK_POINTS = 256
"""Points of a chunk: its scores beside a tile of as many, 256 KiB of f32, stay in the L2."""
CHUNK_COST_POINTS = 16
"""Points that cost as much as a chunk of none; the measurement is not on record."""

# ---- loops (transforms: peel, skew, vectorize/split_index_sets.py)

MAX_ROUND_TURNS = 12
"""Turns of a round: a guess, between what is saved and that each turn is compiled."""
MIN_PREFIX_RATIO = 2
"""Points of all for each of the first points, which then have a store of their own: a guess."""
MIN_KEPT_BYTES = 1 << 10
"""Bytes that a store has to become smaller by before some points of it are copied to one of their
own: a guess, between memory and the steps of a loop that are compiled apart."""
MAX_BRANCH_PIECES = 8
"""Pieces of a definition along one dim; one of more is a choice, element by element. A guess,
between the equations of pieces and the work of branches that are not taken."""

# ---- conditions (analysis/guards.py, transforms/canonicalize/domains.py, codegen/predication.py)

GUARD_NS = 2_000.0
"""Nanoseconds of a loop of one step or none, as which XLA runs a guard, on one core."""
MAX_PREDICATE_SHARE = 0.01
"""Share of a loop's step that it may take to ask for what begins or ends inside the loop, so that
its body is compiled once: a body of 600 statements takes XLA 2.8 s. A guess."""
MIN_DECIDED_NS = 20_000.0
"""Nanoseconds of work that a condition on data leaves out at one of its points before its dims stay
loops for it, where they could be axes. A guess, between that work and that of one large product."""
MAX_GUARDED_SHARE = 0.5
"""Share of points; an equation that is demanded more often is computed everywhere. A guess."""
MAX_GUARD_DEPTH = 4
"""Branches in branches that are looked through for the one point at which they are not zero: those
of a gradient are two. A guess."""
MAX_CONDITION_PERIOD = 4096
"""Points of which the share of a condition is counted, one by one: time to compile. A guess."""

# ---- facts about values (transforms/integer_ranges.py, transforms/fuse_attention.py)

MAX_POSITION_DEPTH = 8
"""Equations looked back at for the extremes of a number; what is longer is seldom a position."""
MAX_EXAMINED_ELEMENTS = 4096
"""Elements of a constant array that are looked at for its extremes: time to compile. A guess."""
LENGTH_SAMPLES = 9
"""Steps of a loop at which the lengths of ranges are looked at: both ends, and eighths."""

# ---- folds (transforms/reductions_to_accumulators.py)

MAX_ACCUMULATED_BYTES = 1 << 14
"""Bytes of a value of which a loop takes extrema element by element: with the value itself they are
to stay in an L1 of 32 KiB. Measured under XLA, of 3 KiB: 1.9 us a step, and 4.5 if each is reduced
(Xeon with AVX-512, jaxlib 0.10.2)."""

# ---- searches (transforms/canonicalize/searches.py)

MIN_SEARCHED_ELEMENTS = 64
"""Elements of an ascending row that is searched by halves: of fewer, each is compared. By prices:
0.06 ns for each, and 0.5 for each half."""

# ---- attention as one call or as equations (cost/attention.py)

EQUATIONS_PER_ATTENTION_TILE = 14
"""Equations of a tile, counted: products, maximum, exponentials, sums, and what rescales them."""

# ---- rows that the data end (transforms/early_exit/poll_interval.py, codegen/launch_size.py)

GPU_POLL_STEPS = 1.0
"""Steps of a loop that it costs to ask a GPU whether rows go on: it waits for about one. A guess,
which no machine has confirmed."""
MAX_POLL_INTERVAL = 32
"""Steps between two questions, however long rows may be: what is run past their end must not be
felt. A guess."""
MIN_POLLED_STEPS, MAX_POLLED_STEPS = 16, 64
"""Steps per launch of a loop that ends by itself: the host waits for each before the next. Beside
the most of them the launch itself is 1 % in all but the cheapest steps."""
MAX_POLLED_LAUNCH_SHARE = 0.01
"""Share of the time of such a launch that its own cost may be: too little to be felt."""

# ---- launches (codegen/launch_size.py, cost/model.py, codegen/lowering.py)

MIN_LAUNCH_STEPS, MAX_LAUNCH_STEPS = 8, 1024
"""Steps per launch of an outermost loop: outputs along it hold one launch. A guess."""
TARGET_LAUNCH_NS = 2e6
"""Nanoseconds of work of a launch: its own cost (`LAUNCH_NS`, some arrays) is then small, and the
host sees it often."""
MAX_SINGLE_LAUNCH_NS = 1e9
"""Nanoseconds of work of a program that is one launch where nobody watches it. A guess: nothing
interrupts a launch, and whoever asks to stop is to wait for a few seconds at most."""
LAUNCH_NS = 2.5e3
"""Nanoseconds of a launch beside its work; the measurement is not on record."""
LAUNCH_ARRAY_NS = 3.5e3
"""Nanoseconds of a launch for each of its operands; the measurement is not on record."""
MIN_OVERLAPPED_NS = 1e5
"""Nanoseconds of work that no host call waits for which are worth a launch of their own: several
times what a launch of some arrays costs."""

# ---- stored and recomputed values (transforms/rematerialize.py, compiling for a budget)

MEMORY_PRICE = 1.3
"""The price of a stored byte, as a multiple of its traffic: above 1, so that the smaller of equals
wins."""
BUDGET_MEMORY_PRICES = (16.0, 256.0, 4096.0)
"""The prices that are tried, in order, to fit a program into a budget. A guess."""
BUDGET_TILE_ROWS = (128, 32)
"""Rows of a tile if that is not enough: a quarter, and a sixteenth, of `ROWS_PER_TILE`."""
MIN_OFFLOADED = "1MiB"
"""Bytes of a store from which it is worth a launch for each of its points: a guess."""
DISK_PAGE = "4KiB"
"""Bytes that a disk moves at least."""
MIN_FREED_BYTES = 1 << 16
"""Bytes that are worth a line of the host program to free them. A guess."""
MAX_PEAK_CANDIDATES = 64
"""Amounts that may be the peak for other bounds; of more, those that others cover are dropped, by
comparing each with each."""

# ---- stores on a host or a disk (runtime/offload/paged_buffer.py, runtime/offload/tiers.py)

MAX_RECORDED_MOVES = 4096
"""Moves of which a run keeps when they were: what a page can show."""
MOVER_POLL_SECONDS = 5e-4
"""Seconds between two looks at whether samples may be taken. A guess."""
MAX_UNWRITTEN_BYTES = 64 << 20
"""Bytes that the system may hold of a file before they are on the disk. A guess."""

# ---- solvers (storage/arena_solvers.py, storage/arena_offsets.py, schedule/isl_scheduler.py)

ARENA_SEARCH_NODES = 500
"""Nodes of the exact search, for each order and each size of the arena: time to compile."""
ARENA_SEARCH_HALVINGS = 24
"""Halvings of the sizes between the load and the arena of greedy: to a cache line of a GiB."""
ARENA_SOLVER_TRIES = 6
"""Sizes of the arena for which a user's solver is called: each may take minutes."""
MAX_ISL_SECONDS = 10
"""CPU seconds for a schedule by isl: REINFORCE, of 207 statements, takes 3."""
ISL_MIN_BOUND = 8
"""The lower limit of bounds that isl may assume, if it holds: isl takes much longer without."""

# ---- JAX (backends/jax/)

MAX_UNROLLED_STEPS = 64
"""Steps of a scan that is imported step by step; each is as many equations as its body."""
MAX_TWICE_COPIED_BYTES = 1 << 22
"""Bytes up to which a new array of JAX is copied twice on the host rather than once by XLA, which
compiles that for each shape: 11 ms (Xeon with AVX-512, jaxlib 0.10.2), in which 40 MB are copied;
less, since both copies are there for a moment."""
MAX_TIME_KEPT = 1024
"""Times of loops that JAX keeps as arrays: of 4 bytes each, and some 200 of Python and JAX."""

# ---- launches in a window (runtime/concurrency_policy.py)

WINDOW_SLOTS = 32
"""Launches that a window holds: the larger of the two sizes of the paper (docs/window.md)."""
MIN_STRETCH_LAUNCHES = 64
"""Launches of a stretch that is timed, at least: whole runs, where they are so short. A guess."""
MAX_STRETCH_LAUNCHES = 512
"""Launches of a stretch that is timed, at most: what a slow way costs until it is left. A guess."""

# ---- PyTorch (backends/torch/)

TORCH_CALL_US = 1.3
"""Microseconds of a call of Torch beside its work, which a fused kernel saves."""
THREEFRY_CALLS = 151
"""Calls of Torch in one of `ops.random.threefry`: counted."""
TORCH_COMPILE_SECONDS = 12.0
"""Seconds that torch.compile takes for a kernel."""
MAX_WRITTEN_ELEMENTS = 1 << 20
"""Elements of a constant that is made ahead, 4 MiB of f32; a larger one is made where it is
used."""
MAX_BLOCK_STEPS = 64
"""Steps of which draws are made at once, on NumPy and Torch."""
MAX_BLOCK_DRAWS = 256
"""Draws that are made at once: with all that is in between 8 KiB, which no forecast of memory
counts."""
MIN_BLOCK_STEPS = 8
"""Steps of which draws are made at once at least: what is left over at the end is made in vain."""
MAX_HOISTED_DRAWS = 1 << 22
"""Draws of one statement in one loop that are made before it: 16 MiB."""
MIN_GRAPH_LAUNCHES = 16
"""Launches that one replay of a CUDA graph should save. A guess, which no machine has confirmed."""
MAX_GRAPH_LAUNCHES = 50_000
"""Launches in one CUDA graph: what it holds of the memory of the host. A guess."""

# ---- NumPy source (backends/numpy)

MAX_SMALL_ELEMENTS = 64
"""Elements of an array that may be kept for all steps of a loop, or of all runs. A guess: such as
keys of draws and masks of a row, not what the prediction of memory would miss."""

# ---- gradients (frontend/inverse_reads)

MAX_READERS = 4
"""Readers of a point along a dim that are written out, one term each; more are a sum over the dim.
A guess: strides and poolings of 2 to 4."""
