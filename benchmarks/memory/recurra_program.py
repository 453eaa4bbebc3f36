"""Ours, as a user writes it: the environment is a host function, and memory an option."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import recurra as rc
from benchmarks.harness import Contestant
from benchmarks.memory import workload as w
from benchmarks.memory.workload import SEED, Game, Work, initial
from recurra.frontend.nn.convolution import Conv2d, Flatten
from recurra.frontend.nn.distributions import Categorical
from recurra.frontend.nn.initializers import zeros
from recurra.frontend.nn.modules import Linear, ReLU, Sequential, Tanh
from recurra.frontend.tensor import as_tensor
from recurra.runtime.executable import Executable

LONG = 1000  # iterations that a run may have
GAME = (rc.i32, rc.i32, rc.i32)


@dataclass(frozen=True)
class Pictures:
    """The environment on the host; its state is the program's."""

    side: int

    def begin(self, b: NDArray[np.int32]) -> tuple[Any, ...]:
        """Pictures [B, 3, side, side], and the game's state."""
        game = w.begin(np, b)
        return (w.picture(np, game, self.side), *game)

    def step(self, a: Any, *game: Any) -> tuple[Any, ...]:
        """Pictures, rewards, ends, and the game's next state."""
        after, r, done = w.step(np, Game(*game), a)
        return (w.picture(np, after, self.side), r, done, *after)


Layers = tuple[Sequential, Linear, Linear]


def network(work: Work, domain: Any) -> Layers:
    """The body, and two heads, that start at the bench's parameters."""
    size, inputs = work.side // w.PLACES, w.CHANNELS * w.PLACES**2
    none = zeros()  # draws nothing: the first draw is an action's
    eye = Conv2d(3, w.CHANNELS, size, size, domain=domain, init=none)
    body = Linear(inputs, w.HIDDEN, domain, none, "_body")
    actor = Linear(w.HIDDEN, w.ACTIONS, domain, none, "_actor")
    critic = Linear(w.HIDDEN, 1, domain, none, "_critic")
    params = [p for layer in (eye, body, actor, critic) for p in layer.params]
    for param, x in zip(params, initial(work).values(), strict=True):
        param.restart(x)
    return Sequential(eye, ReLU(), Flatten(), body, Tanh()), actor, critic


@dataclass(frozen=True)
class Steps:
    """What is known of every step: picture and the next one, policy, value, action, reward, and 0
    where the ball came down."""

    o: Any
    new_o: Any
    pi: Categorical
    v: Any
    a: Any
    r: Any
    going: Any


def ppo(steps: Steps, adv: Any, b: Any, t: Any) -> Any:
    """The loss of one epoch of one minibatch."""
    returns = adv + steps.v.detach()
    adv = rc.rl.normalize(adv, over=(b, t), eps=w.ADVANTAGE_EPS)
    logp = steps.pi.log_prob(steps.a)
    return clipped(steps.pi, steps.v, logp - logp.detach(), adv, returns)


def clipped(pi: Categorical, v: Any, change: Any, adv: Any, returns: Any) -> Any:
    """PPO's loss where the logarithm of a chance has changed so much."""
    ratio = change.exp()
    policy = rc.maximum(-adv * ratio, -adv * ratio.clip(1 - w.CLIP, 1 + w.CLIP))
    return policy + w.VALUE * 0.5 * (v - returns).square() - w.ENTROPY * pi.entropy()


def reinforce(steps: Steps, g: Any) -> Any:
    """The loss of a return g, which the value stands against."""
    policy = -(g - steps.v).detach() * steps.pi.log_prob(steps.a)
    return policy + w.VALUE * 0.5 * (steps.v - g).square() - w.ENTROPY * steps.pi.entropy()


def acted(work: Work, layers: Layers, b: Any, i: Any, t: Any, T: Any) -> Steps:
    """Steps of the game, which goes on from iteration to iteration."""
    body, actor, critic = layers
    picture = rc.u8[3, work.side, work.side]
    names = ("o", "ball", "row", "paddle")
    o, *game = (
        rc.like(x, domain=(b, i, t), name=name)
        for x, name in zip((picture, *GAME), names, strict=True)
    )
    seen = body(o.cast("f32") / 255.0)
    pi, v = Categorical(actor(seen)), critic(seen).index(0)
    a = pi.sample()  # the one draw, at every b, i, t
    env = Pictures(work.side)
    start = rc.call(env.begin, (picture, *GAME), b, batch=(b,))
    types = (picture, rc.f32, rc.boolean, *GAME)
    new_o, r, d, *after = rc.call(env.step, types, a, *game, batch=(b,))
    for x, x0, x1 in zip((o, *game), start, (new_o, *after), strict=True):
        x[(i == 0) & (t == 0)] = x0
        x[b, i, 0] = x1[b, i - 1, T - 1]
        x[b, i, t + 1] = x1
    return Steps(o, new_o, pi, v, a, r, 1.0 - d.cast("f32"))


