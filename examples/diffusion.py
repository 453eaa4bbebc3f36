"""Sampling by diffusion (Ho et al., 2020): time runs down, from noise at T - 1 to a sample at 0.

The data are two normals, at -2 and 2, so that the best denoiser is known and nothing is trained.

python examples/diffusion.py
"""

import recurra as rc

CENTER, WIDTH = 2.0, 0.3

ctx = rc.Context(num_dims=2)
with ctx as ((b, B), (t, T)):
    beta = 1e-3 + 0.06 * rc.value(t) / rc.value(T)
    kept = (1.0 - beta).log()[0 : t + 1].sum().exp()  # ᾱ[t] = Π of 1 - β up to t

    x = rc.like(rc.f32, domain=(b, t))
    x[b, T - 1] = rc.normal((b,))

    # x[t] = √ᾱ x₀ + √(1-ᾱ) ε: the mean of ε, given x[t], by the odds of the two normals
    spread = kept * WIDTH**2 + 1.0 - kept
    center = kept.sqrt() * CENTER
    side = (x * center / spread).tanh()
    noise = (x - center * side) * (1.0 - kept).sqrt() / spread

    mean = (x - beta / (1.0 - kept).sqrt() * noise) / (1.0 - beta).sqrt()
    x[b, t - 1] = mean + rc.where(t > 1, beta.sqrt(), 0.0) * rc.normal((b, t))
    rc.output(sample=x[b, 0], x=x)

if __name__ == "__main__":
    program = ctx.compile({B: 2000, T: 200})
    sample = program.run()["sample"]
    print(program)
    right = sample[sample > 0]
    print(f"{len(right)} of {len(sample)} at {right.mean():.2f} ± {right.std():.2f}")
