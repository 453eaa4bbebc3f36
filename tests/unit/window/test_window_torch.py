"""PyTorch without annotations: equal to the last bit, waiting where it must."""

from __future__ import annotations

import copy
import io
import json
import pickle
import random
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from built import FOLDER
from documents import ROOT, env
from fuzzing import SEED
from random_torch import bits, inputs, run
from recurra import window
from recurra.cli import main
from recurra.window import KernelError, WindowError
from recurra.window.native.native_build import TORCH
from recurra.window.native.native_window import load
from recurra.window.torch import call_sites as sites
from recurra.window.torch.concurrent import READERS, concurrent
from recurra.window.workloads import NAMES, make

pytestmark = [pytest.mark.needs_compiler, pytest.mark.usefixtures("pytorch_in_windows")]


def equal_programs(seeds: range) -> dict[str, float]:
    """Runs each program twice; what the blocks counted, all in all."""
    start = inputs()
    counts: dict[str, float] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # outputs that are resized
        for seed in seeds:
            expected = bits(run(seed, start))
            rng = random.Random(seed)
            options: Any = dict(policy=rng.choice(["always", "always", "learn"]))
            with concurrent(rng.randint(1, 4), rng.randint(1, 64), **options) as block:
                found = run(seed, start)
            assert bits(found) == expected, f"program {seed}"
            for name, count in block.counts.items():
                counts[name] = counts.get(name, 0) + count
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("part", range(6))
def test_random_programs_are_equal_to_the_last_bit(part: int) -> None:
    counts = equal_programs(range(1000 * part, 1000 * (part + 1)))
    assert counts["deferred"] > 20 * 1000
    assert counts["joined to another"] > 1000
    assert counts["by workers"] > 0  # how many they get to depends on what else the machine does
    assert counts["alone"] > 1000


@pytest.mark.fuzz
def test_many_random_programs() -> None:
    first = 6_000 + SEED * 1_000_000
    equal_programs(range(first, first + 26_000))


@pytest.mark.parametrize("name", NAMES)
def test_workloads_are_equal_to_the_last_bit(name: str) -> None:
    workload = make(name, batch=8 if name in NAMES[:5] else 1)
    expected = workload.run()
    with concurrent(2, policy="always") as block:
        for _ in range(2):
            found = workload.run()
    if isinstance(found, torch.Tensor):
        found, expected = [found], [expected]
    assert bits(found) == bits(expected)
    assert block.counts["deferred"] > 30


SLOW = torch.randn(400, 400, generator=torch.Generator().manual_seed(0)) / 20


def in_flight() -> torch.Tensor:
    """A sum that is not computed yet, after work of a millisecond or so."""
    x = SLOW
    for _ in range(3):
        x = torch.tanh(x @ SLOW)
    return x.sum(1)[:4]


READ: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda x: x[0].item(),
    "float": lambda x: float(x[0]),
    "bool": lambda x: bool(x[0] > -1e9),
    "if": lambda x: 1 if x[0] > -1e9 else 0,
    "numpy": lambda x: x.numpy().tolist(),
    "asarray": lambda x: np.asarray(x).tolist(),
    "numpy of a view": lambda x: x[1:].numpy().tolist(),
    "tolist": lambda x: x.tolist(),
    "iteration": lambda x: [float(y) for y in x],
    "print": str,
    "format": lambda x: f"{x[0]:.3f}",
    "pickle": lambda x: pickle.loads(pickle.dumps(x)).tolist(),
    "save": lambda x: saved(x).tolist(),
    "deepcopy": lambda x: copy.deepcopy(x).tolist(),
    "copy": lambda x: copy.copy(x).tolist(),
    "dlpack": lambda x: torch.from_dlpack(x).tolist(),
    "to_dlpack": lambda x: torch.from_dlpack(torch.utils.dlpack.to_dlpack(x)).tolist(),
    "torch.to_dlpack": lambda x: torch.from_dlpack(torch.to_dlpack(x)).tolist(),
    "numpy's dlpack": lambda x: np.from_dlpack(x).tolist(),
    "data_ptr": lambda x: np.ctypeslib.as_array(pointer(x), (4,)).tolist(),
    "untyped_storage": lambda x: bytes(x.untyped_storage().tolist()),
    "storage": lambda x: x.clone().storage().tolist(),
    "equal": lambda x: torch.equal(x, x.clone()),
    "allclose": lambda x: torch.allclose(x, x.clone()),
    "tensor": lambda x: torch.tensor([x[0], x[1]]).tolist(),
    "index": lambda x: [10, 20, 30][int(x[0] * 0)],
    "mask": lambda x: x[x > -1e9].shape,
    "data": lambda x: with_data(x).tolist(),
    "apply_": lambda x: (x + 1).apply_(lambda v: 2 * v).tolist(),
    "map_": lambda x: (x + 1).map_(x * 2, lambda a, b: a + b).tolist(),
    "map2_": lambda x: (x + 1).map2_(x * 2, x * 3, lambda a, b, c: a + b * c).tolist(),
}


