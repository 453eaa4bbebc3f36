"""A moving average: every step reads a window of the past, and only a window is stored.

python examples/windowed_average.py
"""

import recurra as rc

ctx = rc.Context(num_dims=2)
with ctx as ((b, B), (t, T)):
    x = rc.like(rc.f32, domain=(b, t))  # a random walk
    x[b, 0] = rc.normal((b,))
    x[b, t + 1] = x + rc.normal((b, t))

    y = x[b, rc.max(t - 4, 0) : t + 1].mean()
    rc.output(y=y)

if __name__ == "__main__":
    program = ctx.compile({B: 4, T: 1000})
    print(program.run()["y"][0, -5:])
    for row in program.store_rows:
        print(row["store"], row["slots"], row["class"])
