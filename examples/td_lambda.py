"""Online TD(λ) (Sutton, 1988): the weights change at every step, by a trace of past features.

A random walk over N states; from the last one on the right it earns 1, and begins again.

python examples/td_lambda.py
"""

import recurra as rc

N, GAMMA, LAMBDA, RATE = 5, 1.0, 0.8, 0.05

ctx = rc.Context(num_dims=2)
with ctx as ((b, B), (t, T)):
    s = rc.like(rc.i32, domain=(b, t))
    s[b, 0] = N // 2
    moved = s + rc.where(rc.uniform((b, t)) < 0.5, -1, 1)
    over = (moved < 0) | (moved >= N)
    s[b, t + 1] = rc.where(over, N // 2, moved)
    r = (moved >= N).cast("f32")

    w = rc.like(rc.f32[N], domain=(b, t))  # the value of each state
    e = rc.like(rc.f32[N], domain=(b, t))  # its eligibility
    w[b, 0] = 0.5
    now = s.one_hot(N)
    after = rc.where(over, 0.0, (w * moved.clip(0, N - 1).one_hot(N)).sum())
    error = r + GAMMA * after - (w * now).sum()
    e[b, 0] = now[b, 0]
    e[b, t] = rc.where(over[b, t - 1], 0.0, GAMMA * LAMBDA * e[b, t - 1]) + now
    w[b, t + 1] = w + RATE * error * e
    rc.output(w=w[b, T - 1], s=s, over=over, r=r)

if __name__ == "__main__":
    program = ctx.compile({B: 100, T: 3000})
    print(program.run()["w"].mean(axis=0).round(2))  # (k + 1) / (N + 1)
