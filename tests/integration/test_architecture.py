"""The documents of the architecture show what the compiler and its packages are now.

ARCHITECTURE.md and the page on the life of a program follow examples/reinforce.py, stage by stage.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

import pytest

from documents import ROOT, fenced, fill, table
from example_programs import read_example
from recurra.ir.graph import Graph, Node
from recurra.runtime.executable import Executable
from recurra.schedule.lower_values import lower_values

WIDTH = 100
SOURCE = ROOT / "src" / "recurra"


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    """The variables of the example, traced and not run."""
    return read_example("reinforce")


def test_the_life_of_the_example(example: dict[str, Any]) -> None:
    program = example["ctx"].compile({example["B"]: 64, example["I"]: 100, example["T"]: 200})
    weight = example["dnn"].params[0].name
    layer = {weight, f"d_{weight}", f"{weight}_next"}
    stages = program.compiled.stages.graphs
    last = list(stages)[-1]
    passes = [(r["name"], str(r["before"]), str(r["after"])) for r in program.pass_rows]
    source = body(ROOT / "examples" / "reinforce.py")
    schedule = program.schedule_text.splitlines()
    stores = text(str(program.compiled.plan).splitlines())
    contents = {
        "program": fenced(source, "python no-run"),
        "trace": shown(stages["trace"], layer),
        "trace-returns": shown(stages["trace"], {"g"}),
        "lift": shown(stages["incrementalize"], {"g"}),
        "passes": table(("pass", "equations before", "after"), passes),
        "decisions": text(program.compiled.stages.decisions),
        "final": shown(stages[last], layer),
        "statements": text(written(stages[last], {*layer, "g_after"}, program.sizes)),
        "schedule": text(map(short, schedule)),
        "stores": stores,
        "regions": text(region(str(r)) for r in program.compiled.program.regions),
        "host": fenced(host_loop(program), "python no-run"),
    }
    fill(ROOT / "docs" / "internals" / "life-of-a-program.md", contents)
    contents = {
        "program": fenced(source, "python no-run"),
        "trace": text(equations(stages["trace"], {"g"})),
        "rewritten": text(equations(stages["incrementalize"], {"g", "g_after", "discounted"})),
        "passes": table(("pass", "equations before", "after"), passes),
        "schedule": text(short(x, 8) for x in schedule),
        "stores": stores,
        "host": fenced(host_loop(program, 4), "python no-run"),
        "packages": table(("package", "what it does"), folders(inside=False)),
    }
    fill(ROOT / "ARCHITECTURE.md", contents)


def test_the_page_of_packages() -> None:
    contents = {
        "layers": text(wrap(" > ".join(layers()), WIDTH, break_on_hyphens=False)),
        "packages": table(("package", "what it does"), folders()),
    }
    fill(ROOT / "docs" / "internals" / "packages.md", contents)


def text(lines: Iterable[str]) -> str:
    return fenced("\n".join(lines), "text")


def body(path: Path) -> str:
    """The program proper: from its context to its end."""
    lines = path.read_text().split("\nctx = ")[1].split("\nif __name__")[0]
    return f"ctx = {lines}"


def equations(graph: Graph, names: set[str]) -> list[str]:
    """Some equations, as text."""
    nodes = [n for n in graph.nodes.values() if n.name in names]
    return [str(n.text(graph.is_identity)) for n in nodes]


def shown(graph: Graph, names: set[str]) -> str:
    """The equations of some names, and of what they are made of and make at the same steps."""
    wanted = {n for n in names if n in graph.nodes}
    for name in list(wanted):
        wanted |= {a.name for a in graph[name].args if works(graph[a.name])}
        wanted |= {n.name for n, _ in graph.readers[name] if works(n) and "t" in n.domain}
    lines = [str(n.text(graph.is_identity)) for n in graph.nodes.values() if n.name in wanted]
    return text(x if len(x) <= WIDTH else f"{x[: WIDTH - 2]} …" for x in lines)


def written(graph: Graph, names: set[str], sizes: Mapping[str, int]) -> list[str]:
    """The statements of some equations."""
    statements = lower_values(graph, sizes).statements.values()
    return [str(s) for s in statements if s.equation in names]


def works(n: Node) -> bool:
    return bool(n.args)


def short(line: str, most: int = 12) -> str:
    """A line of a schedule with its first names."""
    names = line.split()
    if line.lstrip().startswith("for ") or len(names) <= most:
        return line
    indent = " " * (len(line) - len(line.lstrip()))
    return f"{indent}{' '.join(names[: most - 1])} … and {len(names) - most + 1} more"


def region(signature: str) -> str:
    """The signature of a region with the first names of every part."""
    name, _, parts = signature.removesuffix(")").partition("(")
    told = [f"{k}: {few(v.split(), 6, ' ')}" for k, v in re.findall(r"(\w+): ([^;]*)", parts)]
    return f"{name}({'; '.join(told)})"


def few(names: list[str], most: int, glue: str) -> str:
    return glue.join(names if len(names) <= most else [*names[:2], "…", names[-1]])


def host_loop(program: Executable, most: int = 5) -> str:
    """The outermost loop of the host part, long lists of names cut short."""
    tree = ast.parse(program.source)
    (loop,) = [n for n in ast.walk(tree) if isinstance(n, ast.For)][:1]
    lines: list[str] = []
    for line in ast.unparse(loop).splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        cut = re.sub(r"\(([^()]*)\)", lambda m: f"({few(m[1].split(', '), most, ', ')})", line)
        cut = re.sub(r"\{([^{}]*)\}", lambda m: f"{{{few(m[1].split(', '), 2, ', ')}}}", cut)
        cut = re.sub(
            r"^(\s*)([^=(]*) = ", lambda m: f"{m[1]}{few(m[2].split(', '), 5, ', ')} = ", cut
        )
        lines += wrap(cut.strip(), WIDTH, initial_indent=indent, subsequent_indent=indent + "    ")
    return "\n".join(lines)


def layers() -> list[str]:
    """What may import what: each may import those after it, `|` separates those that may not."""
    found = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = found["tool"]["importlinter"]["contracts"]
    contract = next(c for c in contracts if c["type"] == "layers")  # of the whole package
    return [x.replace("recurra.", "") for x in contract["layers"]]


def folders(inside: bool = True) -> list[tuple[str, str]]:
    """Every package, also those inside others if asked for, with the first line of its docstring.

    They come in the order of layers, with the modules beside them.
    """
    order = [x for layer in layers() for x in layer.split(" | ")]
    packages = SOURCE.rglob("__init__.py") if inside else SOURCE.glob("*/__init__.py")
    modules = (p for p in SOURCE.glob("*.py") if p.stem != "__init__")
    rows: list[tuple[int, str, str]] = []
    for path in (*modules, *(p for p in packages if p.parent != SOURCE)):
        doc = ast.get_docstring(ast.parse(path.read_text())) or ""
        at = path.relative_to(SOURCE)
        name = f"{at.parent}/" if path.stem == "__init__" else str(at)
        rows.append((order.index(at.parts[0].removesuffix(".py")), name, doc.partition("\n")[0]))
    return [(f"`{name}`", line) for _, name, line in sorted(rows)]
