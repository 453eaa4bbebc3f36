"""Native extensions: built once, by whatever compiler, kept whole, loaded if they are ours."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import spec_from_file_location
from pathlib import Path
from random import Random
from typing import Any

import pytest

from documents import ROOT
from recurra.config import environment
from recurra.nest import kernel_store
from recurra.support import cxx_toolchain, native_extension, notices
from recurra.support.cxx_toolchain import COMPILERS, BuildError
from recurra.support.native_extension import WORK, Extension, build, find
from recurra.support.private_files import NotPrivateError

REAL = next(filter(shutil.which, COMPILERS), None)
assert REAL is not None, f"these tests need a C++ compiler: {', '.join(COMPILERS)}"

SOURCE = """
#include "answer.h"
#ifndef MORE
#define MORE 0
#endif
extern "C" int answer() { return ANSWER + MORE; }
"""


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own, the compiler of this machine, and nothing told yet."""
    monkeypatch.setenv("RECURRA_CACHE", str(tmp_path / "cache"))
    for name in ("CXX", "CXXFLAGS"):
        monkeypatch.delenv(name, raising=False)
    notices.tell_once.cache_clear()


@pytest.fixture
def extension(tmp_path: Path) -> Extension:
    (tmp_path / "answer.cpp").write_text(SOURCE)
    (tmp_path / "answer.h").write_text("#define ANSWER 42\n")
    return Extension("answer", "the answer", tmp_path / "answer.cpp", ("-O1",), is_module=False)


def answer(path: Path) -> int:
    """What the library at a path answers; in a child, since a file that is open stays as it is."""
    words = f"import ctypes; print(ctypes.CDLL({str(path)!r}).answer())"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    return int(done.stdout)


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def cache(tmp_path: Path) -> list[str]:
    """All files of the cache but locks, by the ends of their names."""
    files = (x for x in (tmp_path / "cache").rglob("*") if x.is_file() and x.name != ".lock")
    return sorted(x.name for x in files)


WHOLE = ["answer.so", "answer.so.sha256"]


