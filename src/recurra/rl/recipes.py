"""Recipes: the programs that `recurra train` knows, with their settings.

ctx, bounds = Ppo(env="CartPole-v1").program()
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING

from recurra.errors import RecurraError
from recurra.rl.recipe import Recipe

if TYPE_CHECKING:
    from recurra.frontend.context import Context


@dataclass(frozen=True)
class Trainable(Recipe):
    """A recipe as a command: it trains from the start, or resumes a run."""

    def otherwise(self) -> Recipe | None:
        """The default settings: with --resume those of the run."""
        from recurra.report.runs import RunFolder
        from recurra.rl.train import configured
        from recurra.support.command_line_text import flag

        if self.resume is None:
            return None
        try:
            config = RunFolder(self.resume).read_config()
        except RecurraError as error:
            facts = filter(None, (error.facts, f"given as {flag('resume', self.resume)}"))
            raise RecurraError(error.what, facts="\n  ".join(facts), hint=error.hint) from None
        return replace(configured(self, config), config=config)

    def __call__(self) -> int:
        """Run the command."""
        from recurra.rl.train import train

        if (here := str(Path.cwd())) not in sys.path:
            sys.path.append(here)  # for --env mymodule:Corridor-v0, as `python -m` finds it
        with redirect_stdout(sys.stderr) if self.json else nullcontext():  # environments print
            result = train(self)
        if self.json:
            import json

            print(json.dumps(result))
        else:
            if "contractions" in result:
                print(f"contractions: {result['contractions']}")
            print(f"report: {result['report']}")
        return 0


@dataclass(frozen=True)
class Reinforce(Trainable):
    """Train a policy by REINFORCE (Williams, 1992), with returns normalized per iteration.

    Example: recurra train reinforce --env CartPole-v1 --iterations 100
    """

    lr: float = 1e-2
    """Learning rate of Adam in the first iteration."""
    lr_decay: float = 0.99
    """Its factor per iteration."""
    hidden: tuple[int, ...] = (32, 32)
    """Widths of the hidden layers."""

    def program(self) -> tuple[Context, dict[object, int]]:
        """The program, and the bounds to compile it for."""
        import recurra as rc

        ctx = rc.Context(dims="b i t")
        with ctx as ((b, B), (i, I), (t, T)):
            env = rc.rl.env.make(self.env)
            dnn = rc.nn.DNNBuilder(domain=(i,)).from_env(env, hidden=self.hidden).build()
            o = rc.like(env.observation_space, domain=(b, i, t), name="o")
            o[b, i, 0] = env.reset(domain=(b, i))
            pi = dnn(o)
            a = pi.sample()
            o[b, i, t + 1], r, _ = env.step(a)
            live = env.last.live.cast("f32")
            g = r[b, i, t:T].discounted_sum(self.gamma)
            adv = rc.rl.normalize(g, over=(b, t), where=live)
            loss = (-live * adv * pi.log_prob(a))[0:B, i, 0:T].mean()
            loss.backward()
            rc.optim.Adam(dnn.params, lr=self.lr * self.lr_decay**i).step()
            length = live[0:B, i, 0:T].sum(axis=1).mean()
            rc.log(mean_return=r[0:B, i, 0:T].sum(axis=1).mean(), length=length, loss=loss)
            entropy = pi.entropy() * live
            rc.log(entropy=entropy[0:B, i, 0:T].mean() / length * float(self.steps))
        return ctx, {B: self.rows, I: self.iterations, T: self.steps}


@dataclass(frozen=True)
class Ppo(Trainable):
    """Train a policy by PPO (Schulman et al., 2017): clipped, with advantages of GAE.

    Episodes continue from iteration to iteration; one that is cut off ends like any other. Settings
    are those of CleanRL for CartPole: 4 environments, half a million steps.

    Example: recurra train ppo --env CartPole-v1 --rows 4 --steps 128 --iterations 976
    """

    iterations: int = 976
    rows: int = 4
    steps: int = 128
    checkpoint_every: int = 100
    epochs: int = 4
    """Passes over the samples of an iteration."""
    minibatches: int = 4
    """Steps of the optimizer per pass, each on its part of the shuffled samples."""
    lr: float = 2.5e-4
    """Learning rate of Adam in the first iteration; it falls to 0 in equal steps."""
    gae: float = 0.95
    """λ of the advantages."""
    clip: float = 0.2
    """The change of the ratio of probabilities, and of the value, at which they are clipped."""
    entropy: float = 0.01
    """Weight of the entropy."""
    value: float = 0.5
    """Weight of the value's loss."""
    max_norm: float = 0.5
    """The largest norm of all gradients together."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers, of actor and critic each."""

    @property
    def bounds(self) -> Mapping[str, str]:
        """The bounds of the program, in words of the command."""
        own = {"E": "--epochs", "M": "--minibatches", "N": "the samples of a minibatch"}
        return {**super().bounds, **own}

    def program(self) -> tuple[Context, dict[object, int]]:
        """The program, and the bounds to compile it for."""
        import recurra as rc

        samples = self.rows * self.steps
        if samples % self.minibatches:
            raise RecurraError(
                f"--minibatches {self.minibatches} does not divide {samples} samples",
                facts=f"--rows {self.rows} of --steps {self.steps} are {samples}",
                hint=f"take a number that divides them: --minibatches {gcd(4, samples)}",
            )
        ctx = rc.Context(dims="b i e m n t")
        with ctx as ((b, B), (i, I), (e, E), (m, M), (n, N), (t, T)):
            env = rc.rl.env.make(self.env, episodes="autoreset")
            learner = rc.rl.ActorCritic(env, self.hidden, ((i, e, m),))
            acting = learner[i, 0, 0]
            o = rc.like(env.observation_space, domain=(b, i, t), name="o")
            o[b, i, 0] = env.reset(domain=(b, i))
            pi, v = acting(o)
            a = pi.sample()
            o[b, i, t + 1], r, _ = env.step(a)
            step = env.last
            assert step is not None
            live, going = step.live.cast("f32"), 1.0 - step.done.cast("f32")

            after = rc.like(rc.f32, domain=(b, i, t), name="v_after")
            after[b, i, T - 1] = acting(step.next_o)[1]
            after[b, i, t] = v[b, i, t + 1]
            delta = r + self.gamma * going * after - v
            adv = rc.like(rc.f32, domain=(b, i, t), name="advantage")
            adv[b, i, T - 1] = delta
            adv[b, i, t] = delta + self.gamma * self.gae * going * adv[b, i, t + 1]

            k = rc.permutation(B * T, at=m * N + n, domain=(i, e))
            seen = (o, a, pi.log_prob(a), v, adv, adv + v, live)
            batch = (rc.rl.rows(x.detach(), k, over=(b, t)) for x in seen)
            new_o, new_a, logp, old_v, advs, returns, real = batch
            new, new_v = learner(new_o)
            advs = rc.rl.normalize(advs, over=(n,), where=real)
            ratio = (new.log_prob(new_a) - logp).exp()
            near = ratio.clip(1 - self.clip, 1 + self.clip)
            policy_loss = rc.maximum(-advs * ratio, -advs * near)
            near_v = old_v + (new_v - old_v).clip(-self.clip, self.clip)
            errors = (new_v - returns).square(), (near_v - returns).square()
            value_loss = 0.5 * rc.maximum(*errors)
            entropy = new.entropy()

            def mean(x: rc.Tensor) -> rc.Tensor:
                return (real * x)[i, e, m, 0:N].sum() / real[i, e, m, 0:N].sum()

            loss = mean(policy_loss + self.value * value_loss - self.entropy * entropy)
            loss.backward(wrt=learner.params)
            rc.optim.clip_grad_norm(learner.params, self.max_norm)
            rate = self.lr * (1.0 - rc.value(i, "f32") / float(self.iterations))
            rc.optim.Adam(learner.params, lr=rate, eps=1e-5).step()
            ended = step.done & step.live
            rc.log(
                mean_return=rc.rl.episode_returns(r * live, ended, over=(b, t)),
                length=rc.rl.episode_returns(live, ended, over=(b, t)),
                episodes=ended.cast("f32")[0:B, i, 0:T].sum(),
                explained_variance=rc.rl.explained_variance(v, adv + v, (b, t), where=live),
            )
            last = {
                "policy_loss": policy_loss,
                "value_loss": value_loss,
                "entropy": entropy,
                "approx_kl": (ratio - 1.0) - (new.log_prob(new_a) - logp),
            }
            rc.log(**{name: mean(x)[i, E - 1, M - 1] for name, x in last.items()})
            clipped = mean(((ratio - 1.0).abs() > self.clip).cast("f32"))
            rc.log(clipfrac=clipped[i, 0:E, 0:M].mean())
        return ctx, {
            B: self.rows,
            I: self.iterations,
            E: self.epochs,
            M: self.minibatches,
            N: samples // self.minibatches,
            T: self.steps,
        }
