"""The run folder: one training run's settings, metrics, checkpoints and page.

    runs/CartPole-v1__reinforce__1__1760000000/
      config.json  metrics.jsonl  checkpoints/  report.html

Names and tags (`charts/episodic_return`, `charts/SPS`, `losses/*`) are CleanRL's, so that
curves of both lie over each other.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, cast

from recurra.errors import Loc, RecurraError
from recurra.report.html import folds_html, sparkline, table
from recurra.support import atomic_write, json_text
from recurra.support.filesystem import why_not_written

Row = dict[str, Any]
Curve = list[tuple[float, float]]

SHOWN = 4  # the most files named in a message
POLICY = "policy.safetensors"  # the trained policy, for use without the program

# Strict JSON has no NaN: non-finite numbers are stored as text that `float` reads.
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def expect_free(tag: str, loc: Loc | None = None) -> None:
    """Raise RecurraError if a scalar has the name of a field of every row in metrics.jsonl."""
    if tag in ("step", "time"):
        raise RecurraError(
            f"a metric of a run with a folder may not be called {tag!r}",
            facts=f"every row of metrics.jsonl has its own {tag}",
            hint=f"write rc.log(my_{tag}=..), or run it without folder=",
            loc=loc,
        )


def expect_place(folder: Path, loc: Loc | None = None, hint: str = "") -> None:
    """Raise RecurraError if a folder cannot be written to, before there is work to lose."""
    if (why := why_not_written(folder)) is not None:
        raise RecurraError(
            f"nothing can be saved in {folder}",
            facts=why,
            hint=hint or "name another folder, or move what is there out of the way",
            loc=loc,
        )


def _nearest(path: Path) -> str:
    """Suggest a nearby run: the newest in a folder, or that of a file."""
    around = path.parent if path.is_file() else path
    runs = ("config.json", "*/config.json", "../config.json")
    folders = [Path(os.path.normpath(p.parent)) for glob in runs for p in around.glob(glob)]
    if not folders:
        return "`ls runs/` shows them"
    return f"the newest there is {max(folders, key=lambda p: p.stat().st_mtime)}"


class RunFolder:
    """A run's folder. Reading it writes nothing; the first `log` opens the metrics."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not self.path.is_dir():
            raise RecurraError(f"there is no run at {path}", hint=_nearest(self.path))
        self.metrics = self.path / "metrics.jsonl"
        self.config = self.path / "config.json"
        self.checkpoints = self.path / "checkpoints"
        self.report = self.path / "report.html"
        self.is_new = False  # begun by this object, and nothing is logged yet
        self._file: FileIO | None = None

    @classmethod
    def begin(cls, path: str | Path, overwrite: bool = False, own: str = "") -> RunFolder:
        """Make the folder of a new run.

        A folder with a run is refused or, with `overwrite`, emptied; `own` describes how the new
        run differs from it, for the error.
        """
        path = Path(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecurraError.at_user_line(
                f"{path} cannot be the folder of a run",
                facts=f"the system says: {error.strerror or error}",
                hint='name another: folder="runs/first"',
            ) from None
        run = cls(path)
        if overwrite:
            for name in run.holds():
                (path / name).unlink(missing_ok=True)
        expect_no_run(path, run.holds(), own)
        try:
            run.metrics.touch(exist_ok=False)
        except FileExistsError:  # made by another process just now
            expect_no_run(path, run.holds(), own)
        run.is_new = True
        return run

    def saved(self) -> list[Path]:
        """The checkpoints in the folder."""
        from recurra.checkpoint import checkpoint  # imports NumPy, which pages do not need

        return checkpoint.saved(self.checkpoints)

    def holds(self) -> list[str]:
        """The names of a run's files in the folder, including checkpoints."""
        known = [x for x in (self.config, self.metrics, self.path / POLICY) if x.exists()]
        return [str(x.relative_to(self.path)) for x in (*known, *self.saved())]

    def differs(self, identity: Mapping[str, object]) -> str:
        """Describe how a run differs from the one in the folder; "" if it is the same."""
        return differs(identity, self.read_config() if self.config.exists() else {})

    @classmethod
    def create(
        cls,
        root: str | Path,
        env: str,
        algo: str,
        seed: int,
        config: Mapping[str, object] | None = None,
    ) -> RunFolder:
        """Make a new folder `root/<env>__<algo>__<seed>__<time>`."""
        if Path(root).is_dir() and (names := RunFolder(root).holds()):
            raise RecurraError(
                f"{root} is the folder of a run, and new runs are made in folders of their own",
                facts=f"there is {', '.join(names[:SHOWN])}",
                hint=f"name the folder around it: --out {Path(root).parent}; or go on with this "
                f"run: --resume {root}",
            )
        now = int(time.time())
        while True:
            path = Path(root) / f"{_word(env)}__{_word(algo)}__{seed}__{now}"
            try:
                path.mkdir(parents=True)
                break
            except FileExistsError:
                now += 1
            except OSError as error:
                raise RecurraError(
                    f"no folder can be made in {root}",
                    facts=f"the system says: {error.strerror or error}",
                    hint="name another: --out runs",
                ) from error
        atomic_write.sync_directory(path.parent)
        run = cls(path)
        run.write_config({"env": env, "algo": algo, "seed": seed, **(config or {})})
        return run

    @classmethod
    def resume(cls, path: str | Path, step: int) -> RunFolder:
        """Open a run to continue after `step`; rows of later steps, which will repeat, are cut."""
        run = cls(path)
        if run.metrics.exists():
            lines = [line for row, line in _read_rows(run.metrics) if row["step"] <= step]
            atomic_write.replace(run.metrics, [line + b"\n" for line in lines])
        return run

    def log(self, step: int, /, **scalars: object) -> None:
        """Append one line `{"step": …, "time": …, tag: value, …}`; a kill cannot lose it."""
        for tag in scalars:
            expect_free(tag)
        numbers = {tag: _number(tag, value) for tag, value in scalars.items()}
        row = {"step": int(step), "time": time.time(), **numbers}
        line = json.dumps(row).encode() + b"\n"
        try:
            if self._file is None:
                self._file = _open_whole(self.metrics)
            self.is_new = False
            before = os.fstat(self._file.fileno()).st_size
            written = self._file.write(line)
            if written != len(line):
                os.ftruncate(self._file.fileno(), before)
                raise OSError(f"only {written} of {len(line)} bytes fitted")
        except OSError as error:
            raise atomic_write.NotWrittenError(
                f"{self.metrics} cannot be written", error, "the rows before are whole"
            ) from error

    def rows(self) -> list[Row]:
        """All rows logged so far."""
        return read_metrics(self.metrics)

    def write_config(self, config: Mapping[str, object]) -> None:
        """Replace config.json."""
        text = json.dumps(config, indent=2, default=_setting) + "\n"
        atomic_write.replace(self.config, [text.encode()])

    def read_config(self) -> dict[str, Any]:
        """The settings that this run was started with."""
        try:
            return read_object(self.config)
        except OSError:
            raise RecurraError(
                f"{self.path} is not the folder of a run",
                facts=f"it has no {self.config.name}",
                hint=_nearest(self.path),
            ) from None

    def _repr_html_(self) -> str:
        """A table of metrics with their extremes and curves, and one of settings."""
        settings = self.read_config() if self.config.exists() else {}
        metrics = [
            {"metric": tag, "steps": len(c), **_ends([y for _, y in c])}
            for tag, c in curves(self.rows()).items()
        ]
        rows = [{"setting": k, "value": str(v)} for k, v in settings.items()]
        return folds_html(self.path.name, {"metrics": table(metrics), "settings": table(rows)})

    def close(self) -> None:
        """Make the metrics survive a power cut too."""
        if self._file is not None:
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
        if kind is not None and self.is_new and not self.saved():
            for path in (self.metrics, self.config):  # so that another run can begin here
                path.unlink(missing_ok=True)


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; raises RecurraError if the file is damaged, and OSError."""
    try:
        content = json_text.parse(path.read_text())
    except ValueError as error:
        raise RecurraError(f"{path} is damaged", facts=str(error)) from None
    if not isinstance(content, dict):
        raise RecurraError(f"{path} is damaged", facts=f"it is {content!r:.60}")
    return cast("dict[str, Any]", content)


def differs(mine: Mapping[str, object], theirs: Mapping[str, object]) -> str:
    """Describe how the seed and program of two runs differ; "" if they do not."""
    other = [k for k in mine if theirs.get(k, mine[k]) != mine[k]]
    return ", ".join(f"the run that goes on has the {k} {mine[k]}, not {theirs[k]}" for k in other)


def expect_no_run(folder: Path, names: Iterable[str], own: str = "") -> None:
    """Raise RecurraError if files of an earlier run are in the folder of a new one.

    `own` describes how the new run differs from the earlier one.
    """
    if files := list(names):
        raise RecurraError.at_user_line(
            f"{folder} holds a run already",
            facts=f"{own or 'a new run begins'}, and there is {', '.join(files[:SHOWN])}",
            hint=f"name another folder, go on with the run there by resume={str(folder)!r}, or "
            "write overwrite=True to remove it",
        )


def read_metrics(path: str | Path) -> list[Row]:
    """Read the rows of a metrics.jsonl; an incomplete last line is skipped, others are errors.

    Rows of later steps than a resumed run began with are skipped, too: until version 0.1 they
    stayed in the file, before a line with the step.
    """
    path = Path(path)
    return [row for row, _ in _read_rows(path)] if path.exists() else []


def _read_rows(path: Path) -> list[tuple[Row, bytes]]:
    """Read the rows of a metrics.jsonl, each with its line."""
    lines = path.read_bytes().split(b"\n")
    rows: list[tuple[Row, bytes]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = _row(line)
        except ValueError as error:
            if number == len(lines):
                break
            raise RecurraError(
                f"{path}:{number} is not a metrics row",
                facts=str(error),
                hint="remove that line; or move the file away: metrics then begin here",
            ) from None
        if "resume" in row:
            rows = [r for r in rows if r[0]["step"] <= row["resume"]]
        else:
            rows.append((row, line))
    return rows


def curves(rows: Iterable[Row]) -> dict[str, Curve]:
    """Return tag → [(step, value)], in the order of the longest row, others after them."""
    rows = list(rows)
    by_tag: dict[str, Curve] = {tag: [] for tag in max(rows, key=len, default={})}
    for row in rows:
        for tag, value in row.items():
            if tag not in ("step", "time", "global_step") and isinstance(value, int | float):
                by_tag.setdefault(tag, []).append((row["step"], float(value)))
    return {tag: curve for tag, curve in by_tag.items() if curve}


def _ends(values: list[float]) -> dict[str, object]:
    finite = [y for y in values if math.isfinite(y)]
    lowest, highest = min(finite, default=None), max(finite, default=None)
    return {"last": values[-1], "lowest": lowest, "highest": highest, "curve": sparkline(values)}


def _row(line: bytes) -> Row:
    row: Any = json_text.parse(line)
    if not isinstance(row, dict) or not ("step" in row or "resume" in row):
        raise ValueError("it has no step")
    for tag, value in cast("Row", row).items():
        if tag in ("step", "resume") and (not isinstance(value, int) or isinstance(value, bool)):
            raise ValueError(f"its {tag} is {value!r:.60}")
        if isinstance(value, int) and abs(value) > sys.float_info.max:
            raise ValueError(f"its {tag} is larger than any number of 64 bits")
    pairs = cast("Row", row).items()
    return {k: _NOT_FINITE.get(v, v) if isinstance(v, str) else v for k, v in pairs}


def _open_whole(path: Path) -> FileIO:
    """Open for appending after the last complete line; the incomplete line of a kill is cut."""
    file = FileIO(path, "ab")
    data = path.read_bytes()
    tail = data[data.rfind(b"\n") + 1 :]
    if tail:
        with suppress(ValueError):
            _row(tail)
            file.write(b"\n")
            return file
        os.ftruncate(file.fileno(), len(data) - len(tail))
    return file


def _number(tag: str, value: Any) -> float | int | str:
    try:
        number = value.item() if hasattr(value, "item") else value
        if isinstance(number, int):
            return int(number)
        if not isinstance(number, str) and math.isfinite(number):
            return float(number)
        if isinstance(number, float):
            return str(number)
    except (TypeError, ValueError):
        pass
    raise RecurraError(f"{tag} is not a scalar", facts=f"it is {value!r:.60}", hint="log its mean")


def _setting(value: Any) -> object:
    return value.item() if hasattr(value, "item") else str(value)


def _word(text: str) -> str:
    """Return text as a folder name: `ALE/Pong-v5` → `ALE-Pong-v5`."""
    return re.sub(r"[^\w.+-]+", "-", text).strip("-.") or "run"
