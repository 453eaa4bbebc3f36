"""Cube roots by Newton's method: every row takes as many steps as it needs, gradients go through.

python examples/newton.py
"""

import recurra as rc

ctx = rc.Context(num_dims=2)
with ctx as ((b, B), (t, T)):
    a = rc.uniform((b,)) * 1000.0 + 1.0
    x = rc.like(rc.f32, domain=(b, t))
    error = x**3 - a
    x[b, 0] = a
    x[b, t + 1] = x - error / (3.0 * x**2)
    converged = rc.until(error.abs() < 1e-5 * a, max=60)

    root = x[b, T - 1]
    root.backward(wrt=a)
    rc.output(a=a, root=root, slope=a.grad, steps=rc.value(T) - 1)

if __name__ == "__main__":
    result = ctx.compile({B: 1000, T: converged}).run()
    for name in ("a", "root", "slope", "steps"):
        print(f"{name:<6}", result[name][:8].round(4))
