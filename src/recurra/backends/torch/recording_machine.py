"""Machines of the Torch backend: one that records a region, one that reads stores for the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from recurra.backends.batched_draws import draws_of
from recurra.backends.bounded_int import Count, bounded, box_keys, extreme, range_of
from recurra.backends.numpy.numpy_backend import NumpyMachine
from recurra.backends.torch.array_namespace import (
    Tensor,
    TorchNamespace,
    dtype_of,
    in_inference_mode,
)
from recurra.backends.torch.recorded_code import For
from recurra.backends.torch.recorder import Recorder, StoreRef
from recurra.codegen.array_machine import Starts, Until
from recurra.codegen.widened_product import result_shape
from recurra.cost.thresholds import MAX_HOISTED_DRAWS
from recurra.ir.expr import SEED, evaluate
from recurra.ir.statement import Statement
from recurra.ir.types import NUMPY_NAME
from recurra.ops.attention import Attention
from recurra.ops.control import Foreign
from recurra.ops.random import Uniform
from recurra.support.source_text import joined


class Recorded(TorchNamespace):
    """The array namespace on recorded tensors and counted numbers."""

    def __init__(self, recorder: Recorder):
        super().__init__(recorder.device)
        self.recorder = recorder
        self.points: dict[int, tuple[StoreRef, str, list[int]]] = {}  # reads, without axes of 1

    def reshape(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        """Reshape a tensor; a read of single points is read in the final shape instead."""
        found = self.points.get(id(tensor))
        if found is not None and found[2] == list(shape) and len(shape) < len(tensor.shape):
            return self.recorder.view(found[0], found[1], shape)
        return super().reshape(tensor, shape)

    def where(self, condition: Any, left: Tensor, right: Tensor) -> Tensor:
        if (
            isinstance(condition, Count)
            and (chosen := self.recorder.choice(condition, left, right)) is not None
        ):
            return chosen
        return super().where(condition, left, right)

    def asarray(self, array: Any, dtype: Any = None, copy: bool | None = None) -> Tensor:
        return super().asarray(
            self.recorder.number(array) if isinstance(array, Count) else array, dtype, copy
        )

    def constant(self, array: np.ndarray) -> Tensor:
        with self.recorder.silent():
            numbers = super().constant(array)
        return self.recorder.array(numbers)

    def minimum(self, left: Any, right: Any) -> Any:
        if isinstance(left, Tensor) or isinstance(right, Tensor):
            return super().minimum(left, right)
        return extreme("min", left, right)

    def maximum(self, left: Any, right: Any) -> Any:
        if isinstance(left, Tensor) or isinstance(right, Tensor):
            return super().maximum(left, right)
        return extreme("max", left, right)

    def clip(self, array: Any, low: Any, high: Any) -> Any:
        if isinstance(array, Count):
            return extreme("max", extreme("min", array, high), low)
        return super().clip(array, low, high)

    def widened(self, labels: str, dtype: str, *xs: Tensor) -> Tensor:
        """Record one call of `widened`: its parts are no matter of the code."""
        shape = result_shape(labels, *xs)
        return self.recorder.line("widened", (labels, dtype), xs, shape, dtype_of(dtype))


class RecordingMachine:
    """A machine that records a walk: it runs once, and loops become loops of the code."""

    def __init__(self, recorder: Recorder):
        self.recorder = recorder
        self.xp: Any = Recorded(recorder)
        self.clocks: list[str] = []

    def apply(self, node: Statement, env: Mapping[str, Any], *args: Any) -> Any:
        op = node.op
        if isinstance(op, Foreign):
            return self.foreign(op, env, args)
        if isinstance(op, Uniform) and (drawn := self.draws(op, env)) is not None:
            return drawn
        if isinstance(op, Attention):
            return self.attention(node, op, env, args)
        result = op.run(self.xp, env, *args)
        if not any(result is x for x in args):  # it made no new tensor
            self.recorder.rename(result, node.name)
        return result

    def attention(
        self, node: Statement, op: Attention, env: Mapping[str, Any], args: Sequence[Tensor]
    ) -> Tensor:
        """Record one call, with the valid length of its range as an argument."""
        length = args[1].shape[op.roles().k.index(op.roles().n)]
        if op.length is not None:
            length = extreme("min", evaluate(op.length, env, self.xp), length)
        with self.recorder.silent():
            shape = op.eval(TorchNamespace("meta"), *args).shape
        settings = (op.scores, op.values, op.axis, op.cap, op.mask, length)
        result = self.recorder.line("attention", settings, args, shape, args[0].dtype)
        self.recorder.rename(result, node.name)
        return result

    def draws(self, op: Uniform, env: Mapping[str, Any]) -> Tensor | None:
        """Draw for every step of the innermost loop before it; return this step's row.

        Return None if the draws are not a function of that loop's counter, or too many.
        """
        if not self.clocks:
            return self.draws_of_a_launch(op, env)
        loop = self.clocks[-1]
        dims = [d for d in op.mentions() if isinstance(c := env.get(d), Count) and c.clock == loop]
        if len(dims) != 1 or (at := env[dims[0]]).range[0] < 0:
            return None
        steps = at.range[1] + 1
        if steps * prod(op.infer().sizes(env)) > MAX_HOISTED_DRAWS:
            return None
        every = op.batch_symbol(dims[0], steps, False).run(self.xp, env)
        return self.recorder.row(every, at)

    def draws_of_a_launch(self, op: Uniform, env: Mapping[str, Any]) -> Tensor | None:
        """Call a function that makes the draws of many launches at once; None if there is none."""
        draws = draws_of(op, env, TorchNamespace(self.recorder.device))
        if draws is None:
            return None
        times = [env[x] for x in draws.dims]
        shape, dtype = op.infer().sizes(env), dtype_of(NUMPY_NAME[op.dtype])
        return self.recorder.drawn(draws, env[SEED], times, shape, dtype)

    def foreign(self, op: Foreign, env: Mapping[str, Any], args: Sequence[Tensor]) -> Tensor:
        """One result of a function of another library; one call returns them all."""
        type_ = op.infer()
        vmaps = tuple((flags, last, evaluate(size, env)) for flags, last, size in op.vmaps)
        dtype = dtype_of(NUMPY_NAME[type_.dtype])
        function = f"foreign({op.fn.key!r}, {vmaps!r})"
        return self.recorder.call(function, args, op.out, type_.sizes(env), dtype)

    def loop(self, dim: str, lo: Any, hi: Any, body: Callable[[Any, Any], Any], carry: Any) -> Any:
        def step(time: Any, inside: Any, recorded: For) -> Any:
            return body(time, inside)

        return self.looped(dim, lo, hi, step, carry)

    def while_loop(
        self, dim: str, lo: Any, hi: Any, end: Any, late: int, every: int, body: Until, carry: Any
    ) -> tuple[Any, Any]:
        name = self.recorder.fresh(f"{dim}_ends_")
        ends = Count(name, (0, range_of(end)[1]), self.xp.asarray)

        def step(time: Any, inside: Any, recorded: For) -> Any:
            goes_on, after, carry = body(time, inside)
            recorded.starts.append((name, str(end)))
            recorded.stop = f"{time} >= {ends + late}"
            any_row = self.recorder.name_of(goes_on)
            known = f"{name} if {any_row} else {extreme('min', ends, after)}"
            if every > 1:
                flags = self.recorder.fresh(f"{dim}_goes_on_")
                recorded.starts.append((flags, "[]"))
                now = f"({time - lo + 1}) % {every} == 0 or {time} == {hi - 1}"
                known = f"loop_end({flags}, {any_row}, {now}, {ends}, {after})"
            recorded.steps.append((name, known))
            return carry

        return ends, self.looped(dim, lo, hi, step, carry)

    def cond(self, condition: Any, body: Callable[[Any], Any], carry: Any) -> Any:
        """Record a loop of one step or none."""
        if isinstance(condition, bool):
            return body(carry) if condition else carry
        known = condition if isinstance(condition, Count) else self.recorder.name_of(condition)
        trips = Count(f"int({known})", (0, 1), self.xp.asarray)
        return self.looped(
            "when", 0, trips, lambda time, inside, recorded: body(inside), carry, True
        )

    def minimum(self, left: Any, right: Any) -> Any:
        return extreme("min", left, right)

    def looped(
        self,
        dim: str,
        lo: Any,
        hi: Any,
        step: Callable[..., Any],
        carry: Any,
        perhaps: bool = False,
    ) -> Any:
        r = self.recorder
        vals, stores = carry
        carried = [(r.fresh(f"{r.name_of(x).rstrip('0123456789')}_"), x) for x in vals]
        clock = r.named(dim)
        time = Count(clock, (range_of(lo)[0], range_of(hi)[1] - 1), self.xp.asarray)
        self.clocks.append(clock if bounded(lo, hi) else "")
        with r.loop(clock, lo, hi, carried, perhaps) as recorded:
            inside = [r.parameter(n, x.shape, x.dtype) for n, x in carried]
            after, _ = step(time, (inside, stores), recorded)
            recorded.steps += [(n, r.name_of(x)) for (n, _), x in zip(carried, after, strict=True)]
        self.clocks.pop()
        return [r.parameter(n, x.shape, x.dtype) for n, x in carried], stores

    def read(self, store: StoreRef, starts: Starts, sizes: tuple[int, ...]) -> Tensor:
        slices, points = box_keys(starts, sizes, store.shape)
        y = self.recorder.view(store, joined(slices), sizes)
        self.xp.points[id(y)] = store, joined(points), [n for n in sizes if n != 1]
        return y

    def read_all(self, store: StoreRef) -> Tensor:
        return self.recorder.view(store, "", store.shape)

    def gather(self, store: Tensor, axis: int, at: Any) -> Tensor:
        inside = self.xp.clip(at, 0, store.shape[axis] - 1)
        return self.xp.take(store, inside, axis)

    def write(
        self, store: StoreRef, starts: Starts, value: Tensor, also: Starts | None = None
    ) -> StoreRef:
        for at in (starts,) if also is None else (starts, also):
            self.recorder.write(store, ", ".join(":" if s is None else str(s) for s in at), value)
        return store

    def write_box(self, store: StoreRef, starts: Starts, value: Tensor) -> StoreRef:
        self.recorder.write(store, joined(box_keys(starts, value.shape, store.shape)[0]), value)
        return store


class EagerMachine(NumpyMachine):
    """The machine of reads by the host, between launches."""

    def __init__(self, device: str):
        self.xp = TorchNamespace(device)

    write = in_inference_mode(NumpyMachine.write)
    write_box = in_inference_mode(NumpyMachine.write_box)

    def read(self, store: Tensor, starts: Starts, sizes: tuple[int, ...]) -> Tensor:
        for k, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            at = min(max(int(start), 0), store.shape[k] - size)
            store = torch.narrow(store, k, at, size)
        return store.clone()
