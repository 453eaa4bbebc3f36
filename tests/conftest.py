"""Random tests draw the same examples in every run, and keep nothing on disk; garbage waits."""

import ctypes
import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import fuzzing
import process_memory

settings.register_profile(
    "fixed",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fixed")
os.environ["RECURRA_CACHE"] = "0"  # programs are compiled, also in processes that tests start
# These read the package's bytecode, as a user's do, and do not compile all of it each time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Native extensions are built once for all runs of the tests: that takes half a minute.
KEPT = os.path.join(tempfile.gettempdir(), "recurra-tests-cache")
os.environ["XDG_CACHE_HOME"] = KEPT
gc.set_threshold(100_000, 20, 50)
# A shell has jobs in its background ignore Ctrl-C, and so would all processes that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What was imported stays: the collector need not go through it again and again."""
    _keep_what_xla_compiles()
    gc.collect()
    gc.freeze()


def _keep_what_xla_compiles() -> None:
    """Each program goes through our compiler; what XLA makes of equal HLO is kept by JAX on disk.

    Not in processes that tests start: killed ones would leave half a file, of which JAX warns.
    """
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()
    compilation_cache.set_cache_dir(os.path.join(KEPT, "jax"))


class _Memory:
    """The memory that a worker may have before it lets go of what JAX keeps: all that it compiled.

    To let go takes a quarter of a second, and what JAX itself had compiled is compiled again.
    """

    growth = 250e6  # bytes, on top of the libraries

    def __init__(self) -> None:
        self.most = process_memory.resident() + self.growth

    def bound(self) -> None:
        """Let go of what finished tests have left, if it is much."""
        if process_memory.resident() > self.most:
            if jax := sys.modules.get("jax"):
                jax.clear_caches()
            gc.collect()
            _GIVE_BACK(0)
            self.most = process_memory.resident() + self.growth


@cache
def _memory() -> _Memory:
    return _Memory()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """What a test has left goes before there is too much of it."""
    _memory().bound()


def pytest_sessionfinish() -> None:
    """Counts of random programs add up over runs."""
    fuzzing.keep_counts()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """After `make fuzz`: how many random programs were ever run, by test."""
    if terminalreporter.config.option.markexpr == "fuzz":
        for test, (programs, seeds) in fuzzing.counts().items():
            terminalreporter.write_line(f"{programs:9,} programs of {seeds} seeds  {test}")


_NUMBERS = count()
# What is free goes back to the system, where the C library can do that.
_GIVE_BACK = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)


@pytest.fixture(autouse=True)
def no_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Kernels that were tuned on this machine have no part in tests; no folder is made for that."""
    nowhere = tmp_path_factory.getbasetemp() / f"kernels-{next(_NUMBERS)}"
    monkeypatch.setenv("RECURRA_KERNELS", str(nowhere))


@pytest.fixture
def program_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A test's own compilation cache. JAX keeps nothing: ours cannot write what JAX has read."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    monkeypatch.setenv("RECURRA_CACHE", str(tmp_path / "cache"))
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    yield tmp_path / "cache"
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


@pytest.fixture
def kept_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs share their environments, whose memory is their own: only the program's is counted."""
    from recurra.rl.episodes import Episodes

    monkeypatch.setattr(Episodes, "_begin", lambda *_: None)


@pytest.fixture
def hasty_xla(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """XLA takes a third less time, for slower code, here and in processes that are started here.

    For tests whose answers are compared within a tolerance, are whole numbers, or all come from one
    compiled program.
    """
    import jax

    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