def saved(x: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file)


def pointer(x: torch.Tensor) -> Any:
    import ctypes

    return ctypes.cast(x.data_ptr(), ctypes.POINTER(ctypes.c_float))


def with_data(x: torch.Tensor) -> torch.Tensor:
    y = x + 1  # reads x, while x gets other memory
    x.data = torch.zeros(4)
    return y


@pytest.mark.parametrize("name", READ)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_readers_wait(name: str) -> None:
    expected = READ[name](in_flight())
    with concurrent(2, policy="always"):
        in_flight()  # learned
        for _ in range(3):
            assert READ[name](in_flight()) == expected


def test_nothing_stays_patched() -> None:
    """Functions in C are replaced where they are: they stay the objects that they were."""
    module = load(FOLDER, TORCH)
    before = {name: getattr(torch.Tensor, name) for name in (*READERS, "data")}
    with concurrent():
        assert torch.Tensor.numpy is before["numpy"]
        assert torch.Tensor.data is not before["data"]
        assert module.functions_replaced() >= len(READERS)
    assert {name: getattr(torch.Tensor, name) for name in (*READERS, "data")} == before
    assert (module.functions_replaced(), torch.Tensor.__dict__.get("data")) == (0, None)


def test_results_come_before_they_are_computed() -> None:
    """Shapes are there at once, and views; values with the end of the block at the latest."""
    with concurrent(1, policy="always") as block:
        for _ in range(2):
            y = in_flight()
            assert y.shape == (4,)
            view = y.view(2, 2).t()
    assert block.counts["deferred"] >= 7
    assert view.flatten().tolist() == in_flight().view(2, 2).t().flatten().tolist()


def test_gradients_are_refused_at_the_beginning() -> None:
    with torch.enable_grad(), pytest.raises(WindowError, match="gradients are on"):
        concurrent().__enter__()


@pytest.mark.parametrize("policy", ["learn", "always"])
def test_operators_that_need_gradients_have_them_in_every_block(policy: Any) -> None:
    """Whatever the clock has decided: they run in the caller, with their history."""
    weight = torch.ones(30, 30, requires_grad=True)
    x = torch.ones(30, 30)
    for _ in range(40):
        weight.grad = None
        with concurrent(policy=policy):
            for _ in range(30):
                y = (x @ x).relu()
            with torch.enable_grad():
                (weight * y).sum().backward()
            assert weight.grad is not None
            grad = weight.grad * 2
        assert torch.equal(grad, torch.full((30, 30), 60.0))
    with torch.inference_mode(), concurrent(policy="always"):
        for _ in range(2):
            y = weight * 2
        assert y.is_inference()
    assert torch.equal(y, torch.full((30, 30), 2.0))


def test_autocast_stays_what_it_is() -> None:
    x = torch.randn(8, 8)

    def program() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return (x @ x).float() + 1

    expected = program()
    with concurrent(2, policy="always"):
        for _ in range(3):
            found = program()
    assert torch.equal(found, expected)


def test_batch_statistics_are_written_in_order() -> None:
    """The schema of native_batch_norm does not say that it writes them."""

    def program() -> list[torch.Tensor]:
        norm = torch.nn.BatchNorm1d(4)
        seen = [norm(SLOW[k : k + 8, :4]) for k in range(20)]
        return [*seen, norm.running_mean + 0, norm.running_var + 0]

    expected = program()
    with concurrent(3, policy="always"):
        program()
        found = program()
    assert bits(found) == bits(expected)


# faults: an index that is out of range is known only when it is looked up


def looked_up(at: torch.Tensor) -> torch.Tensor:
    return torch.index_select(SLOW, 0, at)


