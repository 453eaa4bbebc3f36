"""What a program holds goes when it goes: arrays, functions, environments, compiled code."""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recurra as rc
from recurra.ir.user_objects import HostFunction

BACKENDS = ["numpy", "jax", "torch"]
SIDE = 256  # of a constant, so that one that stays is seen
BYTES = SIDE * SIDE * 4


class Owner:
    """Something that a function of the user's holds."""


def constants(backend: str, k: int) -> list[Any]:
    """A large array, and the program that reads it."""
    array = np.random.default_rng(k).normal(size=(SIDE, SIDE)).astype("f4")
    ctx = rc.Context(dims="t")
    with ctx as ((t, T),):
        rc.output(y=(rc.constant(array) * rc.value(t)).sum())
    program = ctx.compile({T: 3}, backend=backend)
    program.run()
    held = [x.get() for x in ctx.builder.resources.values()]
    assert sum(x.nbytes for x in held) == BYTES
    return [ctx, ctx.builder, program, array, *held]


def host_calls(backend: str, k: int) -> list[Any]:
    """A function that the host calls, and what it holds."""
    owner, ctx = Owner(), rc.Context(dims="t")

    def doubled(x: np.ndarray) -> np.ndarray:
        assert owner is not None
        return 2 * x

    with ctx as ((t, T),):
        rc.output(y=rc.call(doubled, rc.f32, rc.value(t).cast("f32") + k))
    program = ctx.compile({T: 3}, backend=backend)
    assert program.run()["y"].tolist() == [2.0 * (k + t) for t in range(3)]
    return [ctx, ctx.builder, program, doubled, owner]


def environments(backend: str, k: int) -> list[Any]:
    """An environment on the host; learning from it."""
    ctx = rc.Context(dims="b i t")
    with ctx as ((b, B), (i, I), (t, T)):
        env = rc.rl.env.make("CartPole-v1")
        net = rc.nn.DNNBuilder(domain=(i,)).from_env(env, hidden=[4]).build()
        o = rc.like(env.observation_space, domain=(b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        pi = net(o)
        a = pi.sample()
        o[b, i, t + 1], r, _ = env.step(a)
        (-r * pi.log_prob(a))[0:B, i, 0:T].mean().backward()
        rc.optim.Adam(net.params, lr=1e-2).step()
        rc.log(r=r[0:B, i, 0:T].mean())
    program = ctx.compile({B: 2, I: 2, T: 3}, backend=backend)
    program.run(seed=k)
    calls = [x for x in ctx.builder.resources.values() if isinstance(x, HostFunction)]
    assert [x.key for x in calls] == ["CartPole-v1().reset", "CartPole-v1().step"]
    return [ctx, ctx.builder, program, env, *(x.get().__self__ for x in calls)]


def jax_functions(backend: str, k: int) -> list[Any]:
    """Functions of JAX, whole and taken apart, and the array and the object that they hold."""
    import jax.numpy as jnp

    owner, ctx, table = Owner(), rc.Context(dims="i t"), jnp.arange(4.0) + k

    def waves(x: Any) -> Any:
        assert owner is not None
        return jnp.sin(x * table)

    def bent(x: Any) -> Any:
        assert owner is not None
        return jnp.tanh(x + table)

    with ctx as ((i, I), (t, T)):
        w = rc.nn.Parameter(rc.constant(np.ones(4, "f4")), (i,), "w")
        x = rc.import_jax(bent)(rc.jax_fn(waves)(w * rc.uniform((i, t), (4,))))
        x[i, 0:T].mean().backward()
        rc.optim.SGD([w], lr=0.1).step()
        rc.log(x=x[i, 0:T].mean())
    program = ctx.compile({I: 2, T: 3}, backend=backend)
    program.run(seed=k)
    return [ctx, ctx.builder, program, waves, bent, owner, table]


def classes_of_users(backend: str, k: int) -> list[Any]:
    """Modules, distributions, optimizers and numbers of classes that are made for one program."""

    class Net(rc.nn.Module):
        def __init__(self, size: int, domain: Any):
            self.layer, self.owner = rc.nn.Linear(size, size, domain=domain), Net

        def __call__(self, x: Any) -> Any:
            return self.layer(x)

    class Choice(rc.nn.Categorical):
        def __init__(self, logits: Any):
            super().__init__(logits)

    class Steps(rc.optim.SGD):
        def __init__(self, params: Any, lr: float):
            super().__init__(params, lr=lr)

    class Rate(float):
        pass

    ctx = rc.Context(dims="i")
    with ctx as ((i, I),):
        net = Net(3, (i,))
        y = net(rc.constant(np.ones(3, "f4")))
        rc.output(a=Choice(y).sample())
        y.sum().backward()
        Steps(net.params, Rate(0.1)).step()
    program = ctx.compile({I: 2}, backend=backend)
    program.run(seed=k)
    return [ctx, ctx.builder, program, Net, Choice, Steps, Rate]


PROGRAMS: list[Callable[[str, int], list[Any]]] = [
    constants,
    host_calls,
    environments,
    jax_functions,
    classes_of_users,
]


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", PROGRAMS)
def test_nothing_stays_of_programs_that_are_gone(
    make: Callable[[str, int], list[Any]], backend: str
) -> None:
    left: list[tuple[str, weakref.ref[Any]]] = []
    for k in range(3):
        left += [(f"{type(x).__name__} {k}", weakref.ref(x)) for x in make(backend, k)]
    gc.collect()
    assert [name for name, x in left if x() is not None] == []


def grown(backend: str, programs: int) -> int:
    """Bytes of Python and NumPy that some programs leave behind, once a few have run."""
    for k in range(2):
        constants(backend, k)
    gc.collect()
    tracemalloc.start()
    for k in range(programs):
        constants(backend, 2 + k)
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_ten_programs_leave_less_than_one_of_their_constants(backend: str) -> None:
    code = f"import test_lifetime; print(test_lifetime.grown({backend!r}, 10))"
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(found.stdout) < BYTES
