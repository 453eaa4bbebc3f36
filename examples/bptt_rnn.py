"""A recurrent network learns to say what it heard three steps ago: back-propagation through time.

Nobody wrote a backward pass: the gradient of a recurrence is a recurrence that runs backwards.

python examples/bptt_rnn.py
"""

import recurra as rc

HIDDEN, DELAY = 16, 3

ctx = rc.Context(num_dims=3)
with ctx as ((b, B), (i, I), (t, T)):
    x = rc.where(rc.uniform((b, i, t)) < 0.5, -1.0, 1.0)  # new bits in every iteration

    init = rc.nn.initializers
    W = rc.nn.Parameter(init.normal(0.5)((1, HIDDEN)), domain=(i,), name="W")
    V = rc.nn.Parameter(init.orthogonal(0.9)((HIDDEN, HIDDEN)), domain=(i,), name="V")
    out = rc.nn.Linear(HIDDEN, 1, domain=(i,))
    c, d = out.params

    h = rc.like(rc.f32[HIDDEN], domain=(b, i, t))
    h[b, i, 0] = (x.reshape(1) @ W).tanh()[b, i, 0]
    h[b, i, t] = (x.reshape(1) @ W + h[b, i, t - 1] @ V).tanh()

    error = (out(h).index(0) - x[b, i, t - DELAY]).square()  # where there is such a step
    loss = error[0:B, i, DELAY:T].mean()
    loss.backward()
    rc.optim.clip_grad_norm([W, V, c, d], 1.0)
    rc.optim.Adam([W, V, c, d], lr=0.01).step()
    rc.log(loss=loss)

if __name__ == "__main__":
    program = ctx.compile({B: 32, I: 300, T: 20})
    print(program.run()["loss"][::50].round(3))