def test_built_once(
    extension: Extension, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert find(extension) is None
    path = build(extension)
    assert capsys.readouterr().err == "recurra: building the answer, once\n"
    assert path.is_relative_to(tmp_path / "cache" / "recurra" / "native")
    assert build(extension) == find(extension) == path
    assert capsys.readouterr().err == ""
    assert ctypes.CDLL(str(path)).answer() == 42
    assert cache(tmp_path) == WHOLE
    ours = [x for x in (tmp_path / "cache").rglob("*") if x.stat().st_mode & 0o077]
    assert ours == []


def test_a_folder_of_ones_own(extension: Extension, tmp_path: Path) -> None:
    path = build(extension, tmp_path / "image")
    assert path.is_relative_to(tmp_path / "image")
    assert find(extension, tmp_path / "image") == path
    assert find(extension) is None


def test_one_folder_for_all(
    extension: Extension, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs, tuned nests and native builds are below the same one, given or the user's."""
    monkeypatch.delenv("RECURRA_KERNELS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    for given, place in ((str(tmp_path / "given"), "given"), ("", "mine"), ("0", "mine")):
        monkeypatch.setenv("RECURRA_CACHE", given)
        assert kernel_store.folder() == tmp_path / place / "recurra" / "kernels"
        assert build(extension).is_relative_to(tmp_path / place / "recurra" / "native")
        assert environment().cache == (None if given == "0" else tmp_path / place)


def test_where_there_are_no_locks(
    extension: Extension, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on some file systems of a network: who works there is left alone."""
    import fcntl

    def none(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    path = build(extension)
    path.unlink()
    other = path.parent / f"{WORK}of-another"
    other.mkdir()
    monkeypatch.setattr(fcntl, "flock", none)
    assert answer(build(extension)) == 42
    assert other.exists()


CHANGES: dict[str, Callable[[pytest.MonkeyPatch, Extension], object]] = {
    "source": lambda patch, x: x.source.write_text(SOURCE + "\n"),
    "header": lambda patch, x: (x.source.parent / "answer.h").write_text("#define ANSWER 43\n"),
    "CXXFLAGS": lambda patch, x: patch.setenv("CXXFLAGS", "-DMORE=1"),
    "Python": lambda patch, x: patch.setattr(sys, "version", "4.0"),
    "compiler": lambda patch, x: patch.setenv(
        "CXX", str(script(x.source.parent / "mine", f'exec {REAL} "$@"'))
    ),
    "processor": lambda patch, x: patch.setattr(
        native_extension.cpu, "fingerprint", lambda: "another"
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_build_depends_on(
    change: str, extension: Extension, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(extension)
    CHANGES[change](monkeypatch, extension)
    assert find(extension) is None
    second = build(extension)
    assert second != first
    assert answer(second) == (43 if change in ("header", "CXXFLAGS") else 42)
    assert find(extension) == second


def test_it_depends_on_the_package_s_version(
    extension: Extension, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {"torch": "2.8"}
    monkeypatch.setattr(native_extension, "_version", lambda name: versions.get(name, ""))
    linked = Extension(**{**vars(extension), "package": "torch"})
    monkeypatch.setattr(native_extension, "_linked", lambda extension: [])
    path = build(linked)
    versions["torch"] = "2.9"
    assert find(linked) is None
    assert build(linked) != path


def test_a_compiler_of_several_words(
    extension: Extension, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CXX and CXXFLAGS are read as a shell would."""
    script(tmp_path / "my cache", f'echo "$@" >> {tmp_path}/calls\nexec "$@"')
    monkeypatch.setenv("CXX", f"'{tmp_path}/my cache' {REAL} -DUNUSED='a b'")
    monkeypatch.setenv("CXXFLAGS", "-DMORE='(1 + 1)' -g")
    assert answer(build(extension)) == 44
    assert "--version" in (tmp_path / "calls").read_text()
    monkeypatch.setenv("CXX", "'g++")
    with pytest.raises(BuildError, match="CXX='g\\+\\+ is not understood\n  No closing quotation"):
        build(extension)
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("CXXFLAGS", '"')
    with pytest.raises(BuildError, match='CXXFLAGS=" is not understood'):
        build(extension)


def test_without_a_compiler(
    extension: Extension, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what to install; what was built before, as in an image, is used."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError) as refused:
        build(extension)
    assert str(refused.value).splitlines()[:2] == [
        "there is no C++ compiler",
        "  none of g++, clang++, c++ is on the path",
    ]
    assert "install" in refused.value.hint
    monkeypatch.undo()
    monkeypatch.setenv("RECURRA_CACHE", str(tmp_path / "cache"))
    path = build(extension)
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    assert build(extension) == path
    (tmp_path / "answer.h").write_text("#define ANSWER 1\n")
    with pytest.raises(BuildError, match="no no-such-compiler on the path, which CXX names"):
        build(extension)


def test_without_a_package(extension: Extension, monkeypatch: pytest.MonkeyPatch) -> None:
    module = Extension(**{**vars(extension), "is_module": True})
    monkeypatch.setattr(native_extension.util, "find_spec", lambda name: None)
    with pytest.raises(BuildError, match=r"needs the package nanobind\n(.*\n)*.*recurra\[window\]"):
        build(module)


def test_what_the_compiler_says(
    extension: Extension, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extension.source.write_text("int answer() { return unknown; }")
    with pytest.raises(BuildError, match=r"could not build answer.so\n.*error.*unknown"):
        build(extension)
    assert cache(tmp_path) == []
    for name, facts in (("false", "it ended with 1"), ("true", "it ended with 0")):
        monkeypatch.setenv("CXX", name)
        with pytest.raises(BuildError, match=f"{name} could not build answer.so\n  {facts}"):
            build(extension)
    monkeypatch.setenv("CXX", str(tmp_path / "no-program"))
    (tmp_path / "no-program").write_bytes(b"\x7fELF")
    (tmp_path / "no-program").chmod(0o755)
    with pytest.raises(BuildError, match=r"no-program cannot be run\n  .*Exec format"):
        build(extension)
    assert cache(tmp_path) == []


def has_ended(pid: int) -> bool:
    """Does a process that was killed end soon? It may have to wait for a processor."""
    for _ in range(500):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


@pytest.mark.slow
@pytest.mark.parametrize("when", ["asked", "at work"])
def test_a_compiler_that_hangs(
    when: str, extension: Extension, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given up, and so is what it has started."""
    answers = f'[ "$1" = --version ] && exec {REAL} --version' if when == "at work" else ""
    hung = script(tmp_path / "hung", f"{answers}\nsleep 1000 &\necho $! > {tmp_path}/pid\nwait")
    monkeypatch.setenv("CXX", str(hung))
    monkeypatch.setattr(cxx_toolchain, "ANSWER_S", 10.0 if when == "at work" else 2.0)
    monkeypatch.setattr(cxx_toolchain, "BUILD_S", 2.0)
    with pytest.raises(BuildError, match=r"hung hangs\n  .* did not end within 2 s"):
        build(extension)
    assert has_ended(int((tmp_path / "pid").read_text()))
    assert cache(tmp_path) == []
    monkeypatch.delenv("CXX")
    assert answer(build(extension)) == 42


def test_what_others_can_write_is_not_loaded(
    extension: Extension, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = build(extension)
    capsys.readouterr()
    places = [path, *list(path.parents)[: len(path.relative_to(tmp_path / "cache").parents) - 1]]
    for place in places:
        notices.tell_once.cache_clear()
        mode = place.stat().st_mode
        place.chmod(mode | 0o020)
        assert find(extension) is None
        assert find(extension) is None
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"recurra: {place} may hold the code of somebody else: ")
        assert line.endswith("it is not loaded")
        if place.is_dir():
            with pytest.raises(NotPrivateError, match="remove it: it is made again"):
                build(extension)
        place.chmod(mode)
        assert find(extension) == path
    target = path.rename(tmp_path / "elsewhere")
    path.symlink_to(target)
    assert find(extension) is None
    assert build(extension) == path
    assert not path.is_symlink()


@pytest.mark.parametrize("damage", ["shorter", "changed", "empty", "no seal", "other seal"])
def test_what_is_damaged_is_built_again(
    damage: str, extension: Extension, capsys: pytest.CaptureFixture[str]
) -> None:
    path = build(extension)
    seal, data = path.with_name("answer.so.sha256"), path.read_bytes()
    changed = data[:100] + bytes([data[100] ^ 1]) + data[101:]
    contents = {"shorter": data[:-1000], "changed": changed, "empty": b""}
    if damage in contents:
        path.write_bytes(contents[damage])
    elif damage == "no seal":
        seal.unlink()
    else:
        seal.write_text("0" * 64)
    capsys.readouterr()
    assert find(extension) is None
    assert (f"{path} is damaged" in capsys.readouterr().err) == (damage != "no seal")
    assert answer(build(extension)) == 42
    assert find(extension) == path


BUILDER = """
import signal
import sys
from pathlib import Path
from recurra.support.native_extension import Extension, build

signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests may ignore it
source, limit = Path(sys.argv[1]), int(sys.argv[2])
if limit:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    print(build(Extension("answer", "the answer", source, ("-O1",), is_module=False)))
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def builder(
    extension: Extension, limit: int = 0, inside: Sequence[str] = (), **more: str
) -> subprocess.Popen[str]:
    """A process that builds, inside another; it may write files of `limit` bytes at most."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **more}
    command = [*inside, sys.executable, "-c", BUILDER, str(extension.source), str(limit)]
    return subprocess.Popen(
        command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.slow
def test_processes_at_once(extension: Extension, tmp_path: Path) -> None:
    """One of them builds, and the others wait for it."""
    calls = tmp_path / "calls"
    slow = script(tmp_path / "slow", f'echo "$1" >> {calls}\nsleep 0.5\nexec {REAL} "$@"')
    builders = [builder(extension, CXX=str(slow)) for _ in range(4)]
    told = [x.communicate(timeout=60) for x in builders]
    assert [x.returncode for x in builders] == [0] * 4, told
    (path,) = {out.strip() for out, _ in told}
    assert answer(Path(path)) == 42
    assert calls.read_text().count("--version") == 1
    assert sum("building the answer, once" in err for _, err in told) == 1
    assert cache(tmp_path) == WHOLE


@pytest.mark.slow
def test_processes_that_are_killed(
    extension: Extension, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any moment: the next one builds, or finds a build that is whole, and clears up."""
    slow = script(tmp_path / "slow", f'sleep 0.1\nexec {REAL} "$@"')
    monkeypatch.setenv("CXX", str(slow))
    random = Random(0)
    for _ in range(12):
        victim = builder(extension, CXX=str(slow))
        time.sleep(random.uniform(0.2, 1.2))
        victim.kill()
        victim.communicate()
        found = find(extension)
        assert found is None or answer(found) == 42
    path = build(extension)
    assert answer(path) == 42
    assert cache(tmp_path) == WHOLE
    assert not [x for x in path.parent.iterdir() if x.name.startswith(WORK)]


def test_an_interrupt_ends_the_compiler(extension: Extension, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    hung = script(tmp_path / "hung", f"sleep 1000 &\necho $! > {pid}.new\nmv {pid}.new {pid}\nwait")
    stopped = builder(extension, CXX=str(hung))
    while not pid.exists():
        assert stopped.poll() is None
        time.sleep(0.02)
    stopped.send_signal(signal.SIGINT)
    _, told = stopped.communicate(timeout=20)
    assert "KeyboardInterrupt" in told
    assert has_ended(int(pid.read_text()))
    assert cache(tmp_path) == []


def test_an_interrupt_while_the_compiler_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs already, and who starts it does not know it yet."""
    pid = tmp_path / "pid"
    hung = script(tmp_path / "hung", f"echo $$ > {pid}.new\nmv {pid}.new {pid}\nexec sleep 1000")
    start = subprocess.Popen

    def interrupted(*args: Any, **given: Any) -> Any:
        made = start(*args, **given)
        while not pid.exists():
            time.sleep(0.01)
        signal.raise_signal(signal.SIGINT)
        return made

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cxx_toolchain._run([str(hung)], 60.0)
    assert has_ended(int(pid.read_text()))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("limit", [1, 100, 2000, 8000])
def test_a_full_disk(extension: Extension, tmp_path: Path, limit: int) -> None:
    """Nothing is kept but what is whole; when there is room, it is built."""
    full = builder(extension, limit)
    _, told = full.communicate(timeout=60)
    assert full.returncode == 1
    assert "BuildError: " in told
    assert "Traceback" not in told
    assert "answer.so" not in cache(tmp_path)
    assert find(extension) is None
    assert answer(build(extension)) == 42


DISK = """
mount -t tmpfs -o size=$2 tmpfs "$1" || exit
shift 2
"$@"
code=$?
find "$RECURRA_CACHE" -name "*.so"
exit $code
"""


def disk(place: Path, size: int) -> list[str]:
    """The process with a disk of so many bytes; none where this user may mount no disk."""
    inside = ["unshare", "-rm", "sh", "-c", DISK, "sh", str(place), str(size)]
    tried = shutil.which("unshare") and subprocess.run([*inside, "true"], check=False)
    return inside if tried and tried.returncode == 0 else []


@pytest.mark.parametrize(("size", "fits"), [(4096, False), (12288, False), (1 << 20, True)])
def test_a_small_disk(extension: Extension, tmp_path: Path, size: int, fits: bool) -> None:
    """A real one, or one for small files: what does not fit leaves nothing behind."""
    (tmp_path / "cache").mkdir()
    real = disk(tmp_path / "cache", size)
    building = builder(extension, 0 if real else size, real)
    made, told = building.communicate(timeout=60)
    assert "Traceback" not in told
    assert building.returncode == (0 if fits else 1), told
    if fits:
        assert len(set(made.split())) == 1
    else:
        assert re.search("BuildError: .*\n.*" + ("No space left" if real else "[Ff]ile"), told)
        assert made == ""


@pytest.mark.parametrize("place", ["a file", "/proc/none"])
def test_a_cache_that_cannot_be_written(
    place: str, extension: Extension, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder: Any = tmp_path / place  # which for /proc/none is itself
    if place == "a file":
        folder.touch()
    monkeypatch.setenv("RECURRA_CACHE", str(folder))
    assert find(extension) is None
    with pytest.raises(BuildError) as refused:
        build(extension)
    assert refused.value.what == "the answer cannot be kept"
    assert str(folder) in refused.value.facts
    assert refused.value.hint == "make room, or name another folder: RECURRA_CACHE=/folder"


def test_a_module_has_a_name_that_python_loads(monkeypatch: pytest.MonkeyPatch):
    """Whatever `sysconfig` says: Ctrl-C while it is read for the first time leaves half of it."""
    monkeypatch.setattr("sysconfig.get_config_var", lambda _: None)
    named = Extension("name", "a module", Path("name.cpp"), ()).file
    assert spec_from_file_location("name", named) is not None
