"""Random programs over images: convolutions and pools inside of recurrences, and gradients."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import recurra as rc
from random_drawing import Case
from recurra.analysis.bound_values import known_bounds
from recurra.ir.types import Type
from recurra.ops.window import Windows

nn = rc.nn


@dataclass
class Written:
    """A program: its parameters, and the direction in which `write` moved each by `eps`."""

    ctx: rc.Context
    bounds: dict[Any, int]
    params: list[Any] = field(default_factory=list)
    directions: list[np.ndarray] = field(default_factory=list)
    eps: float = 0.0
    dtype: str = "f32"

    def draw(self, domain: Any, shape: tuple[int, ...]) -> Any:
        return rc.uniform(domain, shape).cast(self.dtype)

    def conv(self, inputs: int, outputs: int, *how: Any, over: Any, bias: bool = True) -> Any:
        """Conv2d, moved; its kernel is drawn by the run's seed."""

        def start(shape: tuple[int, ...]) -> Any:
            rng = np.random.default_rng(len(self.directions))
            self.directions.append(rng.normal(size=shape))
            moved = rc.constant(self.eps * self.directions[-1], self.dtype)
            return nn.initializers.uniform(0.6)(shape).cast(self.dtype) + moved

        made = nn.Conv2d(inputs, outputs, *how, domain=over, bias=bias, init=start)
        self.params.append(made.weight)
        return made


def layer(pick: random.Random, x: Any, over: Any, program: Written) -> Any:
    """[C, H, W] → [C', H', W'] by a random layer that fits; parameters are over `over`."""
    channels, height, width = x.shape
    padding = (pick.randint(0, 1), pick.randint(0, 1))
    size = tuple(
        pick.randint(1, min(3, n + 2 * p)) for n, p in zip((height, width), padding, strict=True)
    )
    stride = (pick.randint(1, 2), pick.randint(1, 2))
    match pick.choice(["conv", "conv", "conv", "max", "avg", "gaps"]):
        case "max":
            return nn.MaxPool2d(pick.randint(1, min(2, height, width)))(x)
        case "avg":
            return nn.AvgPool2d(pick.randint(1, min(2, height, width)), stride)(x)
        case "gaps" if height > 2:
            seen = x.apply(Windows(axis=1, sizes=(2,), strides=stride[:1], gaps=(2,)), x)
            return (
                (seen * rc.constant([[[0.7]], [[-0.4]]], x.dtype))
                .sum(axis=1)
                .reshape(channels, -1, width)
            )
        case _:
            bias = pick.random() < 0.5
            outputs = pick.randint(1, 2)
            y = program.conv(channels, outputs, size, stride, padding, over=over, bias=bias)(x)
            return y.tanh() if pick.random() < 0.5 else y


def write(seed: int, eps: float = 0.0, dtype: str = "f32") -> Written:
    """The program of a seed, which takes a step along its gradient at each i."""
    pick = random.Random(seed)
    ctx = rc.Context(dims="b i t")
    with ctx as ((b, B), (i, I), (t, T)):
        program = Written(
            ctx, {B: pick.randint(1, 3), I: pick.randint(1, 2), T: pick.randint(1, 4)}
        )
        program.eps, program.dtype = eps, dtype
        shape = (pick.randint(1, 2), pick.randint(2, 4), pick.randint(2, 4))
        rest: tuple[Any, ...] = pick.choice([(b, i), (i,)])
        every = (slice(0, B), i) if len(rest) == 2 else (i,)
        x = rc.like(Type(dtype, shape), domain=(*rest, t))
        match pick.choice(["drawn", "onwards", "onwards", "backwards"]):
            case "drawn":
                x[(*rest, t)] = program.draw((*rest, t), shape) - 0.5
            case "onwards":
                cell = program.conv(shape[0], shape[0], 3, 1, 1, over=(i,))
                x[(*rest, 0)] = program.draw(rest, shape)
                x[(*rest, t)] = (cell(x[(*rest, t - 1)]) + program.draw((*rest, t), shape)).tanh()
            case _:
                cell = program.conv(shape[0], shape[0], (1, 2), 1, (0, 1), over=(i,))
                x[(*rest, T - 1)] = program.draw(rest, shape)
                x[(*rest, t)] = cell(x[(*rest, t + 1)]).cut(0, shape[2], axis=2).tanh()
        y = x
        for _ in range(pick.randint(1, 3)):
            y = layer(pick, y, (i,), program)
        match pick.choice(["past", "window", "future", "now"]):
            case "past":
                y = y[(*rest, rc.max(t - 1, 0))] * 0.5 + y
            case "window":
                y = y[(*rest, slice(rc.max(t - 1, 0), t + 1))].mean(axis=0)
            case "future":
                y = y[(*rest, slice(t, T))].sum(axis=0)
            case _:
                pass
        flat = nn.Flatten()(y)
        error = flat.square().mean() + 0.3 * flat.sin().sum()
        loss = error[(*every, slice(0, T))].sum()
        rc.output(x=x, y=y, loss=loss)
        if program.params:
            loss.backward(wrt=program.params)
            rc.optim.SGD(program.params, lr=0.1).step()
            grads = {f"d{k}": p.grad for k, p in enumerate(program.params)}
            rc.output(w=program.params[0], **grads)
    return program


def case(program: Written) -> Case:
    """A program as a graph, with numbers for the bounds of its dims."""
    graph = program.ctx.graph
    sizes = known_bounds(graph, {str(b): n for b, n in program.bounds.items()})
    return Case(graph, dict(sizes))
