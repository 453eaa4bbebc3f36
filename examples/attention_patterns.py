"""Attention patterns, each an index expression: what is kept of the past is derived from it.

python examples/attention_patterns.py
"""

import numpy as np

import recurra as rc

WIDTH = 16
PATTERNS = {
    "causal": lambda t: [slice(0, t + 1)],
    "window": lambda t: [slice(rc.max(t - 63, 0), t + 1)],
    "chunk": lambda t: [slice(t // 32 * 32, t + 1)],
    "dilated": lambda t: [slice(t % 8, t + 1, 8)],
    "strided": lambda t: [slice(rc.max(t - 56, t % 8), t + 1, 8)],
    "sinks": lambda t: [slice(0, rc.min(lo := rc.max(t - 63, 0), 4)), slice(lo, t + 1)],
}
rng = np.random.default_rng(0)


def attend(x, name, b, t):
    q, k, v = (x @ rc.constant(rng.normal(size=(WIDTH, WIDTH)) / 4) for _ in range(3))
    past = []
    for kind, y in (("k", k), ("v", v)):
        kept = rc.like(y.type, (b, t), f"{kind}_{name}")  # the name that its store will have
        kept[b, t] = y
        past.append(rc.concat([kept[b, r] for r in PATTERNS[name](t)]))
    return rc.einsum("n,nd->d", rc.einsum("d,nd->n", q, past[0]).softmax(), past[1])


ctx = rc.Context(num_dims=2)
with ctx as ((b, B), (t, T)):
    x = rc.like(rc.f32[WIDTH], domain=(b, t))
    x[b, 0] = rc.normal((b,), (WIDTH,))
    y = rc.stack([attend(x, name, b, t) for name in PATTERNS])
    x[b, t + 1] = (x + y.sum(axis=0)).tanh()  # like the next token of a model: it needs them all
    rc.output(x=x, y=y)

if __name__ == "__main__":
    rows = ctx.compile({B: 4, T: 500}).store_rows
    for name, pattern in PATTERNS.items():  # what is read, and what is kept for it
        read = [f"k[b,{r.start}:{r.stop}{f':{r.step}' if r.step else ''}]" for r in pattern(t)]
        kept = [r for r in rows if r["store"].startswith(f"k_{name}")]
        print(f"{name:<8}", *read, "|", *(f"{r['slots']}, {r['bytes']:,} B" for r in kept))
