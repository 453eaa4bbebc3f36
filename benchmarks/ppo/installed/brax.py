"""Brax, driven by `ppo.train` on an environment of its own kind, one training step an epoch.

Its PPO knows normal distributions only: a categorical one is put into its networks here, by its own
interface, with the statistics that its loss logs of a normal one. Episodes are reset by the
environment, not by its wrappers; evaluations are off. Values are clipped like ours; advantages come
from the critic that learns, run again over all samples, which are shuffled. Adam's ε is 1e-8 there.
"""

from __future__ import annotations

import importlib
from typing import Any

from benchmarks.harness import Contestant
from benchmarks.ppo import environment
from benchmarks.ppo.installed.gate import Gate
from benchmarks.ppo.installed.rows import Told, counted
from benchmarks.ppo.workload import (
    ACTIONS,
    CLIP,
    ENTROPY,
    GAMMA,
    LAMBDA,
    LR,
    NORM,
    SEED,
    VALUE,
    Work,
)

jax: Any = importlib.import_module("jax")
jnp: Any = importlib.import_module("jax.numpy")
base: Any = importlib.import_module("brax.envs.base")
distribution: Any = importlib.import_module("brax.training.distribution")
networks: Any = importlib.import_module("brax.training.networks")
ppo_networks: Any = importlib.import_module("brax.training.agents.ppo.networks")
train: Any = importlib.import_module("brax.training.agents.ppo.train").train

ITERATIONS = 10**5  # of the whole run, more than are ever asked for
Env: Any = base.Env
Parametric: Any = distribution.ParametricDistribution


class Rows(Env):  # pyright: ignore[reportUntypedBaseClass]
    """Our rows as one of its environments, batched, as those are that its wrappers give."""

    observation_size: Any = None
    action_size = ACTIONS
    backend = "none"

    def __init__(self, work: Work) -> None:
        self.work, self.observation_size = work, work.features

    def reset(self, rng: Any) -> Any:
        rows = environment.reset(jnp, jax.vmap(jax.random.uniform)(rng), self.work.features)
        zeros = jnp.zeros(len(rng))
        info = {"truncation": zeros, "episode_metrics": {}, "episode_done": zeros}
        return base.State((rows.n, rows.ends), rows.x, zeros, zeros, {}, info)

    def step(self, state: Any, action: Any) -> Any:
        before = environment.State(state.obs, *state.pipeline_state)
        rows, r, done = environment.step(jnp, before, action)
        return state.replace(
            pipeline_state=(rows.n, rows.ends), obs=rows.x, reward=r, done=done.astype(r.dtype)
        )


class Draws:
    """A categorical distribution; `loc` and `scale` are what brax logs of a normal one."""

    def __init__(self, logits: Any) -> None:
        self.logits = logits
        self.loc = self.scale = jnp.zeros(())

    def sample(self, seed: Any) -> Any:
        return jax.random.categorical(seed, self.logits)

    def mode(self) -> Any:
        return self.logits.argmax(-1)

    def log_prob(self, actions: Any) -> Any:
        log_p = jax.nn.log_softmax(self.logits)
        return jnp.take_along_axis(log_p, actions[..., None], -1)[..., 0]

    def entropy(self) -> Any:
        log_p = jax.nn.log_softmax(self.logits)
        return -(jnp.exp(log_p) * log_p).sum(-1)


class Same:
    """No change after the draw."""

    def forward(self, x: Any) -> Any:
        return x

    def inverse(self, y: Any) -> Any:
        return y

    def forward_log_det_jacobian(self, x: Any) -> Any:
        return 0.0


class Categorical(Parametric):  # pyright: ignore[reportUntypedBaseClass]
    """By the interface of its distributions."""

    def __init__(self) -> None:
        super().__init__(ACTIONS, Same(), event_ndims=0, reparametrizable=False)

    def create_dist(self, parameters: Any) -> Any:
        return Draws(parameters)


def make(work: Work) -> Contestant:
    """`ppo.train` of a long run; what it calls after each step, `policy_params_fn`, is the gate."""
    hidden = [work.width] * work.depth
    told = Told()

    def network(observation_size: Any, action_size: int, preprocess_observations_fn: Any) -> Any:
        sizes: dict[str, Any] = dict(hidden_layer_sizes=hidden, activation=jnp.tanh)
        return ppo_networks.PPONetworks(
            networks.make_policy_network(action_size, work.features, **sizes),
            networks.make_value_network(work.features, **sizes),
            Categorical(),
        )

    def after_step(steps: int, _: Any, params: Any) -> None:
        told.taken = steps
        told.trained = sum(x.size for x in jax.tree.leaves(params[1:]))
        gate.wait()

    def whole() -> None:
        train(
            Rows(work), num_timesteps=ITERATIONS * work.B * work.T, num_evals=ITERATIONS + 1,
            run_evals=False, wrap_env=False, num_envs=work.B, batch_size=work.B,
            unroll_length=work.T, num_minibatches=1, num_updates_per_batch=1, episode_length=10**6,
            discounting=GAMMA, gae_lambda=LAMBDA, learning_rate=LR, entropy_cost=ENTROPY,
            clipping_epsilon=CLIP, clipping_epsilon_value=CLIP, vf_loss_coefficient=VALUE,
            max_grad_norm=NORM, normalize_advantage=True, normalize_observations=False,
            network_factory=network, policy_params_fn=after_step, seed=SEED,
        )  # fmt: skip

    gate = Gate(whole)
    return counted("brax", work, told, gate.run, lambda: told.trained)
