"""Deep Q-learning (Mnih et al., 2015) of one environment, a batch of replay every ten steps.

Sizes and rates are those of the usual single-file implementation in PyTorch.
"""

import numpy as np
import torch
from torch import nn

import recurra as rc
from benchmarks.host import EPISODE, environment

SIZES = {"steps": 20_000}
SMALL = {"steps": 300}
LEAST_RETURN = 30.0  # at random it is 22
PART = 10  # steps between two of learning
BATCH, BUFFER, FIRST, TARGET = 128, 10_000, 1000, 500
GAMMA, RATE, LEAST_EPSILON = 0.99, 2.5e-4, 0.05


def recurra_program(backend, steps):
    ctx = rc.Context(dims="i t n")
    with ctx as ((i, parts), (t, part), (n, batch)):
        env = rc.rl.env.make(EPISODE, episodes="autoreset", vectorization_mode="sync")
        sizes = ((4, 120), (120, 84), (84, 2))
        first, second, last = (rc.nn.Linear(*sizes, domain=(i,)) for sizes in sizes)
        net = rc.nn.Sequential(first, rc.nn.ReLU(), second, rc.nn.ReLU(), last)
        target = net.copy()

        o = rc.like(env.observation_space, domain=(i, t))
        o[i, 0] = env.reset(domain=(i,), rows=())
        step = rc.value(i, "f32") * PART + rc.value(t, "f32")
        epsilon = rc.maximum(1.0 - (1.0 - LEAST_EPSILON) * 2.0 / steps * step, LEAST_EPSILON)
        at_random = rc.uniform((i, t)) < epsilon
        a = rc.where(at_random, rc.randint(0, 2, (i, t)), net(o).argmax())
        o[i, t + 1], reward, done = env.step(a)

        oldest = rc.max(i - BUFFER // PART + 1, 0)
        which = (rc.uniform((i, n)) * (rc.value(i + 1) - rc.value(oldest))).cast("i32")
        place = rc.randint(0, PART, (i, n))

        def replayed(x):
            return x[oldest : i + 1, 0:part].take(which, axis=0).take(place, axis=0)

        after = target(replayed(env.last.final_o)).max(axis=-1)
        going_on = 1.0 - replayed(env.last.term.cast("f32"))
        goal = (replayed(reward) + GAMMA * going_on * after).detach()
        error = (net(replayed(o)).take(replayed(a)) - goal)[i, 0:batch]
        learns = rc.where(rc.value(i) >= FIRST // PART, 1.0, 0.0)
        (learns * error.square().mean()).backward()
        rc.optim.Adam(net.params, lr=RATE).step()
        for q, p in zip(target.params, net.params, strict=True):
            q.update(rc.where((i + 1) % (TARGET // PART) == 0, p.next, q))
        rc.log(reward=reward[i, 0:part].sum(), ended=done[i, 0:part].cast("f32").sum())
    return ctx.compile({parts: steps // PART, part: PART, batch: BATCH}, backend=backend)


class Replay:
    """The last transitions, in arrays."""

    def __init__(self):
        self.o, self.after = np.zeros((BUFFER, 4), "f4"), np.zeros((BUFFER, 4), "f4")
        self.a, self.count = np.zeros((BUFFER, 1), "i8"), 0
        self.reward, self.term = np.zeros(BUFFER, "f4"), np.zeros(BUFFER, "f4")

    @property
    def arrays(self):
        return self.o, self.after, self.a, self.reward, self.term

    def add(self, *row):
        for array, x in zip(self.arrays, row, strict=True):
            array[self.count % BUFFER] = x
        self.count += 1

    def sample(self, rng):
        rows = rng.integers(0, min(self.count, BUFFER), BATCH)
        return [torch.from_numpy(array[rows]) for array in self.arrays]


def by_hand(steps):
    """PyTorch on one thread, the environment as Gymnasium makes it, the buffer in NumPy."""

    def network():
        return nn.Sequential(
            nn.Linear(4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 2)
        )

    def run(seed):
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        rng = np.random.default_rng(seed)
        env = environment()
        net, target, replay = network(), network(), Replay()
        target.load_state_dict(net.state_dict())
        adam = torch.optim.Adam(net.parameters(), lr=RATE)
        o, _ = env.reset(seed=seed)
        rewards, ended = np.zeros(steps, "f4"), np.zeros(steps, "f4")
        for t in range(steps):
            epsilon = max(1.0 - (1.0 - LEAST_EPSILON) * 2.0 / steps * t, LEAST_EPSILON)
            if rng.random() < epsilon:
                a = rng.integers(0, 2, 1)
            else:
                with torch.no_grad():
                    a = net(torch.from_numpy(o)).argmax(1).numpy()
            new, reward, term, trunc, infos = env.step(a)
            over = term[0] or trunc[0]
            replay.add(o[0], infos["final_obs"][0] if over else new[0], a, reward[0], term[0])
            rewards[t], ended[t], o = reward[0], over, new
            if t > FIRST and t % PART == 0:
                before, after, taken, gained, last = replay.sample(rng)
                with torch.no_grad():
                    goal = gained + GAMMA * target(after).max(1)[0] * (1.0 - last)
                error = goal - net(before).gather(1, taken).squeeze()
                adam.zero_grad()
                error.square().mean().backward()
                adam.step()
            if t > FIRST and t % TARGET == 0:
                target.load_state_dict(net.state_dict())
        return {
            "reward": rewards.reshape(-1, PART).sum(1),
            "ended": ended.reshape(-1, PART).sum(1),
        }

    return run
