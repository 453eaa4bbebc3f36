"""REINFORCE on CartPole (Williams, 1992), written once: acting, returns, learning.

python examples/reinforce.py            trains, and writes runs/demo
recurra run --interpret examples/reinforce.py   the same by the (slow) oracle
"""

import recurra as rc

ctx = rc.Context(num_dims=3)
with ctx as ((b, B), (i, I), (t, T)):
    env = rc.rl.env.make("CartPole-v1", episodes="absorbing", max_episode_steps=200)
    dnn = rc.nn.DNNBuilder(domain=(i,)).from_env(env, hidden=[32, 32]).build()

    o = rc.like(env.observation_space, domain=(b, i, t))
    o[b, i, 0] = env.reset(domain=(b, i))
    pi = dnn(o)  # acting: a distribution
    a = pi.sample()
    o[b, i, t + 1], r, d = env.step(a)

    # Another access pattern is another schedule: r[b, i, t:rc.min(t + 5, T)] learns while it acts.
    g = r[b, i, t:T].discounted_sum(0.99)
    adv = rc.rl.normalize(g, over=(b, t), where=r > 0)

    l = -r * adv * pi.log_prob(a)  # learning: no second forward pass is written; r = 1 while alive
    l[0:B, i, 0:T].mean().backward()
    rc.optim.Adam(dnn.params, lr=1e-2 * 0.99**i).step()

    dnn[(i + 1) % 5 == 0].checkpoint("runs/demo")
    rc.log(mean_return=r[0:B, i, 0:T].sum(axis=1).mean())

if __name__ == "__main__":
    program = ctx.compile({B: 64, I: 100, T: 200})
    program.run(folder="runs/demo", overwrite=True)
