"""What people do with tensors inside a block: copies, hooks, modes, errors, workers, aliases."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from built import FOLDER
from recurra.window.torch.concurrent import concurrent

pytestmark = [
    pytest.mark.needs_compiler,
    pytest.mark.usefixtures("pytorch_in_windows"),
    pytest.mark.filterwarnings("ignore"),
]
A = torch.randn(96, 96, generator=torch.Generator().manual_seed(0))


def late(x: Tensor, count: int = 3) -> Tensor:
    """A result that is not there yet."""
    for _ in range(count):
        x = torch.tanh(x @ x * 0.1 + 0.01)
    return x


def dying() -> Iterator[Any]:
    """Tensors, and views of tensors, that nobody has when they are computed."""
    for k in range(6):
        view = late(A + k).t()[1:]
        gc.collect(1)  # they are young
        yield view.sum()


def hooks() -> Iterator[Any]:
    torch.manual_seed(0)
    model, seen = nn.Sequential(nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 96)), list[float]()
    model[0].register_forward_hook(lambda m, x, y: seen.append(float(y.sum())))
    model[2].register_forward_pre_hook(lambda m, x: (x[0] * 2,))
    model.register_forward_hook(lambda m, x, y: y + 1)
    for k in range(5):
        yield model(A + k)
    yield seen


def modes() -> Iterator[Any]:
    for k in range(5):
        with torch.inference_mode():
            yield late(A + k).sum() * 1
        with torch.enable_grad():
            p = A.clone().requires_grad_()
            late(p).sum().backward()
            yield p.grad
        with torch.autocast("cpu", dtype=torch.bfloat16):
            yield A @ A
        yield A @ A
    with torch.inference_mode():
        x = late(A)
    yield failed(lambda: x.add_(1))


def views() -> Iterator[Any]:
    for k in range(6):
        y = late(A + k)
        v = y[::2].t()
        v[1:5].mul_(2)
        y[0] = 7
        v.add_(1)
        yield from (y.clone(), v.clone())
        made = torch.empty(0)
        torch.add(y, y, out=made)
        torch.mul(made, made, out=made)
        yield made
        yield y.as_strided((5, 5), (1, 1)).clone()
        y.resize_(10, 10)
        yield y


def aliases() -> Iterator[Any]:
    a = A.clone()
    other = torch.empty(0).set_(a.untyped_storage(), 0, (96, 96))
    other.mul_(2)
    yield late(a)
    array = a.numpy()
    a.mul_(2)
    yield torch.from_numpy(array.copy())
    array += 1
    yield late(a)
    a.detach().sub_(3)
    a.data.add_(1)
    first, second = a.chunk(2)
    first.copy_(second)
    a[:-1].copy_(a[1:].clone())
    yield a


def failed(f: Callable[[], Any]) -> tuple[str, str]:
    """The type and the first line of what it raises, also where its value is read first."""
    try:
        made = f()
        if isinstance(made, Tensor):
            made.sum().item()
    except Exception as error:
        frames = [x for x in traceback.extract_tb(error.__traceback__) if x.filename == __file__]
        assert frames
        return type(error).__name__, str(error).splitlines()[0]
    return "", "it is fine"


def errors() -> Iterator[Any]:
    wrong: list[Callable[[], Any]] = [
        lambda: torch.mm(A, A[:3]),
        lambda: torch.mm(A, A, out=torch.empty(3, dtype=torch.int64)),
        lambda: A.view(7, 7),
        lambda: A[200],
        lambda: torch.cat([A, A[:, :3]]),
        lambda: torch.ones(3).index_select(0, torch.tensor([5])),
        lambda: torch.tensor([1, 2]).gather(0, torch.tensor([7])),
        lambda: torch.linalg.inv(torch.zeros(3, 3)),
        lambda: torch.linalg.cholesky(-torch.eye(4)),
        lambda: F.embedding(torch.tensor([9]), A[:3]),
        lambda: F.nll_loss(A, torch.full((96,), 1000)),
        lambda: torch.ones(2).add_(torch.ones(3)),
        lambda: A.expand(3, 96, 96).add_(1),
        lambda: torch.multinomial(torch.tensor([-1.0, 1.0]), 1),
        lambda: torch.bincount(torch.tensor([-1])),
    ]
    for f in wrong:
        yield from (failed(f) for _ in range(3))
        yield late(A)


def copies() -> Iterator[Any]:
    for k in range(4):
        y = late(A + k)
        kept = [copy.deepcopy(y), pickle.loads(pickle.dumps(y)), np.array(y)]
        file = io.BytesIO()
        torch.save({"whole": y, "view": y[:3]}, file)
        y.zero_()
        file.seek(0)
        yield from kept
        yield from torch.load(file).values()
        model = nn.Linear(96, 96)
        model.weight.data = late(A)
        model.bias.data.zero_()
        yield from copy.deepcopy(model).state_dict().values()


class Rows(torch.utils.data.Dataset[Tensor]):
    def __init__(self) -> None:
        self.rows = late(A)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, k: int) -> Tensor:
        return late(self.rows)[k] * k


def loaders() -> Iterator[Any]:
    """Of this process, and of workers that are forked inside the block."""
    for workers in (0, 2):
        loader = torch.utils.data.DataLoader(
            Rows(), 3, num_workers=workers, multiprocessing_context="fork" if workers else None
        )
        for batch in loader:
            yield late(batch @ batch.t())


def blocks() -> Iterator[Any]:
    x = late(A)
    with concurrent(2, 8, folder=FOLDER):
        x = late(x)
        with concurrent(2, 8, policy="always", folder=FOLDER):
            yield late(x)
        yield failed(lambda: torch.mm(x, x[:2]))
    yield late(x)


def draws() -> Iterator[Any]:
    for k in range(4):
        torch.manual_seed(k)
        x = torch.dropout(late(torch.randn(64, 64)), 0.5, True)
        yield from (x, torch.rand_like(x), torch.randperm(20))
        state = torch.get_rng_state()
        yield torch.rand(3)
        torch.set_rng_state(state)
        yield torch.rand(3)


def branches() -> Iterator[Any]:
    for k in range(8):
        y = late(A + k)
        y = y - 1 if y.sum() > 0 else y
        yield y[: int(y.abs().sum()) % 7 + 1].sum(0)
        yield from (y[y > 0].sum(), y.nonzero(), len(y.unique()))


def lists() -> Iterator[Any]:
    xs = [late(A + k) for k in range(4)]
    torch._foreach_add_(xs, 1.0)  # pyright: ignore[reportPrivateUsage]
    yield from torch._foreach_norm(xs)  # pyright: ignore[reportPrivateUsage]
    yield from torch.cat(xs).split(50)
    whole = (late(A) > 0.05).float()
    sparse = whole.to_sparse()
    yield from (torch.sparse.mm(sparse, whole), sparse.coalesce().values(), sparse.to_dense())
    yield from (torch.fft.rfft(whole).abs(), *torch.linalg.qr(late(A)), *torch.sort(whole[0]))


def compiled() -> Iterator[Any]:
    torch.compiler.reset()
    f = torch.compile(lambda x: torch.tanh(x @ x) + 1, backend="eager")
    for k in range(4):
        yield f(late(A + k))


CASES = [
    dying, hooks, modes, views, aliases, errors, copies, loaders, blocks, draws, branches, lists,
    compiled,
]  # fmt: skip


def told(x: Any) -> Any:
    """Types, shapes and bits."""
    if isinstance(x, np.ndarray):
        x = torch.from_numpy(x)
    if not isinstance(x, Tensor):
        return x
    plain = x.detach().contiguous().reshape(-1)
    return x.dtype, tuple(x.shape), plain.view(torch.uint8).numpy().tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["always", "learn"])
@pytest.mark.parametrize("case", CASES)
def test_it_is_as_in_eager_mode(case: Callable[[], Iterator[Any]], policy: Any) -> None:
    want = [told(x) for x in case()]
    for _ in range(3):
        with warnings.catch_warnings(), concurrent(3, 16, policy=policy, folder=FOLDER):
            warnings.simplefilter("ignore")
            found = list(case())
        assert [told(x) for x in found] == want


def test_a_tensor_dies_when_its_operator_has_ended() -> None:
    """Until then an operator in flight has it, as autograd has what it saves."""
    died: list[int] = []
    with concurrent(2, 16, policy="always", folder=FOLDER):
        for k in range(10):
            y = late(A + k)
            seen = weakref.ref(y)
            weakref.finalize(y, died.append, k)
            assert seen() is y
            del y
    assert seen() is None
    assert sorted(died) == list(range(10))


@pytest.mark.parametrize("told", [False, True])
def test_an_error_by_which_a_block_is_left_says_what_failed_before(told: bool) -> None:
    """In eager mode that would have come first. What somebody was told of is not said again."""

    def program(left: Tensor) -> None:
        found = left
        for last in (1, 1, 1000):
            found = left.gather(0, torch.full((1, 3), last))
        if told:
            with pytest.raises(RuntimeError, match="out of bounds"):
                found.tolist()
        raise KeyError("ours")

    def block() -> None:
        with concurrent(2, policy="always"):
            program(late(A))

    with pytest.raises(KeyError, match="ours") as error:
        block()
    notes = getattr(error.value, "__notes__", [])
    assert len(notes) == (not told)
    for note in notes:
        assert note.startswith("before that, and read by nobody: RuntimeError: operator aten::gath")
