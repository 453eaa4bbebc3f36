"""PyTorch in a window under modes of its own: what runs later runs as it was called."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from random_torch import bits
from recurra.window.torch.concurrent import SETTERS, concurrent

pytestmark = [
    pytest.mark.needs_compiler,
    pytest.mark.usefixtures("pytorch_in_windows"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # transforms ask for TorchScript
]
Results = list[torch.Tensor]

GENERATOR = torch.Generator().manual_seed(0)
SLOW = torch.randn(300, 300, generator=GENERATOR) / 17


def in_flight() -> torch.Tensor:
    """Not computed yet, after work of a millisecond or so."""
    x = SLOW
    for _ in range(3):
        x = torch.tanh(torch.mm(x, SLOW))
    return x


def equal(program: Callable[[], Results], names: Callable[[Results], Any] = bits) -> None:
    """The same bits outside and inside, however many threads there are."""
    expected = names(program())
    for threads, slots in ((1, 4), (2, 32), (3, 64)):
        for _ in range(3):
            with concurrent(threads, slots, policy="always"):
                program()  # learned
                found = program()
            assert names(found) == expected, (threads, slots)


def test_autocast_around_operators_that_it_changes() -> None:
    def program() -> Results:
        x = in_flight()
        before = torch.mm(x, x)
        with torch.autocast("cpu", torch.bfloat16):
            y = torch.mm(x, x)
            z = torch.addmm(x, x, x)
            s = torch.softmax(y, -1)
        return [before, y.float(), z.float(), s.float(), torch.mm(x, x)]

    equal(program)


def test_who_waits_inside_autocast_runs_what_was_called_outside_as_it_was_called() -> None:
    def program() -> Results:
        x = in_flight()
        y = torch.mm(x, x)
        with torch.autocast("cpu", torch.bfloat16):
            total = y.sum().item()
        return [y, torch.tensor(total)]

    equal(program)


def test_results_that_follow_the_default_type() -> None:
    whole = torch.arange(6).reshape(2, 3)

    def program() -> Results:
        first = [whole / 3, torch.sqrt(whole)]
        torch.set_default_dtype(torch.float64)
        try:
            then = [whole / 3, torch.sqrt(whole)]
        finally:
            torch.set_default_dtype(torch.float32)
        return [*first, *then, whole / 3]

    equal(program)


def test_how_many_threads_an_operator_uses_itself() -> None:
    """Sums of other parts have other last bits: in a block, between blocks, on every thread."""
    large = torch.randn(1 << 19, generator=GENERATOR)

    def sums() -> Results:
        return [(large * k).sum() for k in range(12)]

    def program() -> Results:
        one = sums()
        torch.set_num_threads(2)
        two = sums()
        torch.set_num_threads(1)
        return [*one, *two, *sums()]

    equal(program)
    torch.set_num_threads(2)
    try:
        equal(sums)
    finally:
        torch.set_num_threads(1)
    equal(sums)


IMAGES = torch.randn(4, 8, 30, 30, generator=GENERATOR)
FILTERS = torch.randn(8, 8, 3, 3, generator=GENERATOR)


def convolved() -> torch.Tensor:
    return torch.nn.functional.conv2d(IMAGES * 2, FILTERS)


def by_flags() -> Results:
    with torch.backends.mkldnn.flags(enabled=False):
        other = convolved()
    return [other, convolved()]


def by_assignment() -> Results:
    torch.backends.mkldnn.enabled = False  # pyright: ignore[reportAttributeAccessIssue]
    other = convolved()
    torch.backends.mkldnn.enabled = True  # pyright: ignore[reportAttributeAccessIssue]
    return [other, convolved()]


@pytest.mark.filterwarnings("ignore::UserWarning")  # of TF32, which this processor does not have
@pytest.mark.parametrize("program", [by_flags, by_assignment])
def test_the_library_that_operators_use(program: Callable[[], Results]) -> None:
    equal(program)


def test_settings_are_given_back() -> None:
    before = [getattr(owner, name) for owner, name in SETTERS]
    with concurrent():
        assert torch.backends.ContextProp.__set__ is not before[1]
    assert [getattr(owner, name) for owner, name in SETTERS] == before


@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere it cannot be set")
def test_denormals_are_flushed_where_the_caller_flushes_them() -> None:
    small = torch.full((300, 300), 1e-38)

    def program() -> Results:
        before = [small * 0.01 for _ in range(4)]
        assert torch.set_flush_denormal(True)
        try:
            flushed = [small * 0.01 for _ in range(20)]
        finally:
            torch.set_flush_denormal(False)
        return [*before, *flushed, small * 0.01]

    equal(program, lambda found: [float(x[0, 0]) for x in found])
    assert float(small[0, 0] * 0.01) > 0  # nothing of it is left behind


def test_derivatives_that_go_forward() -> None:
    def program() -> Results:
        with forward_ad.dual_level():
            x = forward_ad.make_dual(in_flight(), in_flight() * 2)
            y, dy = forward_ad.unpack_dual(torch.mm(x, x) * 2)
            assert dy is not None
            return [y + 0, dy + 0]

    equal(program)


TRANSFORMS: dict[str, Callable[[torch.Tensor], Results]] = {
    "jvp": lambda x: list(torch.func.jvp(lambda a: (a * a).sum(0), (x,), (x,))),
    "vmap": lambda x: [torch.func.vmap(lambda a: (a * 2).sum() + a.mean())(x)],
    "vmap of vmap": lambda x: [torch.func.vmap(torch.func.vmap(torch.sin))(x)],
    "vmap in place": lambda x: [torch.func.vmap(lambda a: a.add_(1))(x.clone())],
    "jacfwd": lambda x: [torch.func.jacfwd(lambda a: a * a + a)(x[0, :20])],
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_functions(name: str) -> None:
    """They put our dispatch key back where operators run alone; and who waits in one helps."""
    equal(lambda: TRANSFORMS[name](in_flight()))


class Seen(TorchDispatchMode):
    """Reads the results of all operators, views too; what it calls itself goes by the window."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: Results = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        out = func(*args, **(kwargs or {}))
        self.sums.append(out.double().sum())
        return out


