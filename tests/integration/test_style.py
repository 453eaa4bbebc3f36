"""What the code base promises of its own shape."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import recurra
from documents import ROOT, env
from recurra import cli

OURS = sorted(p for folder in ("src", "tests", "benchmarks") for p in (ROOT / folder).rglob("*.py"))
DOORS = [ROOT / x for x in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md")]
DOCUMENTS = [str(p.relative_to(ROOT)) for p in (*DOORS, *sorted((ROOT / "docs").rglob("*.md")))]
LONGEST = 500
NAMELESS = {"utils", "util", "misc", "common", "helpers"}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_file_is_long() -> None:
    long = {name(p): n for p in OURS if (n := len(p.read_text().splitlines())) > LONGEST}
    assert not long


@pytest.mark.slow
def test_no_two_classes_have_one_name() -> None:
    homes = dict[str, list[str]]()
    for path in (p for p in OURS if ROOT / "src" in p.parents):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(name(path))
    assert not {what: where for what, where in homes.items() if len(where) > 1}


@pytest.mark.slow
def test_every_module_says_what_it_is() -> None:
    mute: list[str] = []
    for path in OURS:
        doc = ast.get_docstring(ast.parse(path.read_text())) or ""
        if not doc.splitlines() or not doc.splitlines()[0].strip():
            mute.append(name(path))
    assert not mute


# A docstring that begins with one of these is a riddle: it tells of a thing before naming it.
RIDDLE = re.compile(
    r"(As|At|By|For|From|How|In|It|Its|Not|Of|On|So|That|They|Those|To|What|When|Where|Whether|"
    r"Which|Who|Whose|With)\b"
)


@pytest.mark.slow
def test_docstrings_begin_with_what_a_thing_is_or_does() -> None:
    riddles: list[str] = []
    for path in (p for p in OURS if ROOT / "src" in p.parents):
        for node in ast.walk(ast.parse(path.read_text())):
            documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            if isinstance(node, documented) and RIDDLE.match(ast.get_docstring(node) or ""):
                riddles.append(f"{name(path)}:{getattr(node, 'lineno', 1)}")
    assert not riddles


@pytest.mark.slow
def test_parameters_of_one_letter_are_for_mathematics() -> None:
    """Three of a hundred parameters are, at most."""
    letters = every = 0
    for path in (p for p in OURS if ROOT / "src" in p.parents):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                given = node.args
                names = {a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
                every += len(names - {"self", "cls"})
                letters += sum(len(x) == 1 for x in names)
    assert letters < 0.03 * every


def test_every_module_is_named_after_what_it_does() -> None:
    assert not [name(p) for p in OURS if p.stem in NAMELESS or re.search(r"_v\d|^new_", p.stem)]


STAGES = (
    "analysis", "transforms", "schedule", "storage", "memory_model", "codegen", "backends", "cost",
    "runtime",
)  # fmt: skip
NO_THRESHOLDS = {  # how things are shown and laid out, and numbers that mean something else
    "analysis/dynamic_bounds.py": {"NEVER"},
    "backends/numpy/source_blocks.py": {"MAX_LINE"},
    "runtime/loop_profile.py": {"SHOWN"},
    "runtime/profiler.py": {"MAX_SPANS"},
    "storage/arena_offsets.py": {"ALIGNMENT"},
    "memory_model/budget.py": {"NAMED"},
    "storage/exact_packing.py": {"NEVER"},
    "memory_model/peak.py": {"LARGEST"},
    "memory_model/summary.py": {"SHOWN"},
    "storage/mapping_problem.py": {"VARIED"},
    "storage/offload.py": {"SHOWN"},
    "codegen/host_source.py": {"WIDTH"},
    "schedule/tree.py": {"TOP"},
}


NUMERIC = ast.Constant | ast.BinOp | ast.UnaryOp | ast.Tuple | ast.operator | ast.unaryop | ast.Load


def numbers(path: Path) -> set[str]:
    """The constants of a module that are numbers."""
    found: set[str] = set()
    for s in ast.parse(path.read_text()).body:
        if isinstance(s, ast.Assign) and all(isinstance(x, NUMERIC) for x in ast.walk(s.value)):
            values = [x.value for x in ast.walk(s.value) if isinstance(x, ast.Constant)]
            if values and all(type(x) in (int, float) for x in values):
                found |= {x.id for x in ast.walk(s.targets[0]) if isinstance(x, ast.Name)}
    return found


def test_thresholds_are_in_one_table() -> None:
    root = ROOT / "src" / "recurra"
    files = [p for stage in STAGES for p in (root / stage).rglob("*.py")]
    table = root / "cost" / "thresholds.py"
    found = {str(p.relative_to(root)): numbers(p) for p in files if p != table}
    assert {p: names for p, names in found.items() if names} == NO_THRESHOLDS


@pytest.mark.slow
def test_every_threshold_says_what_it_is_and_is_used() -> None:
    table = ROOT / "src" / "recurra" / "cost" / "thresholds.py"
    body = ast.parse(table.read_text()).body[2:]
    for given, told in zip(body[::2], body[1::2], strict=True):
        assert isinstance(given, ast.Assign)
        assert isinstance(told, ast.Expr)
        assert isinstance(told.value, ast.Constant)
        assert isinstance(told.value.value, str)
    text = "\n".join(p.read_text() for p in OURS if p != table and "src" in p.parts)
    assert not [x for x in numbers(table) if not re.search(rf"\b{x}\b", text)]


def test_the_changelog_has_three_parts_for_a_version() -> None:
    _, *versions = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert re.fullmatch(r"([\d.]+) \(.+\)", versions[0].splitlines()[0])
    assert versions[0].split()[0] == recurra.__version__
    for version in versions:
        before, *parts = re.split(r"^### ", version, flags=re.MULTILINE)
        assert "\n- " not in before
        names = [part.splitlines()[0] for part in parts]
        assert names == [x for x in ("Added", "Changed", "Fixed") if x in names]


def test_the_example_is_short() -> None:
    assert len((ROOT / "examples" / "reinforce.py").read_text().splitlines()) <= 45


@pytest.mark.parametrize("document", DOCUMENTS)
def test_named_commands_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^ {4})make ([a-z]+)", text, re.MULTILINE)) <= targets
    words = set(re.findall(r"`recurra ([a-z]+)", text))
    assert words <= {command.split()[0] for command in cli.COMMANDS}


def test_the_first_two_commands_are_told() -> None:
    text = (ROOT / "README.md").read_text()
    assert {"demo", "test"} <= set(re.findall(r"^ {4}make ([a-z]+)", text, re.MULTILINE))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_named_files_and_tests_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    for file, test in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text):
        path = ROOT / file
        assert path.exists(), f"{document} names {file}"
        assert not test or f"def {test}(" in path.read_text(), f"{document} names {file}::{test}"
    for file in re.findall(r"`((?:src|docs|examples|tests)/[\w/.-]+)`", text):
        assert (ROOT / file).exists(), f"{document} names {file}"
    for file in re.findall(r"`([a-z_]+/[\w/]+\.py)`", text):
        found = [ROOT / file, ROOT / "src" / "recurra" / file]
        assert any(p.exists() for p in found), f"{document} names {file}"


NAMELESS_STAGES = ("polyhedral", "analysis", *STAGES[:5])
NO_NAMES = {  # what is taken apart here is written here, or is no name of the program
    "schedule/tree.py": "+x, the accumulating step of x",
    "storage/store.py": "x[], a store among variables",
    "storage/arena_solvers.py": "the name of a file",
    "storage/mapping_problem_text.py": "columns of a table",
    "transforms/padding/fills.py": "a monoid",
    "transforms/compile_context.py": "what a pass says of itself",
}
APART = {"startswith", "endswith", "removeprefix", "removesuffix", "strip", "lstrip", "rstrip"}


def takes_names_apart(tree: ast.AST) -> bool:
    """Does code look at the beginning or the end of a text?"""
    for n in ast.walk(tree):
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in APART:
            return True
        sides = [n.left, *n.comparators] if isinstance(n, ast.Compare) else []
        letter = any(isinstance(x, ast.Constant) and isinstance(x.value, str) for x in sides)
        if letter and any(isinstance(x, ast.Subscript) for x in sides):
            return True
    return False


def test_no_pass_asks_a_name_what_it_is_of() -> None:
    """What a dim is stands in its declaration: a user may call his as passes call theirs."""
    package = ROOT / "src" / "recurra"
    files = [p for folder in NAMELESS_STAGES for p in (package / folder).rglob("*.py")]
    apart = [p for p in files if takes_names_apart(ast.parse(p.read_text()))]
    assert {str(p.relative_to(package)) for p in apart} <= NO_NAMES.keys()


def test_import_costs_nothing() -> None:
    heavy = ("numpy", "scipy", "jax", "gymnasium", "islpy", "tyro", "rich", "safetensors")
    code = f"import sys, recurra; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT, env=env())
    assert out.strip() == "[]"


def test_hooks_run_what_setup_installs() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    programs = re.findall(r"entry: \.venv/bin/(\S+)", hooks)
    assert len(programs) == hooks.count("- id: ") == 5
    assert not [x for x in programs if not Path(sys.executable).with_name(x).exists()]
    assert all((ROOT / file).exists() for file in re.findall(r"tests/[\w/]+\.py", hooks))


def imported(tree: ast.AST) -> set[str]:
    """The modules that one imports: at its top, in functions, and for the type checker only."""
    whole = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module]
    names = {f"{n.module}.{x.name}" for n in whole for x in n.names}
    return {n.module or "" for n in whole} | names


PACKAGES = sorted(p.parent.name for p in (ROOT / "src" / "recurra").glob("*/__init__.py"))


@pytest.mark.parametrize("package", PACKAGES)
def test_no_modules_import_each_other(package: str) -> None:
    """Between packages import-linter sees to that."""
    src = ROOT / "src"
    files = (src / "recurra" / package).rglob("*.py")
    modules = {".".join(p.relative_to(src).with_suffix("").parts): p for p in files}
    trees = {
        name.removesuffix(".__init__"): ast.parse(p.read_text()) for name, p in modules.items()
    }
    # `from package.folder import module` names a module, and what holds it only where it is used
    below = {name: imported(tree) & trees.keys() for name, tree in trees.items()}
    for name, others in below.items():
        holders = {x for x in others if any(y.startswith(f"{x}.") for y in others)}
        below[name] = others - holders - {name}
    assert list(TopologicalSorter(below).static_order())


LINTER = Path(sys.executable).with_name("lint-imports")


@pytest.mark.skipif(
    not (LINTER.exists() or shutil.which("lint-imports")), reason="no import-linter"
)
def test_import_contracts_are_kept() -> None:
    command = str(LINTER) if LINTER.exists() else "lint-imports"
    done = subprocess.run(
        [command, "--no-cache"], capture_output=True, text=True, cwd=ROOT, env=env(), check=False
    )
    assert done.returncode == 0, done.stdout
