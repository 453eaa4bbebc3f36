"""An actor and critic in environments of Gymnasium."""

from __future__ import annotations

import recurra as rc

BOUNDS = dict(B=8, I=3, T=12)


def actor_critic(episodes: str, outputs: bool = True) -> rc.Context:
    """Returns over all that follows, an actor and a critic; what happened is put out."""
    ctx = rc.Context(dims="b i t")
    with ctx as ((b, B), (i, I), (t, T)):
        env = rc.rl.env.make("CartPole-v1", episodes=episodes, vectorization_mode="sync")
        net = rc.rl.ActorCritic(env, hidden=(16, 16), domain=(i,))
        o = rc.like(env.observation_space, domain=(b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        pi, v = net(o)
        a = pi.sample()
        o[b, i, t + 1], r, d = env.step(a)
        g = r[b, i, t:T].discounted_sum(0.9)
        loss = env.last.live.cast("f32") * (pi.log_prob(a) * g + v.square())
        loss[0:B, i, 0:T].mean().backward(wrt=net.params)
        rc.optim.Adam(net.params, lr=1e-2).step()
        rc.log(loss=loss[0:B, i, 0:T].mean(), first=g[0:B, i, 0].mean())
        if outputs:
            rc.output(o=o, a=a, d=d)
    return ctx
