"""Recurrent layers h[t] = cell(x[t], h[t-1]), as in torch.nn, but with weights [in, gates].

The terms of x are computed for all t at once; only those of h form a loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from recurra.errors import DomainError
from recurra.frontend.dims import Steps
from recurra.frontend.index_arguments import unwrap
from recurra.frontend.nn import initializers
from recurra.frontend.nn.initializers import Initializer
from recurra.frontend.nn.modules import Module, Parameter
from recurra.frontend.tensor import RecurrentTensor
from recurra.frontend.tensor_base import union
from recurra.ir.types import Domain, Type
from recurra.ops.source import Const

State = tuple[RecurrentTensor, ...]


class Cell(Module):
    """The base of cells, which compute one step; `gates` matrices are concatenated, for x and h"""

    gates = 1
    states = 1  # the number of state tensors, each of the hidden size
    matrices = frozenset({"weight_ih", "weight_hh"})

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        domain: Steps,
        init: Initializer | None = None,
    ):
        self.hidden_size = hidden_size
        width = self.gates * hidden_size
        start = init or initializers.uniform(hidden_size**-0.5)
        bias = initializers.zeros() if init else start
        self.weight_ih = Parameter.drawn(start, (input_size, width), domain, "weight_ih")
        self.weight_hh = Parameter.drawn(start, (hidden_size, width), domain, "weight_hh")
        self.bias_ih = Parameter.drawn(bias, (width,), domain, "bias_ih")
        self.bias_hh = Parameter.drawn(bias, (width,), domain, "bias_hh")

    def of_input(self, x: RecurrentTensor) -> State:
        """The contribution of the input [input_size] to each gate."""
        return self.split(x @ self.weight_ih + self.bias_ih)

    def of_hidden(self, hidden: RecurrentTensor) -> State:
        """The contribution of the state [hidden_size] to each gate."""
        return self.split(hidden @ self.weight_hh + self.bias_hh)

    def split(self, concatenated: RecurrentTensor) -> State:
        n = self.hidden_size
        return tuple(concatenated.cut(k * n, (k + 1) * n) for k in range(self.gates))

    def step(self, inputs: State, state: State) -> State:
        """The next state, from the contribution of the input to each gate and the state."""
        raise NotImplementedError

    def forward(self, x: RecurrentTensor, *state: RecurrentTensor) -> Any:
        new = self.step(self.of_input(x), state)
        return new if self.states > 1 else new[0]


class RNNCell(Cell):
    """h' = tanh(W x + b + V h + c) (Elman, 1990)"""

    def step(self, inputs: State, state: State) -> State:
        (h,) = state
        return ((inputs[0] + self.of_hidden(h)[0]).tanh(),)


class GRUCell(Cell):
    """h' = (1 - z) n + z h, with reset, update and new gates in this order (Cho et al., 2014)"""

    gates = 3

    def step(self, inputs: State, state: State) -> State:
        (h,) = state
        u = self.of_hidden(h)
        r, z = (inputs[0] + u[0]).sigmoid(), (inputs[1] + u[1]).sigmoid()
        n = (inputs[2] + r * u[2]).tanh()
        return ((1.0 - z) * n + z * h,)


class LSTMCell(Cell):
    """c' = f c + i g, h' = o tanh c'; gates i, f, g, o (Hochreiter and Schmidhuber, 1997)"""

    gates = 4
    states = 2

    def step(self, inputs: State, state: State) -> State:
        h, c = state
        i, f, g, o = (a + b for a, b in zip(inputs, self.of_hidden(h), strict=True))
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


class Recurrent(Module):
    """A cell applied along a dim: `layer(x)` along the last dim of x, `layer(x, over=t)` along t.

    x [input_size] over (.., t) gives h [hidden_size] at every t; `initial` is the state before the
    first step, by default zeros.
    """

    cell: Cell

    def torch_params(self, prefix: str = "") -> Iterator[tuple[str, Parameter, bool]]:
        for name, parameter, is_matrix in self.cell.torch_params(prefix):
            yield f"{name}_l0", parameter, is_matrix

    def forward(
        self, x: RecurrentTensor, *initial: RecurrentTensor, over: object = None
    ) -> RecurrentTensor:
        return self.unrolled(x, initial, over)[0]

    def unrolled(self, tensor: RecurrentTensor, initial: State, over: object) -> State:
        """Apply the cell along a dim, and return all its states, each over that dim."""
        box = union(tensor.builder, (tensor, *self.params), Const(value=0))
        t = time_of(tensor, over)
        zero = initializers.zeros()((self.cell.hidden_size,))
        first = initial or (zero,) * self.cell.states
        before = tuple(previous(tensor, box, t, f) for f in first)
        after = self.cell.step(self.cell.of_input(tensor), before)
        for old, new in zip(before, after, strict=True):
            old[tuple(r.sym + 1 if r.dim == t else r.sym for r in box)] = new
        return after


def previous(x: RecurrentTensor, box: Domain, dim: str, first: RecurrentTensor) -> RecurrentTensor:
    """Declare a state over `box` that is `first` at the first point of `dim`."""
    node = x.builder.declare_choice("before", box, Type(x.dtype, first.shape))
    out = RecurrentTensor(x.builder, node.ref)
    out[tuple(r.lo if r.dim == dim else r.sym for r in box)] = first
    return out


def time_of(x: RecurrentTensor, over: object) -> str:
    """The dim along which a layer is applied: `over`, by default the last dim of its operand."""
    dims = x.domain.dims
    name = str(unwrap(over)) if over is not None else dims[-1] if dims else ""
    if name not in dims:
        raise DomainError.at_user_line(
            f"there is no dim {name} to go along" if name else "there is no dim to go along",
            facts=f"the operand is {x!r}",
            hint="declare it over the dim: rc.like(rc.f32[4], domain=(b, t))",
        )
    return name


class RNN(Recurrent):
    """An RNNCell along a dim"""

    def __init__(self, input_size: int, hidden_size: int, domain: Steps):
        self.cell = RNNCell(input_size, hidden_size, domain)


class GRU(Recurrent):
    """A GRUCell along a dim"""

    def __init__(self, input_size: int, hidden_size: int, domain: Steps):
        self.cell = GRUCell(input_size, hidden_size, domain)


class LSTM(Recurrent):
    """An LSTMCell along a dim: h at every t; `unrolled` returns (h, c)"""

    def __init__(self, input_size: int, hidden_size: int, domain: Steps):
        self.cell = LSTMCell(input_size, hidden_size, domain)
