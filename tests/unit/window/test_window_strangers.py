"""Small programs as strangers write them: the same bits as in eager mode, whatever the policy."""

from __future__ import annotations

import asyncio
import copy
import io
import os
import pickle
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from random_torch import bits
from recurra.window.torch.concurrent import concurrent

pytestmark = [
    pytest.mark.needs_compiler,
    pytest.mark.usefixtures("pytorch_in_windows"),
    pytest.mark.filterwarnings("ignore"),
]
N = 120
W = torch.randn(N, N, generator=torch.Generator().manual_seed(0)) / 11
PROGRAMS: dict[str, Callable[[], list[Tensor]]] = {}


def program(function: Callable[[], list[Tensor]]) -> Callable[[], list[Tensor]]:
    PROGRAMS[function.__name__] = function
    return function


def slow() -> Tensor:
    return torch.tanh(W @ W @ W)


@program
def outputs_that_are_resized_and_written_again() -> list[Tensor]:
    out = torch.empty(0)
    torch.mm(slow(), W, out=out)
    before = out * 1
    torch.add(out, 1, out=out)
    return [before, out]


@program
def an_output_that_is_part_of_its_argument() -> list[Tensor]:
    x = slow()
    torch.add(x[:40], 1, out=x[40:80])
    return [x * 1]


@program
def views_of_views_in_place() -> list[Tensor]:
    x = slow()
    view = x.view(-1)[10 : 10 + 1000].view(-1, 10).t()
    view.mul_(3)
    view[2:4] += 1
    x[[1, 2]] = x[[2, 1]]
    return [x, view.contiguous()]


@program
def rows_repeated_without_a_copy() -> list[Tensor]:
    x = slow()[0]
    repeated = x.expand(5, N)
    before = repeated + 1
    x.add_(2)
    return [before, repeated + 0]


@program
def data_that_change_places() -> list[Tensor]:
    a, b = slow(), slow() + 1
    c = a * 2
    a.data, b.data = b.data, a.data
    torch.utils.swap_tensors(a, c)
    return [a.add_(1), b, c]


@program
def tensors_that_are_swapped_while_others_read_them() -> list[Tensor]:
    a, b = slow(), torch.ones(N)
    c = a @ a
    b += 1
    torch.utils.swap_tensors(a, b)
    torch.manual_seed(0)
    layer = nn.Linear(N, N, dtype=torch.float64)
    before = layer(c.double())
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        after = layer.float()(c)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    return [a, b, c, before, after]


@program
def a_storage_that_grows() -> list[Tensor]:
    x = slow() * 1
    before = x + 1
    x.untyped_storage().resize_(4 * N * N * 2)
    x.set_(x.untyped_storage(), 0, (2 * N, N))
    x[N:].fill_(1)
    return [x * 1, before]


@program
def memory_of_bytes() -> list[Tensor]:
    raw = bytearray(4 * N)
    x = torch.frombuffer(raw, dtype=torch.float32)
    x.fill_(2.0)
    before = x * slow()[0]
    raw[:4] = b"\0\0\0\0"
    return [before, x * 1]


@program
def hooks_of_modules() -> list[Tensor]:
    torch.manual_seed(0)
    layer, seen = nn.Linear(N, N), list[Tensor]()
    handle = layer.register_forward_hook(lambda m, i, o: seen.append(o.clone()) or o * 2)
    made = layer(slow())
    handle.remove()
    return [made, *seen]


@program
def hooks_of_gradients() -> list[Tensor]:
    seen: list[Tensor] = []
    with torch.enable_grad():
        w = W.clone().requires_grad_()
        w.register_hook(lambda g: seen.append(g * 1) or g * 2)
        checkpoint(lambda a: (a @ w).relu() @ w, slow(), use_reentrant=False).sum().backward()
    assert w.grad is not None
    return [w.grad, *seen]


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grads[0] * x.cos()


@program
def functions_with_their_own_gradients() -> list[Tensor]:
    with torch.enable_grad():
        x = slow().detach().requires_grad_()
        Sine.apply(x).sum().backward()
    assert x.grad is not None
    return [x.grad, Sine.apply(W)]


