"""Attention without softmax (Katharopoulos et al., 2020), written as attention: over all the past.

The compiler finds that it is a recurrent network: its memory does not grow with T.

python examples/linear_attention.py
"""

import numpy as np

import recurra as rc

WIDTH = 8
rng = np.random.default_rng(0)

ctx = rc.Context(num_dims=2)
with ctx as ((b, B), (t, T)):
    x = rc.normal((b, t), (WIDTH,))
    weights = [rc.constant(rng.normal(size=(WIDTH, WIDTH)) / 3) for _ in range(3)]
    q, k, v = (x @ w for w in weights)
    q, k = q.exp(), k.exp()  # features of queries and keys, positive

    w = rc.einsum("d,nd->n", q, k[b, 0 : t + 1])
    y = rc.einsum("n,ne->e", w, v[b, 0 : t + 1]) / w.sum()
    rc.output(x=x, y=y)

if __name__ == "__main__":
    program = ctx.compile({B: 8, T: 1000})
    print(program.run()["y"][0, -1].round(3))
    print(program.equations["incrementalize"])
    for row in program.store_rows:  # only what the caller wants to see is as long as T
        print(row["store"], row["slots"], row["class"])
