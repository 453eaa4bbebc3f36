"""REINFORCE from pictures that take more memory than there may be: they wait on a disk.

python examples/big_observations.py
"""

import gymnasium as gym
import numpy as np

import recurra as rc


def lake(**options):
    """FrozenLake as one sees it from above: 4 by 4 places of 32 by 32 pixels."""

    def seen(place):
        cells = np.zeros((3, 4, 4), np.uint8)
        cells[0].flat[place] = 255
        return cells.repeat(32, axis=1).repeat(32, axis=2)

    space = gym.spaces.Box(0, 255, (3, 128, 128), np.uint8)
    env = gym.make("FrozenLake-v1", is_slippery=False, **options)
    return gym.wrappers.TransformObservation(env, seen, space)


gym.register("LakeFromAbove-v0", lake)
ctx = rc.Context(num_dims=3)
with ctx as ((b, B), (i, I), (t, T)):
    env = rc.rl.env.make("LakeFromAbove-v0", episodes="autoreset", vectorization_mode="sync")
    layers = rc.nn.Conv2d(3, 8, 32, 32, domain=(i,)), rc.nn.ReLU(), rc.nn.Flatten()
    net = rc.nn.Sequential(*layers, rc.nn.Linear(128, 4, (i,)))
    o = rc.like(env.observation_space, domain=(b, i, t))
    o[b, i, 0] = env.reset(domain=(b, i))
    pi = rc.nn.Categorical(net(o.cast("f32") / 255.0))
    a = pi.sample()
    o[b, i, t + 1], r, d = env.step(a)
    g = r[b, i, t:T].discounted_sum(0.9)
    l = -pi.log_prob(a) * rc.rl.normalize(g, over=(b, t))
    l[0:B, i, 0:T].mean().backward()
    rc.optim.Adam(net.params, lr=1e-2).step()
    rc.log(reached=r[0:B, i, 0:T].sum() / d[0:B, i, 0:T].cast("f32").sum())

if __name__ == "__main__":
    program = ctx.compile({B: 16, I: 60, T: 140}, memory="16MiB")  # pictures: 105 MiB
    program.run(folder="runs/big_observations", overwrite=True)