@program
def copies_and_files() -> list[Tensor]:
    x, file = slow(), io.BytesIO()
    torch.save({"x": x, "row": x[1]}, file)
    copies = [*pickle.loads(pickle.dumps([x, x[:2]])), *copy.deepcopy([x, x.t()])]
    x.zero_()
    file.seek(0)
    return [*copies, *torch.load(file).values(), x]


@program
def lists_of_tensors_in_place() -> list[Tensor]:
    weights = [nn.Parameter(W.clone()) for _ in range(3)]
    optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9, foreach=True)
    for k in range(3):
        for w in weights:
            w.grad = slow() + k
        optimizer.step()
        optimizer.zero_grad()
    return [w.detach().clone() for w in weights]


@program
def draws_between_deferred_operators() -> list[Tensor]:
    torch.manual_seed(3)
    x, own = slow(), torch.Generator().manual_seed(1)
    state = torch.get_rng_state()
    first = torch.rand(4) * x[0, :4]
    torch.set_rng_state(state)
    drawn = x.clone().uniform_(generator=own)
    return [first, torch.rand(4), F.dropout(x, 0.3), drawn, torch.randperm(6, generator=own)]


@program
def parts_without_elements() -> list[Tensor]:
    x = slow()
    none = x[:0]
    return [none + 1, none.sum(), torch.cat([none, x[:1]]), none.mean(0), x.narrow(0, 0, 0).prod()]


@program
def modes_of_functions_and_of_dispatch() -> list[Tensor]:
    calls: list[object] = []

    class Functions(TorchFunctionMode):
        def __torch_function__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(f)
            return f(*args, **(kwargs or {}))

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(f)
            return f(*args, **(kwargs or {}))

    with Functions():
        x = slow() * 2 + 1
    with Operators():
        y = slow() * 2 + 1
    return [x, y, torch.tensor(len(calls))]


@program
def threads_that_take_turns() -> list[Tensor]:
    given: queue.Queue[Tensor | None] = queue.Queue()
    found: list[Tensor] = []

    def consume() -> None:
        with torch.no_grad():
            while (x := given.get()) is not None:
                found.append(x.sum(0) * 1)
                x.add_(5)

    thread = threading.Thread(target=consume)
    thread.start()
    made = [slow() * k for k in range(6)]
    for x in made:
        given.put(x)
    given.put(None)
    thread.join()
    with ThreadPoolExecutor(3) as pool:
        found += pool.map(lambda x: (x * 2).sum(0), made)
    return [*found, *made]


@program
def coroutines() -> list[Tensor]:
    async def one(k: int) -> Tensor:
        x = slow() * k
        await asyncio.sleep(0)
        return x + 1

    async def all_of_them() -> list[Tensor]:
        return await asyncio.gather(*(one(k) for k in range(4)))

    return asyncio.run(all_of_them())


@program
def what_is_called_when_objects_die() -> list[Tensor]:
    found: list[Tensor] = []

    class Dies:
        def __init__(self, x: Tensor):
            self._x = x

        def __del__(self) -> None:
            found.append(self._x.add_(1) * 2)

    for k in range(5):
        Dies(slow() * k)
    return found


@program
def children_that_go_on() -> list[Tensor]:
    found: list[Tensor] = []
    for k in range(3):
        x = slow() * k
        child = os.fork()
        if not child:
            os._exit(0 if (x + 1).isfinite().all() else 1)
        found += [torch.tensor(os.waitpid(child, 0)[1]), x]
    return found


@program
def workers_that_load_data() -> list[Tensor]:
    rows: Any = [W[k] * k for k in range(8)]
    return [batch.sum(0) * slow()[0] for batch in DataLoader(rows, 4, num_workers=1)]


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_strangers(name: str) -> None:
    expected = [bits(PROGRAMS[name]()) for _ in range(2)]
    options: list[Any] = [dict(policy="always"), dict(policy="learn"), dict(check=True)]
    for chosen in options:
        with concurrent(3, **chosen):
            found = [PROGRAMS[name]() for _ in range(2)]
        assert [bits(x) for x in found] == expected, chosen
