"""Host environments: absorbing episodes in every autoreset mode, as in a loop over single ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import recurra as rc
from recurra.errors import RecurraError
from recurra.ir.graph import Graph
from recurra.ir.graph_parser import parse
from recurra.ir.verify import verify
from recurra.ops.control import Call
from recurra.reference import interpreter
from recurra.rl import episodes, vector_env
from walks import Walk, Walks, registered

Arrays = dict[str, np.ndarray]
BOUNDS = {"B": 5, "I": 3, "T": 12}


@pytest.fixture(autouse=True, scope="module")
def walks() -> Iterator[None]:
    with registered():
        yield


def evaluate(ctx: rc.Context, bounds: dict[str, int], seed: int = 0) -> Arrays:
    """The logged tensors by name, from the oracle; the graph must verify and round-trip."""
    logs = ctx.builder.logs
    graph = verify(ctx.graph)
    assert str(parse(str(graph))) == str(graph)
    found = interpreter.run(Graph(graph.nodes, tuple(logs.values()), graph.dims), bounds, seed=seed)
    return {name: found[equation] for name, equation in logs.items()}


def random_walk(id: str, **kwargs: Any) -> rc.Context:
    """Random actions; every field of the transition is an output."""
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, B), (i, I), (t, T)):
        env = rc.rl.env.make(id, **kwargs)
        o = rc.like(env.observation_space, domain=(b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        a = (rc.uniform((b, i, t)) * float(env.actions or 0)).floor().cast("i32")
        # Reads the observation, so that the order of calls matters.
        a = rc.where(o[b, i, t].cut(0, 1).sum() > 0.9, 2, a)
        o[b, i, t + 1], r, d = env.step(a)
        last = env.last
        assert last is not None
        rc.output(o=o, a=a, r=r, d=d, next_o=last.next_o, term=last.term, trunc=last.trunc)
        rc.output(live=last.live)
    return ctx


def one_by_one(seeds: tuple[int, ...], actions: np.ndarray) -> Arrays:
    """The same episodes, one environment after another."""
    rows, iterations, steps = actions.shape
    shape = (rows, iterations, steps)
    out: Arrays = {k: np.zeros((*shape, 2)) for k in ("o", "next_o")}
    out |= {k: np.zeros(shape) for k in ("r", "d", "term", "trunc", "live")}
    for b, i in np.ndindex(rows, iterations):
        env, term, trunc = Walk(), False, False
        o, _ = env.reset(seed=seeds[i] + b)
        for t in range(steps):
            p, reward = (b, i, t), 0.0
            out["o"][p], out["live"][p] = o, not (term or trunc)
            if not (term or trunc):
                o, reward, term, trunc, _ = env.step(int(actions[p]) - 1)
            out["r"][p], out["next_o"][p] = reward, o
            out["term"][p], out["trunc"][p], out["d"][p] = term, trunc, term or trunc
    return out


SYNC = [("Walk-v0", {"vector_kwargs": {"autoreset_mode": m.value}}) for m in AutoresetMode]
NATIVE = [(f"Walks-{m.name}-v0", {}) for m in AutoresetMode]


@pytest.mark.parametrize(("id", "kwargs"), NATIVE)
def test_rows_are_single_episodes(id: str, kwargs: dict[str, Any]):
    Walks.seeds = ()
    got = evaluate(random_walk(id, **kwargs), BOUNDS)
    want = one_by_one(Walks.seeds, got["a"])
    assert len(set(Walks.seeds)) == BOUNDS["I"]
    assert want["term"].any()
    assert want["trunc"].any()
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-6, err_msg=name)
    assert got["o"].dtype == got["r"].dtype == np.float32
    assert got["d"].dtype == bool


def test_all_modes_and_vectorizers_agree():
    runs = [evaluate(random_walk(id, **kwargs), BOUNDS, seed=3) for id, kwargs in SYNC + NATIVE]
    for other in runs[1:]:
        for name, value in runs[0].items():
            np.testing.assert_array_equal(other[name], value, err_msg=name)


def test_the_seed_decides():
    ctx = random_walk("Walk-v0")
    first, again = evaluate(ctx, BOUNDS, seed=1), evaluate(ctx, BOUNDS, seed=1)
    other, wider = evaluate(ctx, BOUNDS, seed=2), evaluate(ctx, BOUNDS | {"B": 7}, seed=1)
    np.testing.assert_array_equal(first["o"], again["o"])
    assert (first["o"] != other["o"]).any()
    assert (first["o"][:, 0, 0] != first["o"][:, 1, 0]).any()
    np.testing.assert_array_equal(wider["o"][:5], first["o"])


def test_native_cartpole():
    ctx = random_walk("CartPole-v1", max_episode_steps=15)
    got = evaluate(ctx, {"B": 6, "I": 2, "T": 20})
    step = next(n for n in ctx.graph.nodes.values() if isinstance(n.op, Call))
    assert step.op.fn.key == "CartPole-v1(max_episode_steps=15).reset"
    env = step.op.fn.get().__self__.rows.env
    assert type(env).__name__ == "CartPoleVectorEnv"
    assert env.num_envs == 6
    np.testing.assert_array_equal(got["r"], got["live"].astype(np.float32))
    np.testing.assert_array_equal(got["d"][..., :-1], ~got["live"][..., 1:])
    assert got["d"][..., -1].all()
    assert got["live"][..., 0].all()
    dead = ~got["live"]
    np.testing.assert_array_equal(got["o"][dead], got["next_o"][dead])


def test_equal_programs_print_alike():
    texts = {str(random_walk("CartPole-v1", max_episode_steps=15).graph) for _ in range(2)}
    assert len(texts) == 1


def test_continuous_actions():
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, B), (i, I), (t, T)):
        env = rc.rl.env.make("Pendulum-v1")
        assert env.actions is None
        o = rc.like(env.observation_space, domain=(b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        o[b, i, t + 1], r, _ = env.step(o[b, i, t].cut(0, 1) * 0.5)
        rc.output(r=r)
    assert (evaluate(ctx, BOUNDS)["r"] < 0).all()


def test_discrete_observation_is_one_hot():
    got = evaluate(random_walk("FrozenLake-v1", is_slippery=False), BOUNDS)
    assert got["o"].shape == (5, 3, 12, 16)
    assert (got["o"].sum(-1) == 1).all()
    assert (got["o"][:, :, 0, 0] == 1).all()


def test_one_row_two_loops_and_a_fixed_action():
    ctx = rc.Context(dims="e i t")
    with ctx as ((e, E), (i, I), (t, T)):
        env = rc.rl.env.make("Walks-NEXT_STEP-v0")
        o = rc.like(env.observation_space, domain=(e, i, t))
        o[e, i, 0] = env.reset(domain=(e, i), rows=())
        o[e, i, t + 1], r, _ = env.step(rc.where(t % 2 == 0, 2, rc.value(t * 0 + 1, "i32")))
        rc.output(o=o, r=r)
    Walks.seeds = ()
    got = evaluate(ctx, {"E": 2, "I": 3, "T": 4})
    assert len(set(Walks.seeds)) == 6
    assert got["o"].shape == (2, 3, 4, 2)
    text = str(ctx.graph)
    assert "step_6[e,i-1,T-1]" in text
    assert "step_6[e-1,I-1,T-1]" in text


def test_rows_without_iterations():
    ctx = rc.Context(dims="b t")
    with ctx as ((b, B), (t, T)):
        env = rc.rl.env.make("Walk-v0")
        o = rc.like(env.observation_space, domain=(b, t))
        o[b, 0] = env.reset(domain=(b,))
        o[b, t + 1], r, _ = env.step((rc.uniform((t,)) * 3.0).floor().cast("i32"))
        rc.output(r=r)
    assert evaluate(ctx, {"B": 4, "T": 5})["r"].shape == (4, 5)


def test_calls_out_of_order_are_noticed():
    host = episodes.Episodes(vector_env.Spec("Walk-v0", {}))
    _, token = host.reset(np.zeros(2, np.float32), np.int32(3), np.int32(7))
    action = np.zeros(3, np.int32)
    *_, after = host.step(action, token)
    with pytest.raises(AssertionError, match="lost, repeated or out of order"):
        host.step(action, token)
    assert (int(token), int(after)) == (8, 9)


def test_seed_uses_all_bits():
    assert episodes.seed(np.float32([0.0, 2**-23])) == 1
    assert episodes.seed(np.float32([1 - 2**-23, 1 - 2**-23])) == 2**46 - 1


def test_traceable_has_the_same_episodes():
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, B), (i, I), (t, T)):
        env = rc.rl.env.traceable(
            lambda u: u - 0.5,
            lambda x, a: (x + a, jnp.abs(x[0] + a) > 1.5),
            observation=rc.f32[1],
            actions=3,
        )
        o = rc.like(env.observation_space, domain=(b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        a = (rc.uniform((b, i, t)) * 3.0).floor().cast("i32") - 1
        o[b, i, t + 1], r, d = env.step(a)
        rc.output(o=o, a=a, r=r, d=d, next_o=env.last.next_o, live=env.last.live)
    got = evaluate(ctx, BOUNDS)
    for row in np.ndindex(BOUNDS["B"], BOUNDS["I"]):
        x, live = got["o"][row][0, 0], True
        for t in range(BOUNDS["T"]):
            assert (got["o"][row][t], got["live"][row][t], got["r"][row][t]) == (x, live, live)
            x = np.float32(x + got["a"][row][t]) if live else x
            live = live and abs(x) <= 1.5
            assert (got["next_o"][row][t], got["d"][row][t]) == (x, not live)
    assert got["d"].any()


def test_traceable_gives_its_rewards():
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, B), (i, I), (t, T)):
        env = rc.rl.env.traceable(
            lambda u: u - 0.5,
            lambda x, a: (x + a, 2.0 * x[0], jnp.abs(x[0] + a) > 1.5),
            observation=rc.f32[1],
            actions=3,
        )
        o = rc.like(env.observation_space, domain=(b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        a = rc.randint(0, 3, (b, i, t)) - 1
        o[b, i, t + 1], r, d = env.step(a)
        rc.output(o=o, r=r, d=d, live=env.last.live)
    got = evaluate(ctx, BOUNDS)
    assert np.array_equal(got["r"], np.where(got["live"], 2.0 * got["o"][..., 0], 0.0))
    assert got["d"].any()
    assert not got["d"].all()


@pytest.mark.parametrize(
    ("id", "message"),
    [
        ("NoSuch-v0", "cannot make NoSuch-v0"),
        ("Odd-v0", "the observation space of Odd-v0() is not supported"),
        ("OddAction-v0", "the action space of OddAction-v0() is not supported"),
        ("Walks-NONE-v0", "Walks-NONE-v0() does not say when it resets"),
    ],
)
def test_refused(id: str, message: str):
    with pytest.raises(RecurraError) as error:
        rc.rl.env.make(id)
    assert message in str(error.value)
    assert "  --> test_host_env.py" in str(error.value)


def test_other_episodes_are_refused():
    with pytest.raises(RecurraError, match="episodes='endless' is not known"):
        rc.rl.env.make("Walk-v0", episodes="endless")


@pytest.mark.parametrize(
    ("id", "flaw", "message"),
    [
        ("Walks-SAME_STEP-v0", "final_obs", "hides the last observation"),
        ("Walks-DISABLED-v0", "obeys_mask", "resets rows that it should leave alone"),
    ],
)
def test_flawed_environments(monkeypatch: pytest.MonkeyPatch, id: str, flaw: str, message: str):
    monkeypatch.setattr(Walks, flaw, False)
    with pytest.raises(RecurraError, match=message):
        evaluate(random_walk(id), BOUNDS)


def test_episodes_go_on_in_the_order_of_calls():
    with rc.Context(dims="i s b t") as ((i, _), (s, _), (b, _), (t, _)):
        env = rc.rl.env.make("Walk-v0", episodes="autoreset")
        with pytest.raises(RecurraError) as error:
            env.reset(domain=(b, s, i))
    assert "episodes cannot go on along i, the last dim of (s, i)" in str(error.value)
    assert "calls are made in the order of the context, (i, s): along s first" in str(error.value)


def test_misuse_is_told():
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, _), (i, _), (t, _)):
        env = rc.rl.env.make("Walk-v0")
        a = (rc.uniform((b, i, t)) * 3.0).floor()
        with pytest.raises(RecurraError, match="is stepped before its reset"):
            env.step(a)
        env.reset(domain=(b, i))
        with pytest.raises(RecurraError, match="takes actions i32"):
            env.step(a)
        with pytest.raises(RecurraError, match="the action varies with b, i\n"):
            env.step((rc.uniform((b, i)) * 3.0).floor().cast("i32"))
        env.step(a.cast("i32"))
        with pytest.raises(RecurraError, match="step is written twice"):
            env.step(a.cast("i32"))
        with pytest.raises(RecurraError, match="reset is written twice"):
            env.reset(domain=(b, i))


def test_a_reward_that_only_learning_reads_is_taken_where_the_call_is():
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, B), (i, I), (t, T)):
        env = rc.rl.env.make("Walk-v0")
        o = rc.like(env.observation_space, domain=(b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        w = rc.nn.Parameter(rc.constant([1.0, 0.1]), domain=(i,), name="w")
        y = o @ w
        o[b, i, t + 1], r, _ = env.step((y > 0.5).cast("i32"))
        loss = (r[b, i, t:T].discounted_sum(0.9) * y.square())[0:B, i, 0:T].mean()
        loss.backward()
        rc.optim.SGD([w], lr=0.01).step()
        rc.log(loss=loss)
    want = evaluate(ctx, BOUNDS)["loss"]
    np.testing.assert_allclose(ctx.run(BOUNDS)["loss"], want, rtol=1e-5)
