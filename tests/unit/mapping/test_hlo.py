"""Imported problems: their tensors are XLA's logical buffers; costs are counted by hand."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import recurra as rc
from buffer_assignment import read_assignment
from recurra.backends.jax.hlo import of_function
from recurra.hlo.module import read_module
from recurra.mapping.imports import from_jax, from_program
from recurra.mapping.machine_model import TPU_V4I, Machine, machine_of
from recurra.mapping.model_library import LIBRARY, instance
from recurra.mapping.models.recurrent import gru, lstm, translation_training
from recurra.mapping.models.reinforcement_learning import alphatensor, ppo_step
from recurra.mapping.models.sequence import wavenet
from recurra.mapping.problem_from_hlo import extract
from recurra.storage.mapping_problem import ProblemError, Roofline

F = jax.ShapeDtypeStruct
BIG = F((64, 64), jnp.float32)  # 16 KiB
PLAIN = Machine("plain", 1 << 20, 1e9, 4e9, 1e9, 1e12, 1e10, 0.0, 1, 512)


def multiplied(x: Any, y: Any) -> Any:
    return jnp.dot(jnp.dot(x, y), jnp.dot(y, x))


def written(cache: Any, x: Any, at: Any) -> Any:
    return lax.dynamic_update_slice(cache, x[None], (at, 0, 0))


def repeated(x: Any, y: Any) -> Any:
    return lax.fori_loop(0, 10, lambda _, z: jnp.tanh(z @ y), x)


def grad(x: Any, y: Any) -> Any:
    return jax.grad(lambda x: jnp.sin(x @ y).sum() + (x.sum(0) ** 2).sum())(x), y.T + 1


def arrays(*shapes: Any) -> tuple[Any, ...]:
    return tuple(shapes)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]] = {
    "multiplied": (multiplied, (BIG, BIG), ()),
    "written": (written, (F((32, 64, 64), jnp.float32), BIG, F((), jnp.int32)), (0,)),
    "grad": (grad, (BIG, BIG), ()),
    "wavenet": wavenet(4, 64, 32, 5),
    "lstm": lstm(4, 5, 64),
    "gru_infer": gru(4, 4, 64),
    "nmt_train": translation_training(4, 3, 64, 1, 64),
    "alphatensor": alphatensor(4, 4, 2, 32, 1),
    "ppo_step": ppo_step(64, 16, 32, 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_tensors_are_logical_buffers(name: str) -> None:
    function, arguments, donated = FUNCTIONS[name]
    hlo = of_function(function, *arguments, donated=donated)
    found = extract(hlo.module, PLAIN)
    ours = {(v.instruction, v.leaf, v.nbytes) for v in found.values}
    module = read_module(hlo.module)
    made = module.computations[module.entry].instructions
    theirs = {
        (b.instruction, b.leaf, b.nbytes)
        for b in read_assignment(hlo.assignment)
        if b.nbytes >= PLAIN.smallest and made[b.instruction].op != "tuple"
    }
    assert ours == theirs
    assert found.problem.total > 0


def test_what_xla_updates_in_place_is_a_group() -> None:
    function, arguments, donated = FUNCTIONS["written"]
    hlo = of_function(function, *arguments, donated=donated)
    found = extract(hlo.module, PLAIN)
    places = {(b.instruction, b.leaf): b.place for b in read_assignment(hlo.assignment)}
    groups: dict[int, set[tuple[int, int]]] = {}
    for b in found.problem.buffers:
        if b.alias_id is not None:
            v = found.values[b.tensor_id]
            groups.setdefault(b.alias_id, set()).add(places[v.instruction, v.leaf])
    assert [len(x) for x in groups.values()] == [1]
    (step,) = (t for t, x in enumerate(found.problem.instructions) if "update" in x.name)
    cost = found.problem.instructions[step].cost
    assert isinstance(cost, Roofline)
    # The slice is read and written, the rest of the cache is not moved.
    assert sorted(cost.slow) == [0, 16384_000, 16384_000]


def test_costs_of_a_product() -> None:
    problem = from_jax(jnp.dot, BIG, F((64, 32), jnp.float32), machine=PLAIN)
    assert len(problem.buffers) == 3
    (product,) = problem.instructions
    assert isinstance(product.cost, Roofline)
    assert product.cost.compute == 2 * 64 * 32 * 64  # at 10^12 operations per second, ps
    assert product.cost.slow == (16384_000, 8192_000, 8192_000)
    assert product.cost.fast == (4096_000, 2048_000, 2048_000)
    assert problem.total == (32768 - 8192) * 1000
    assert product.supply == 8192_000
    idle = from_jax(jnp.dot, BIG, BIG, machine=PLAIN, supply="idle")
    assert idle.instructions[0].supply == 0
    assert [(b.live_range, b.is_output) for b in problem.buffers] == [
        ((-1, 0), False),
        ((-1, 0), False),
        ((0, 1), True),
    ]


def test_a_loop_is_one_step_or_the_program() -> None:
    hlo = of_function(repeated, BIG, BIG)
    outside = extract(hlo.module, PLAIN).problem
    (t,) = (t for t, x in enumerate(outside.instructions) if "while" in x.name)
    cost = outside.instructions[t].cost
    assert isinstance(cost, Roofline)
    assert cost.compute >= 10 * 2 * 64**3
    uses = [outside.buffers[i] for i in outside.uses[t]]
    (carried, made) = (b for b in uses if b.alias_id is not None)
    assert (carried.is_output, made.is_output) == (False, True)
    inside = extract(hlo.module, PLAIN, loop=1).problem
    assert 0 < inside.total <= outside.total
    with pytest.raises(ProblemError, match=r"no loop 2 levels inside.*\n.*\n.*loop=1"):
        extract(hlo.module, PLAIN, loop=2)


def test_our_own_programs() -> None:
    ctx = rc.Context(num_dims=2)
    with ctx as ((i, I), (t, T)):
        x = rc.like(rc.f32[64, 64], domain=(i, t))
        w = rc.nn.Parameter(rc.constant(np.full((64, 64), 0.1, np.float32)), domain=(i,), name="w")
        x[i, 0] = 1.0
        x[i, t + 1] = (w @ x).tanh()
        loss = x[i, T - 1].sum()
        loss.backward()
        rc.optim.SGD([w], lr=0.01).step()
        rc.log(loss=loss)
    program = ctx.compile({I: 4, T: 8})
    whole = from_program(program, machine=PLAIN)
    step = from_program(program, machine=PLAIN, loop=2)
    assert 0 < step.total < whole.total
    with pytest.raises(ProblemError, match="no region 7"):
        from_program(program, 7)


MODULE = of_function(multiplied, BIG, BIG).module


@settings(max_examples=200)
@given(st.data())
def test_malformed_modules_are_refused_or_read(data: st.DataObject) -> None:
    broken = bytearray(MODULE)
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(broken) - 1))
        broken[at] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(broken)))
    with suppress(ProblemError):
        extract(bytes(broken[:end]), PLAIN)


def test_what_is_wrong_with_a_module_is_said() -> None:
    with pytest.raises(ProblemError, match="malformed HLO: a number does not end"):
        extract(MODULE[:-5], PLAIN)
    with pytest.raises(ProblemError, match="ends too early\n  105 bytes wanted, 7 there"):
        extract(b"\x0a\x67short", PLAIN)
    with pytest.raises(ProblemError, match="no entry computation"):
        extract(b"", PLAIN)
    lowered: Any = jax.jit(multiplied).lower(BIG, BIG).compiler_ir("hlo")
    with pytest.raises(ProblemError, match=r"is not scheduled.*\n.*\n.*compiled executable"):
        extract(lowered.as_serialized_hlo_module_proto(), PLAIN)


@pytest.mark.parametrize("name", LIBRARY)
def test_the_library_is_there(name: str) -> None:
    problem = instance(name)
    assert problem.name == name
    assert 100 <= len(problem.buffers) <= 10**4
    assert problem.fast_size == LIBRARY[name].mebibytes << 20


def test_the_library_is_made_by_its_script() -> None:
    made, kept = LIBRARY["wavenet"].problem("wavenet"), instance("wavenet")
    assert made.fast_size == kept.fast_size
    assert made.total == pytest.approx(kept.total, rel=0.2)  # fusion differs between processors
    with pytest.raises(ProblemError, match="no instance 'lenet'\n  there are: ppo_step, alexnet"):
        instance("lenet")


def test_machines(tmp_path: Any) -> None:
    assert machine_of("tpu-v4i") is TPU_V4I
    path = tmp_path / "m.json"
    path.write_text(str(PLAIN))
    assert machine_of(str(path)) == PLAIN
    for text, message in [
        ("{", "does not describe a machine"),
        ('{"name": "x"}', "missing 6 required"),
        (str(PLAIN).replace("1000000000.0", "-1.0"), "slow_bandwidth is -1.0, not positive"),
        (str(PLAIN).replace("4000000000.0", "1.0"), "its fast memory is the slower one"),
        (str(PLAIN).replace("1000000000.0", "NaN"), "slow_bandwidth is nan"),
        (str(replace(PLAIN, alignment=8)).replace(": 8,", ": 0.5,"), "alignment is 0.5, not whole"),
        (str(PLAIN).replace("4000000000.0", '"much"'), "fast_bandwidth is 'much', not a number"),
    ]:
        path.write_text(text)
        with pytest.raises(ProblemError, match=message):
            machine_of(str(path))
    with pytest.raises(ProblemError, match="no machine 'tpu'\n  there are: tpu-v4i"):
        machine_of("tpu")