class Wrapped(torch.Tensor):
    """Has another tensor inside, and reads it at every operator."""

    inner: torch.Tensor
    sums: Results = []  # noqa: RUF012

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapped:
        made = cls._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Wrapped:
        given = [x.inner if isinstance(x, Wrapped) else x for x in args]
        cls.sums += [x.double().sum() for x in given if isinstance(x, torch.Tensor)]
        return Wrapped(func(*given, **(kwargs or {})))


def by_a_mode() -> Results:
    x = in_flight()
    with Seen() as outer:
        y = torch.nn.functional.linear(x.t(), x)
        with Seen() as inner:
            z = x[1:].t()
        y = y + x.t()
    return [y, z, in_flight() + 1.0, *outer.sums, *inner.sums]


def by_a_mode_in_inference() -> Results:
    with torch.inference_mode():
        return by_a_mode()


def by_a_tensor() -> Results:
    Wrapped.sums.clear()
    x = Wrapped(in_flight())
    y = x.t().unsqueeze(0)
    with torch.inference_mode():
        z = torch.nn.functional.linear(in_flight(), x)
    return [y.inner, z.inner, *Wrapped.sums]


def by_a_nested_tensor() -> Results:
    """It has a kernel of its own for what others take apart."""
    x = in_flight()
    nested = torch.nested.nested_tensor([x[:3], x[3:5]])
    return torch.nn.functional.linear(nested, in_flight()).unbind()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    "program", [by_a_mode, by_a_mode_in_inference, by_a_tensor, by_a_nested_tensor]
)
def test_kernels_in_python_and_of_other_layouts(program: Callable[[], Results]) -> None:
    equal(program)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nested": lambda x: torch.nested.nested_tensor([x[:3], x[3:5]]),
    "jagged": lambda x: torch.nested.nested_tensor([x[:3], x[3:5]], layout=torch.jagged),
    "sparse": lambda x: x.relu().to_sparse(),
    "compressed": lambda x: x.relu().to_sparse_csr(),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse CSR")
@pytest.mark.parametrize("name", LAYOUTS)
def test_programs_that_begin_with_unusual_tensors(name: str) -> None:
    """A program is known by the shapes that it begins with; these have none, or ask Python."""
    x = LAYOUTS[name](SLOW)
    with concurrent(2, policy="learn"):
        found = [x + x for _ in range(15)]
    expected = str(x + x)
    assert [str(y) for y in found] == [expected] * 15


def traced() -> None:
    make_fx(lambda x: x * 2)(torch.ones(3))


def exported() -> None:
    torch.export.export(torch.nn.Linear(3, 3), (torch.ones(3),))


@pytest.mark.filterwarnings("ignore")  # PyTorch's own
@pytest.mark.parametrize("trace", [traced, exported])
def test_what_traces_leaves_the_window_as_it_was(trace: Callable[[], object]) -> None:
    """Tracers end modes by other functions than those that began them."""
    with concurrent(2, policy="always") as block:
        before = in_flight()
        trace()
        after = [in_flight() for _ in range(3)]
    assert block.counts["deferred"] > 12
    assert bits(after) == bits([before] * 3)


@pytest.fixture
def every_warning() -> Iterator[None]:
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


WARN: list[Callable[[], torch.Tensor]] = [
    lambda: (SLOW @ SLOW).to(torch.complex64).to(torch.float32),
    lambda: (SLOW @ SLOW)[:1].std(0),
    lambda: torch.add(SLOW @ SLOW, 1, out=torch.ones(3)),
]


@pytest.mark.usefixtures("every_warning")
@pytest.mark.parametrize("policy", ["always", "learn"])
@pytest.mark.parametrize("call", WARN)
def test_warnings_go_through_the_filters_of_the_line_that_called(
    call: Callable[[], torch.Tensor], policy: Any
) -> None:
    with warnings.catch_warnings(record=True) as told, concurrent(2, policy=policy):
        warnings.simplefilter("always")
        for _ in range(4):
            call()
    assert [w.filename for w in told] == [__file__] * 4
    with warnings.catch_warnings(), concurrent(2, policy=policy):
        warnings.simplefilter("error")
        for _ in range(3):
            with pytest.raises(UserWarning):
                call()


def test_what_has_warned_once_is_deferred() -> None:
    with warnings.catch_warnings(), concurrent(2, policy="always") as block:
        warnings.simplefilter("ignore")
        for always in (True, False, False, False):
            torch.set_warn_always(always)
            (SLOW @ SLOW).to(torch.complex64).to(torch.float32)
    assert block.counts["deferred"] >= 6
