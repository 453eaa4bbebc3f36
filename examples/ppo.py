"""PPO on CartPole (Schulman et al., 2017): epochs of shuffled minibatches as dims.

python examples/ppo.py
"""

import recurra as rc

ctx = rc.Context(dims="b i e m n t")  # rows, iterations, epochs, minibatches, samples, steps
with ctx as ((b, B), (i, I), (e, E), (m, M), (n, N), (t, T)):
    env = rc.rl.env.make("CartPole-v1", episodes="autoreset", vectorization_mode="sync")
    net = rc.rl.ActorCritic(env, hidden=(64, 64), domain=((i, e, m),))

    o = rc.like(env.observation_space, domain=(b, i, t))
    o[b, i, 0] = env.reset(domain=(b, i))
    pi, v = net[i, 0, 0](o)  # acting, with the parameters before the first step of learning
    a = pi.sample()
    o[b, i, t + 1], r, d = env.step(a)

    going = 1.0 - d.cast("f32")
    v_after = rc.like(rc.f32, domain=(b, i, t))
    v_after[b, i, T - 1] = net[i, 0, 0](env.last.next_o)[1]
    v_after[b, i, t] = v[b, i, t + 1]
    delta = r + 0.99 * going * v_after - v
    adv = rc.like(rc.f32, domain=(b, i, t))
    adv[b, i, T - 1] = delta
    adv[b, i, t] = delta + 0.99 * 0.95 * going * adv[b, i, t + 1]

    k = rc.permutation(B * T, at=m * N + n, domain=(i, e))
    samples = (rc.rl.rows(x.detach(), k, over=(b, t)) for x in (o, a, pi.log_prob(a), adv, adv + v))
    new_o, new_a, logp, advs, returns = samples
    new, new_v = net(new_o)
    advs = rc.rl.normalize(advs, over=(n,))
    ratio = (new.log_prob(new_a) - logp).exp()
    policy = rc.maximum(-advs * ratio, -advs * ratio.clip(0.8, 1.2))
    l = policy + 0.5 * (new_v - returns).square() - 0.01 * new.entropy()
    l[i, e, m, 0:N].mean().backward(wrt=net.params)
    rc.optim.clip_grad_norm(net.params, 0.5)
    rc.optim.Adam(net.params, lr=1e-3).step()
    rc.log(mean_return=rc.rl.episode_returns(r, d, over=(b, t)))

if __name__ == "__main__":
    program = ctx.compile({B: 16, I: 150, E: 4, M: 4, N: 16 * 64 // 4, T: 64})
    program.run(folder="runs/ppo", overwrite=True)
