"""PPO by hand: every program against the oracle, every pair of programs against each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.harness import check
from benchmarks.ppo import environment, kernels
from benchmarks.ppo.kernels import BATCH_FIRST, BATCH_LAST, packed, unpacked
from benchmarks.ppo.oracle import forward, learned, log_softmax, recorded, start
from benchmarks.ppo.programs import LAST, LAST_KEPT, batch_last_kept, python_loop, region_of
from benchmarks.ppo.published_schemes_jax import purejaxrl, purejaxrl_unshuffled
from benchmarks.ppo.published_schemes_torch import cleanrl, cleanrl_cached
from benchmarks.ppo.recurra_program import contestant
from benchmarks.ppo.regions import Form, Part, begin, learn, region, stores
from benchmarks.ppo.workload import NETS, NORM, RESET, SAMPLE, SEED, Work, initial
from benchmarks.threefry import uniform
from documents import ROOT
from hlo import written_whole
from ppo_batches import episodes, theta_of

SMALL = Work(B=6, T=8, width=8, depth=2, features=5)
DEEP = Work(B=6, T=8, width=8, depth=3, features=5)
FORMS = {
    "last": LAST,
    "last, kept": LAST_KEPT,
    "last, kept, tiles of 4 steps": Form(BATCH_LAST, rows=24),
    "first, tiles of 2 steps, fused": Form(BATCH_FIRST, keep=False, rows=12, fused=True),
    "last, kept, fused, hoisted, unrolled": Form(fused=True, hoisted=True, unroll=3),
    "late, tiles of 4 steps": Form(BATCH_LAST, rows=24, late=True),
    "late, first, not kept": Form(BATCH_FIRST, keep=False, rows=12, late=True),
}


def stored_batch_error(form: Form, work: Work, dtype=jnp.float32) -> float:
    """How far the learner's gradient of one stored batch is from the oracle's, relative."""
    theta = theta_of(work)
    batch = episodes(work, theta)
    expected, _ = learned(start(theta), batch)
    th = {k: jnp.asarray(x, dtype) for k, x in theta.items()}
    ws = {k: x.astype(stored.dtype) for k, x, stored in in_stores(form, work, theta, batch, dtype)}
    last = batch.o[-1].astype(dtype)
    gradient = jax.jit(partial(learn, form, work, part=Part(work.B * work.T)))
    found = unpacked(
        gradient(packed(th) if form.fused else th, ws, last.T if is_last(form) else last)
    )
    assert found.keys() == expected.keys()
    return max(abs(found[k] - x).max() / abs(x).max() for k, x in expected.items())


def is_last(form: Form) -> bool:
    return form.layout.axis == 0


def in_stores(form, work, theta, batch, dtype):
    """The batch as acting leaves it: every store's name, contents and likeness."""
    values = {"o": batch.o[:-1], "a": batch.a, "r": batch.r, "done": batch.done}
    through = {net: forward(theta, net, batch.o[:-1]) for net in NETS}
    values |= {"value": batch.value, "log_p": log_softmax(through["actor"][-1])}
    values |= {f"{net}{k}": h for net in NETS for k, h in enumerate(through[net][1:-1], 1)}
    for k, store in stores(form, work, dtype).items():
        tiles = store.shape[0]
        x = values[k].reshape(tiles, -1, *values[k].shape[2:])
        yield k, np.swapaxes(x, 1, 2) if x.ndim == 3 and is_last(form) else x, store


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_gradient_of_a_stored_batch_is_the_oracles(form):
    assert stored_batch_error(form, SMALL) < 1e-5


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
def test_the_gradient_of_deep_networks():
    with jax.enable_x64(True):
        assert stored_batch_error(LAST_KEPT, DEEP, jnp.float64) < 1e-12


@cache
def by_oracle() -> dict[str, np.ndarray]:
    """The answer of the first iteration of the whole program, in float64, without JAX."""
    work = SMALL
    theta = initial(work, SEED, np.float64)
    seed, i, b = jnp.uint32(SEED), jnp.int32(0), jnp.arange(work.B)

    def draws(op, t):
        return np.asarray(uniform(seed, op, i, b, t, jnp.float32), np.float64)

    state = environment.reset(np, draws(RESET, 0), work.features)
    o, a, r, done = [state.x], [], [], []
    for t in range(work.T):
        h = state.x
        for k in (1, 2):
            h = np.tanh(h @ theta[f"actor_W{k}"] + theta[f"actor_b{k}"])
        p = np.exp(h @ theta["actor_W3"] + theta["actor_b3"])
        p /= p.sum(-1, keepdims=True)
        action = (p.cumsum(-1)[:, :3] < draws(SAMPLE, t)[:, None]).sum(-1)
        state, reward, ended = environment.step(np, state, action)
        for xs, x in zip((o, a, r, done), (state.x, action, reward, ended), strict=True):
            xs.append(x)
    batch = recorded(theta, *(np.stack(x) for x in (o, a, r, done)))
    gradient, after = learned(start(theta), batch)
    norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
    assert norm > NORM, "the norm has to be held, else nothing tests that"
    answer = {f"d_{k}": g for k, g in gradient.items()} | after.theta
    return answer | {"reward": np.array([batch.r.mean()])}