WRONG = torch.tensor([1, 4000])


def test_a_fault_surfaces_at_the_first_reader() -> None:
    with concurrent(2, policy="always"):
        _ = looked_up(torch.tensor([1, 2])) * 2  # learned
        bad = looked_up(WRONG)  # the line is in looked_up
        follows = bad * 2
        good = looked_up(torch.tensor([3, 4])) * 2
        assert torch.equal(good, SLOW[3:5] * 2)
        with pytest.raises(IndexError, match=r"operator aten::index_select failed") as error:
            follows.sum().item()
        for kind in (KernelError, IndexError):
            with pytest.raises(kind, match="aten::index_select"):
                bad.numpy()
    assert "index out of range" in str(error.value)
    line = looked_up.__code__.co_firstlineno + 1
    assert f"test_window_torch.py:{line}" in str(error.value)


def test_a_fault_that_nobody_reads_is_told_at_the_end() -> None:
    looked_up(torch.tensor([1, 2]))

    def block() -> None:
        with concurrent(2, policy="always"):
            looked_up(torch.tensor([1, 2]))
            looked_up(WRONG)
            assert torch.equal(SLOW + 1, SLOW + 1)

    for kind in (KernelError, IndexError):
        with pytest.raises(kind, match="index_select"):
            block()
    with concurrent(2, policy="always"):  # the next one knows nothing of it
        assert looked_up(torch.tensor([1, 2])).shape == (2, 400)


def test_the_blocks_own_error_comes_first() -> None:
    def block() -> None:
        with concurrent(2, policy="always"):
            looked_up(torch.tensor([1, 2]))
            looked_up(WRONG)
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        block()
    assert (torch.ones(3) + 1).tolist() == [2, 2, 2]


def test_blocks_in_blocks_are_one() -> None:
    with concurrent(2, policy="always") as outer:
        in_flight()
        with concurrent(4, policy="always"):
            y = in_flight()
        z = y + 1
    assert torch.equal(z, in_flight() + 1)
    assert outer.counts["deferred"] >= 7


def test_one_block_is_open_at_a_time() -> None:
    """What begins on another thread meanwhile is nothing, and its results are as good."""
    found: list[torch.Tensor] = []

    def work() -> None:
        with torch.no_grad(), concurrent(3, policy="always"):
            in_flight()
            found.append(in_flight())

    def together() -> None:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    together()
    with concurrent(2, policy="always") as block:
        in_flight()
        y = in_flight()
        together()
    assert block.counts["deferred"] >= 7
    assert len(found) == 8
    assert all(torch.equal(x, y) for x in found)


def test_tensors_may_die_in_flight() -> None:
    """Python objects of tensors are freed by whoever held them last, without a deadlock."""
    with concurrent(3, slots=4, policy="always"):
        for k in range(300):
            x = torch.full((64, 64), float(k))
            x.tag = object()  # it has a Python object of its own
            y = x @ x
            del x
        assert float(y[0, 0]) == 64 * 299**2


def test_the_window_is_off_where_it_cannot_pay() -> None:
    x = torch.ones(64, 64) / 64
    with concurrent(2) as block:
        y = x
        for _ in range(1000):
            y = y @ x
            y[0, 0].item()  # the program waits for each of them
    assert block.counts["window off"] == 1
    assert block.counts["deferred"] == 0
    assert 0 < block.counts["predicted gain"] < 1.1
    assert torch.equal(y, x)
    assert "window off" in str(block)
    assert "deferred" in block._repr_html_()


@pytest.mark.parametrize(("threads", "slots"), [(0, 8), (1, 0), (1, 65)])
def test_blocks_that_cannot_be(threads: int, slots: int) -> None:
    with pytest.raises(WindowError, match="1 to 64 slots"):
        concurrent(threads, slots).__enter__()


def test_other_policies_are_refused() -> None:
    other: Any = "never"
    with pytest.raises(WindowError, match="policy 'never'\n  it is one of learn, always"):
        concurrent(policy=other)


def test_it_is_there_by_its_public_name() -> None:
    assert window.concurrent is concurrent
    with pytest.raises(AttributeError, match="no attribute 'parallel'"):
        window.parallel  # noqa: B018


