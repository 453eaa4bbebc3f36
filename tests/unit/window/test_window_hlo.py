"""Scheduled modules of XLA as traces: values are segments, loops are unrolled."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recurra.backends.jax.hlo import of_function
from recurra.cli import main
from recurra.hlo.module import Computation, read_module
from recurra.window import Trace, WindowError, hlo
from recurra.window.gpu import GPUS
from recurra.window.hlo import read_hlo
from recurra.window.simulate import simulate

X = jax.ShapeDtypeStruct((64, 64), jnp.float32)
H100 = GPUS["h100"]


def chains(x: Any, w: Any) -> Any:
    """Two that share nothing but a weight."""
    a = jnp.tanh(jnp.sort(jnp.tanh(x @ w)) @ w)
    b = jnp.tanh(jnp.sort(jnp.tanh(w @ w)) @ w)
    return a, b


def scanned(x: Any, w: Any) -> Any:
    return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), c.sum()), x, None, length=5)


def until(x: Any, w: Any) -> Any:
    return jax.lax.while_loop(lambda c: c.sum() > 3.0, lambda c: jnp.sort(c @ w), x)


def chosen(x: Any, w: Any) -> Any:
    return jax.lax.cond(x.sum() > 0, lambda: jnp.sort(x @ w), lambda: jnp.sort(w))


def module(f: Any) -> bytes:
    return of_function(f, X, X).module


def before(trace: Trace) -> list[set[int]]:
    """Of each kernel all that it follows, directly or not."""
    found: list[set[int]] = []
    for upstream in trace.upstream:
        found.append(set(upstream).union(*(found[u] for u in upstream)))
    return found


def makers(c: Computation, at: int) -> set[str]:
    """The instructions that compute an operand, by XLA's own lists of operands."""
    x = c.instructions[at]
    if x.op in ("tuple", "get-tuple-element", "bitcast"):
        return set[str]().union(*(makers(c, o) for o in x.operands))
    return set() if x.op in ("parameter", "constant", "after-all") else {x.name}


@pytest.mark.parametrize("f", [chains, chosen])
def test_kernels_follow_those_that_made_their_operands(f: Any) -> None:
    trace, read = read_hlo(module(f), H100), read_module(module(f))
    entry, follows = read.computations[read.entry], before(trace)
    names = [k.name for k in trace.kernels]
    assert names == [x.name for x in entry.instructions.values() if makers(entry, x.id) == {x.name}]
    for k, x in enumerate(x for x in entry.instructions.values() if x.name in names):
        made = set[str]().union(*(makers(entry, o) for o in x.operands))
        assert {names.index(n) for n in made} <= follows[k], x.name


def test_what_is_independent_is_free() -> None:
    trace = read_hlo(module(chains), H100)
    follows = before(trace)
    kernels = range(len(trace))
    ends = [k for k in kernels if not any(k in follows[j] for j in kernels)]
    assert len(ends) == 2
    assert not follows[ends[0]] & follows[ends[1]]
    assert simulate(trace, "acs-hw").us < 0.75 * simulate(trace, "serial").us


def test_loops_are_unrolled() -> None:
    """Each iteration goes on where the one before it ended; all read the weight that was given."""
    trace = read_hlo(module(scanned), H100)
    names, follows = [k.name for k in trace.kernels], before(trace)
    inside = [n for n in dict.fromkeys(names) if names.count(n) == 5]
    assert names[-5 * len(inside) :] == 5 * inside
    reads = [s for k in trace.kernels for s in dict.fromkeys(k.reads)]
    written = {s for k in trace.kernels for s in k.writes}
    (weight,) = {s for s in reads if s.size == 64 * 64 * 4} - written - set(trace.kernels[0].reads)
    assert reads.count(weight) == 5
    tanh = [k for k, n in enumerate(names) if n == next(n for n in inside if "tanh" in n)]
    assert all(early in follows[late] for early, late in pairwise(tanh))
    # of the last iteration but one nothing waits for the last
    assert not follows[tanh[3]] & set(range(tanh[3] + 1, len(names)))


def test_a_loop_is_as_its_iterations_written_one_by_one() -> None:
    def by_hand(x: Any, w: Any) -> Any:
        sums = []
        for _ in range(5):
            x, total = jnp.tanh(x @ w), x.sum()
            sums.append(total)
        return x, jnp.stack(sums)

    def longest(trace: Trace) -> int:
        """Products on the longest chain."""
        depth: list[int] = []
        for kernel, upstream in zip(trace.kernels, trace.upstream, strict=True):
            own = kernel.registers == 64  # of the analytic model's products
            depth.append(own + max((depth[u] for u in upstream), default=0))
        return max(depth)

    one, other = (read_hlo(module(f), H100) for f in (scanned, by_hand))
    assert longest(one) == longest(other) == 5


@pytest.mark.parametrize("f", [until, chosen])
def test_the_host_waits_where_data_decide(f: Any) -> None:
    assert sum(k.host for k in read_hlo(module(f), H100).kernels) == 1
    assert not any(k.host for k in read_hlo(module(scanned), H100).kernels)
    (condition,) = [k for k in read_hlo(module(f), H100).kernels if k.host]
    assert sum(s.size for s in condition.writes) <= 4


def test_what_xla_dumps_has_the_module_in_it() -> None:
    data = module(chains)
    size, varint = len(data), bytearray()
    while size > 127:
        varint.append(size & 127 | 128)
        size >>= 7
    whole = b"\x0a" + bytes([*varint, size]) + data
    assert read_hlo(whole, H100) == read_hlo(data, H100)


def test_a_long_one_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hlo, "MOST", 8)
    trace = read_hlo(module(scanned), H100)
    assert len(trace) == 8
    assert trace.name.endswith(", first 8 kernels")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "module_0001.jit_chains.hlo.pb"
    path.write_bytes(module(chains))
    assert main(["window", "profile", str(path), "--gpu", "h100", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["trace"] == "module_0001.jit_chains"
    assert told["parallelism all"] > 1.5
    path.write_bytes(b"\x0a\x67short")
    assert main(["window", "profile", str(path)]) == 2
    assert "malformed HLO: it ends too early" in capsys.readouterr().err


MODULE = module(chains)


@settings(max_examples=100)
@given(st.data())
def test_malformed_modules_are_refused_or_read(data: st.DataObject) -> None:
    broken = bytearray(MODULE)
    for _ in range(data.draw(st.integers(0, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    with suppress(WindowError):
        read_hlo(bytes(broken[: data.draw(st.integers(0, len(broken)))]), H100)


def test_a_module_without_an_order_is_refused() -> None:
    lowered: Any = jax.jit(chains).lower(X, X).compiler_ir("hlo")
    with pytest.raises(WindowError, match="is not scheduled"):
        read_hlo(lowered.as_serialized_hlo_module_proto(), H100)