def advantages(steps: Steps, after_v: Any, b: Any, i: Any, t: Any, T: Any) -> Any:
    """Generalized advantages; `after_v` is the value after the last step."""
    v_after = rc.like(rc.f32, domain=(b, i, t), name="v_after")
    v_after[b, i, T - 1] = after_v
    v_after[b, i, t] = steps.v[b, i, t + 1]
    delta = (steps.r + w.GAMMA * steps.going * v_after - steps.v).detach()
    adv = rc.like(rc.f32, domain=(b, i, t), name="adv")
    adv[b, i, T - 1] = delta
    adv[b, i, t] = delta + w.GAMMA * w.LAMBDA * steps.going * adv[b, i, t + 1]
    return adv


def step(params: list[Any], loss: Any) -> tuple[list[Any], Any]:
    """A step of Adam; gives gradients and their norm, which is held."""
    loss.backward(wrt=params)
    grads = [p.grad for p in params]
    norm = rc.optim.clip_grad_norm(params, w.NORM)
    rc.optim.Adam(params, lr=w.LR, betas=(w.BETA1, w.BETA2), eps=w.EPS).step()
    return grads, norm


def program(work: Work, iterations: int, gradients: bool = False, **options: Any) -> Executable:
    """The program; `gradients` gives those and the next parameters too."""
    ctx = rc.Context(dims="b i t")
    with ctx as ((b, B), (i, I), (t, T)):
        layers = body, actor, critic = network(work, (i,))
        made = acted(work, layers, b, i, t, T)
        if work.n >= work.T:
            loss = reinforce(made, made.r[b, i, t:T].discounted_sum(w.GAMMA))
        elif work.n:
            some = made.r[b, i, t : rc.min(t + work.n, T)]
            loss = reinforce(made, some.discounted_sum(w.GAMMA))
        else:
            after_v = critic(body(made.new_o.cast("f32") / 255.0)).index(0)
            adv = advantages(made, after_v, b, i, t, T)
            loss = ppo(made, adv, b, t)
        params = [*body.params, *actor.params, *critic.params]
        grads, norm = step(params, loss[0:B, i, 0:T].mean())
        rc.log(reward=made.r[0:B, i, 0:T].mean(), norm=norm)
        if gradients:
            for name, g, p in zip(work.shapes, grads, params, strict=True):
                rc.output(**{f"d_{name}": as_tensor(g), f"p_{name}": p})
    return ctx.compile({B: work.B, I: iterations, T: work.T}, **options)


def shuffled(work: Work, iterations: int, gradients: bool = False, **options: Any) -> Executable:
    """PPO in epochs of shuffled minibatches; gradients and parameters are those of the last one."""
    ctx = rc.Context(dims="b i e m n t")
    with ctx as ((b, B), (i, I), (e, E), (m, M), (n, N), (t, T)):
        body, actor, critic = network(work, ((i, e, m),))
        start = body[i, 0, 0], actor[i, 0, 0], critic[i, 0, 0]
        made = acted(work, start, b, i, t, T)
        after_v = start[2](start[0](made.new_o.cast("f32") / 255.0)).index(0)
        adv = advantages(made, after_v, b, i, t, T)
        k = rc.permutation(B * T, at=m * N + n, domain=(i, e))
        every = (made.o, made.a, made.pi.log_prob(made.a), adv, adv + made.v)
        pictures, a, logp, adv, returns = (rc.rl.rows(x.detach(), k, over=(b, t)) for x in every)
        seen = body(pictures.cast("f32") / 255.0)
        pi, v = Categorical(actor(seen)), critic(seen).index(0)
        adv = rc.rl.normalize(adv, over=(n,), eps=w.ADVANTAGE_EPS)
        loss = clipped(pi, v, pi.log_prob(a) - logp, adv, returns)
        params = [*body.params, *actor.params, *critic.params]
        grads, norm = step(params, loss[i, e, m, 0:N].mean())
        last = i, E - 1, M - 1
        rc.log(reward=made.r[0:B, i, 0:T].mean(), norm=norm[last])
        if gradients:
            for name, g, p in zip(work.shapes, grads, params, strict=True):
                rc.output(**{f"d_{name}": as_tensor(g)[last], f"p_{name}": p[i, 0, 0]})
    part = work.B * work.T // work.minibatches
    sizes = {B: work.B, I: iterations, T: work.T, E: work.epochs, M: work.minibatches, N: part}
    return ctx.compile(sizes, **options)


def contestant(work: Work) -> Contestant:
    """The compiled program; with `memory`, or `offload`, it is made to fit."""
    steps: list[Any] = []
    options = {"memory": work.memory, "offload": work.offload}
    how: dict[str, Any] = {k: x for k, x in options.items() if x} | {"backend": "jax"}

    made = shuffled if work.shuffled else program

    def run(index: int) -> NDArray[Any]:
        if not steps:
            steps.append(made(work, LONG, launch_steps=1, **how).execution.steps(SEED))
        return np.concatenate([next(steps[0]).outputs["reward"] for _ in range(index)])

    def answer() -> Mapping[str, NDArray[Any]]:
        result = made(work, 2, gradients=True, launch_steps=1, **how).run(seed=SEED)
        gradient = {f"d_{k}": result[f"d_{k}"][0] for k in work.shapes}
        theta = {k: result[f"p_{k}"][1] for k in work.shapes}
        counts = {"env_steps": np.array(work.B * work.T)}
        return {"reward": result["reward"][:1], **gradient, **theta, **counts}

    named = [f"{k} {x}" for k, x in options.items() if x]
    return Contestant(", ".join(["recurra", *named]), run, answer)