def script(text: str, **variables: str) -> subprocess.CompletedProcess[str]:
    prelude = (
        "import os, torch\nfrom recurra import window\n"
        "torch.set_num_threads(1); torch.set_grad_enabled(False)\n"
        "x = torch.ones(300, 300) / 300\n"
    )
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", prelude + text],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=env() | variables,
        cwd=ROOT,
    )


@pytest.mark.slow
def test_fork_finds_nothing_in_flight(tmp_path: Path) -> None:
    done = script(
        "from pathlib import Path\n"
        f"with window.concurrent(2, policy='always', folder=Path({str(FOLDER)!r})):\n"
        "    for _ in range(20): y = x @ x\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        os._exit(0 if abs(float(y[0, 0]) - 1 / 300) < 1e-6 else 3)\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
        "    y = y @ x\n"
        "print(round(300 * float(y[0, 0]), 3))\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1.0\n", "")


@pytest.mark.slow
def test_a_forked_child_may_go_on() -> None:
    done = script(
        "from pathlib import Path\n"
        "import sys\n"
        f"folder = Path({str(FOLDER)!r})\n"
        "with window.concurrent(2, policy='always', folder=folder):\n"
        "    for _ in range(20): y = x @ x\n"
        "    child = os.fork()\n"
        "    y = y @ x\n"
        "    y.numpy()\n"
        "with window.concurrent(2, policy='always', folder=folder):\n"
        "    for _ in range(20): y = y @ x\n"
        "if child: assert os.waitpid(child, 0)[1] == 0\n"
        "print(round(300 * float(y[0, 0]), 3))\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1.0\n1.0\n", "")


@pytest.mark.slow
def test_the_interpreter_ends_inside_a_block() -> None:
    done = script(
        "from pathlib import Path\n"
        f"window.concurrent(2, policy='always', folder=Path({str(FOLDER)!r})).__enter__()\n"
        "for _ in range(200): y = x @ x\n"
        "print('end')\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_a_script_is_run_inside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "infer.py"
    path.write_text(
        "import torch\nx = torch.ones(50, 50)\nfor _ in range(30): y = x @ x\nprint(float(y.sum()))"
    )
    assert main(["window", "run", str(path), "--always", "--json"]) == 0
    told = capsys.readouterr()
    assert told.out == "125000.0\n"
    assert json.loads(told.err)["deferred"] >= 29
    assert main(["window", "run", str(tmp_path / "nothing.py")]) == 2


@pytest.mark.slow
def test_without_a_compiler_it_says_what_to_install(tmp_path: Path) -> None:
    """It has no form in Python."""
    here = {"XDG_CACHE_HOME": str(tmp_path), "CXX": "no-such-compiler"}
    done = script("with window.concurrent(): pass", **here)
    assert done.returncode == 1
    assert "BuildError: there is no C++ compiler" in done.stderr
    assert "hint: unset CXX: there is " in done.stderr


def test_blocks_that_are_off_are_nothing_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next ones that begin at that line; soon one of them is looked at again."""
    module, x = load(FOLDER, TORCH), torch.ones(4)

    def looked_at(count: int) -> list[bool]:
        found: list[bool] = []
        for _ in range(count):
            with concurrent(2) as block:
                x.add(1.0)
                found.append(module.functions_replaced() > 0)
            assert block.counts["window off"] == 0  # too short to tell which program it is
        return found

    monkeypatch.setattr(sites, "REST", 1e9)
    assert looked_at(7) == [True] * sites.ENOUGH + [False] * (7 - sites.ENOUGH)
    with concurrent(2):  # begins elsewhere
        assert module.functions_replaced()
    with torch.enable_grad(), pytest.raises(WindowError, match="gradients are on"):
        looked_at(1)
    monkeypatch.setattr(sites.time, "perf_counter", lambda: 1e18)
    assert looked_at(1) == [True]


def test_blocks_that_defer_are_looked_at_always() -> None:
    x = torch.ones(4)
    for _ in range(2 * sites.ENOUGH):
        with concurrent(2, policy="always") as block:
            x.add(1.0)
        assert block.counts["deferred"] + block.counts["learned"] == 1


@concurrent(2, policy="always")
def doubled(x: torch.Tensor, depth: int) -> torch.Tensor:
    return x * 2 if depth == 0 else doubled(x, depth - 1) * 2


def test_a_function_in_a_block_of_its_own() -> None:
    assert doubled(torch.ones(2), 3).tolist() == [16.0, 16.0]