def error(answer) -> float:
    expected = by_oracle()
    assert answer.keys() - expected.keys() == {"env_steps", "parameters"}
    return max(abs(answer[k] - x).max() / abs(x).max() for k, x in expected.items())


PROGRAMS = {k: partial(region_of, "region", form) for k, form in list(FORMS.items())[2:]}
PROGRAMS["Python loop"] = python_loop


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@pytest.mark.parametrize("make", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_does_what_the_oracle_does(make):
    """Acting, learning and the first step of Adam, from the same draws, in float64."""
    with jax.enable_x64(True):
        answer = make(SMALL, dtype=jnp.float64).answer()
    assert error(answer) < 1e-10
    assert answer["env_steps"] == 48


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
def test_a_wrong_slope_is_seen(monkeypatch):
    monkeypatch.setattr(kernels, "ENTROPY", 0.0)
    assert stored_batch_error(LAST_KEPT, SMALL) > 1e-4
    with jax.enable_x64(True):
        assert error(region_of("region", LAST_KEPT, SMALL, dtype=jnp.float64).answer()) > 1e-4


@pytest.mark.slow
def test_many_launches_of_one_iteration_are_one_of_many():
    """`answer` launches one iteration, `run` four at once; six are launches of four and two."""
    one, many = batch_last_kept(SMALL), batch_last_kept(SMALL)
    singly = np.concatenate([one.run(1) for _ in range(6)])
    assert many.run(6).tolist() == singly.tolist()
    assert one.answer()["reward"] == singly[0]


@pytest.mark.slow
def test_it_learns():
    """Toward the action whose push raises the rewarded features."""
    rewards = batch_last_kept(Work(B=16, T=32, width=16, features=8)).run(160)
    assert rewards[-8:].mean() > rewards[:8].mean() + 0.05


SHARDS = """
from benchmarks.ppo.shards import host_devices, sharded
host_devices(2)
import jax, json
jax.config.update("jax_enable_x64", True)
from benchmarks.ppo.workload import Work
answer = sharded(Work(**{work}), dtype="float64").answer()
print(json.dumps({{k: x.tolist() for k, x in answer.items()}}))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
def test_shards_make_the_same_step():
    """On two devices, in a process that has them: to rounding what one device does."""
    code = SHARDS.format(work=asdict(SMALL))
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu"}
    out = subprocess.check_output([sys.executable, "-c", code], text=True, env=env)
    assert error({k: np.array(x) for k, x in json.loads(out).items()}) < 1e-10


SCHEMES = [purejaxrl, purejaxrl_unshuffled, cleanrl, cleanrl_cached]


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
@pytest.mark.parametrize("make", SCHEMES)
def test_a_published_scheme_makes_the_same_step(make):
    """From the same draws, in float32; a shuffle of the one minibatch changes nothing."""
    assert error(make(SMALL).answer()) < 2e-5


@pytest.mark.slow
def test_a_published_scheme_learns():
    rewards = purejaxrl(Work(B=16, T=32, width=16, features=8)).run(160)
    assert len(rewards) == 160
    assert rewards[-8:].mean() > rewards[:8].mean() + 0.05


@pytest.mark.slow
def test_stores_stay_where_they_are():
    """Every leaf is donated; no loop writes a whole store."""
    form = LAST_KEPT
    work = Work(B=16, T=40, width=8, depth=2, features=6)
    carried, room = begin(form, work, SEED, jnp.float32), stores(form, work, jnp.float32)
    numbers = jnp.uint32(SEED), jnp.int32(0), jnp.int32(1)
    compiled = region(form, work).lower(carried, room, *numbers).compile()
    donated = sum(x.nbytes for x in jax.tree.leaves((carried, room)))
    assert compiled.memory_analysis().alias_size_in_bytes == donated
    big = {x.shape for x in room.values() if x.ndim == 3}
    assert not written_whole(compiled.as_text(), big)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
def test_ours_is_the_program_by_hand() -> None:
    us, them = contestant(SMALL), batch_last_kept(SMALL)
    assert check((us, us.answer()), (them, them.answer()), 1e-4) == "exact"
