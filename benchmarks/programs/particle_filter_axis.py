"""The same particle filter; the particles are an axis of the values, as in an array library."""

import recurra as rc
from benchmarks.programs.particle_filter import KEPT, SIZES, SMALL, SPREAD, by_hand, inputs


def recurra_program(backend, B, T, P):
    ctx = rc.Context(num_dims=2)
    with ctx as ((b, rows), (t, steps)):
        z, offset = rc.input(rc.f32, (b, t)), rc.input(rc.f32, (b, t))
        push = rc.input(rc.f32[P], (b, t))
        kept, moved = rc.like(rc.f32[P], (b, t)), rc.like(rc.f32[P], (b, t))
        moved[b, 0] = SPREAD * push
        moved[b, t] = KEPT * kept[b, t - 1] + SPREAD * push

        log_weight = -0.5 * (moved + z.square() * (-moved).exp())
        weight = (log_weight - log_weight.max()).exp()
        total = weight.cumsum()
        mean = (weight * moved).sum() / total.index(P - 1)

        place = (rc.arange(P) + offset) / P * total.index(P - 1)
        source = (total < place.reshape(P, 1)).sum(axis=1)
        kept[b, t] = moved.take(source)
        rc.output(mean=mean)
    return ctx.compile({rows: B, steps: T}, backend=backend)


__all__ = ["SIZES", "SMALL", "by_hand", "inputs", "recurra_program"]
