"""What is deferred is known: schemas say what operators touch, less what is found here.

All operators that PyTorch's own descriptions reach, below the operators that consist of others, are
run, also for gradients, in place and with `out=`: no argument changes that a schema does not name,
and no result is a view of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
import torch.utils._pytree as trees
from test_window_operators import operators, plain, promised, samples
from torch.utils._python_dispatch import TorchDispatchMode

from built import FOLDER
from recurra.window.torch.operator_rules import WAYS, table

pytestmark = [
    pytest.mark.needs_compiler,
    pytest.mark.usefixtures("pytorch_in_windows"),
    pytest.mark.filterwarnings("ignore"),
]
PARTS = 4


class Watch(TorchDispatchMode):
    """Compares the bytes and the storages of all arguments before and after every operator."""

    def __init__(self) -> None:
        super().__init__()
        self.met: set[str] = set()
        self.silent: dict[str, set[str]] = {"writes": set(), "views": set()}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        name, schema = func._schema.name, func._schema
        values = [
            args[k] if k < len(args) else given.get(argument.name)
            for k, argument in enumerate(schema.arguments)
        ]
        named = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
        tensors = [
            (t, writes)
            for value, writes in zip(values, named, strict=True)
            for t in trees.tree_leaves(value)
            if plain(t) and not t.is_meta and not t._is_zerotensor()  # which has no memory
        ]
        written = {storage(t) for t, writes in tensors if writes}
        read = [t for t, _ in tensors if storage(t) not in written]
        before = [content(t) for t in read]
        result = func(*args, **given)
        self.met.add(name)
        if any(content(t) != was for t, was in zip(read, before, strict=True)):
            self.silent["writes"].add(name)
        if not any(r.alias_info for r in schema.returns):
            storages = {storage(t) for t in trees.tree_leaves(values) if plain(t)}
            if any(storage(t) in storages for t in trees.tree_leaves(result) if plain(t)):
                self.silent["views"].add(name)
        return result


def content(t: torch.Tensor) -> bytes:
    whole: Any = torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage())  # pyright: ignore
    return whole.numpy().tobytes()


def storage(t: torch.Tensor) -> int:
    return t.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]


def variants(operator: Any) -> Iterator[Callable[..., Any]]:
    """The operator, in place, and with its results given."""
    yield operator.op
    if operator.inplace_variant is not None:
        yield operator.inplace_variant
    if operator.supports_out:
        yield lambda *args, **kwargs: operator.op(
            *args, **kwargs, out=trees.tree_map(torch.empty_like, operator.op(*args, **kwargs))
        )


def with_gradients(call: Callable[[], Any]) -> None:
    out = [t for t in trees.tree_leaves(call()) if isinstance(t, torch.Tensor) and t.requires_grad]
    total = sum((t.abs().sum() for t in out), torch.zeros(()))
    if out:
        total.backward()


def attempt(call: Callable[[], Any]) -> None:
    """Not everything can be done with every sample."""
    try:
        call()
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AttributeError):
        return


def described(part: int) -> Watch:
    with Watch() as watch:
        for operator in operators()[part::PARTS]:
            for given, args, kwargs in samples(operator):
                for f in variants(operator):
                    sample = promised((given, args, kwargs))
                    attempt(lambda f=f, s=sample: f(s[0], *s[1], **s[2]))
                if not operator.supports_autograd:
                    continue
                leaves = trees.tree_map(
                    lambda t: t.requires_grad_() if plain(t) and t.is_floating_point() else t,
                    promised((given, args, kwargs)),
                )
                with torch.enable_grad():
                    attempt(
                        lambda f=operator.op, s=leaves: with_gradients(
                            lambda: f(s[0], *s[1], **s[2])
                        )
                    )
    return watch


def undescribed() -> Watch:
    """Operators of statistics that no description of PyTorch's reaches."""
    x, mean, var = torch.randn(6, 4), torch.zeros(4), torch.ones(4)
    with Watch() as watch:
        torch.batch_norm_update_stats(x, mean, var, 0.1)
        torch.embedding_renorm_(x, torch.tensor([0, 2]), 0.5, 2.0)
    return watch


@pytest.mark.slow
def test_what_schemas_do_not_say_is_in_the_rule() -> None:
    watches = [described(part) for part in range(PARTS)] + [undescribed()]
    met = set[str]().union(*(w.met for w in watches))
    assert len(met) > 600
    rule = table(FOLDER)
    ways = {
        name: {e.way for n, e in rule.entries.items() if n.split(".")[0] == name} for name in met
    }
    writes = set[str]().union(*(w.silent["writes"] for w in watches))
    views = set[str]().union(*(w.silent["views"] for w in watches))
    assert writes == {"aten::native_batch_norm", "aten::batch_norm_update_stats"}
    assert ways["aten::batch_norm_update_stats"] == {"caller"}
    assert ways["aten::_unsafe_view"] == {"passes", "defers"}  # a view, and into what is given
    assert not any("defers" in ways[name] for name in views - {"aten::_unsafe_view"})


def test_the_rule_is_a_table() -> None:
    rule = table(FOLDER)
    assert len(rule.entries) > 2500
    assert {entry.way for entry in rule.entries.values()} >= set(WAYS) - {"unknown"}
    assert rule["aten::mm"].way == rule["aten::add_.Tensor"].way == "defers"
    assert rule["aten::view"].why == "a view"
    assert rule["c10d::allreduce_"].way == rule["mylib::f"].way == "unknown"
    assert "aten::bernoulli" in str(rule)
    assert rule["aten::bernoulli"].why in str(rule)


def test_operators_with_kernels_of_their_own_do_not_pass() -> None:
    """Those that PyTorch can also take apart: their kernels read what is in flight."""
    has: Any = torch._C._dispatch_has_kernel_for_dispatch_key  # pyright: ignore
    passing = [
        name for name, row in table(FOLDER).entries.items() if row.why == "it consists of others"
    ]
    kernels = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    assert [n for n in passing if any(has(n, k) for k in kernels)] == []
    assert len(passing) > 500
