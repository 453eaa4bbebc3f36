"""Programs that once went wrong, and how many random ones a test draws."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from documents import TESTS
from random_programs import Case
from recurra.ir.graph_parser import parse

CHECKS = [HealthCheck.too_slow, HealthCheck.large_base_example, HealthCheck.data_too_large]


QUICK = settings(
    max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=CHECKS
)


def _cases() -> Iterator[object]:
    for path in sorted((TESTS / "programs").glob("*.txt")):
        for text in path.read_text().split("---\n"):
            title, _, rest = text.partition("\n")
            head, _, graph = rest.partition("\n")
            sizes = {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", head)}
            yield pytest.param(
                Case(parse(graph), sizes), id=f"{path.stem}: {title.removeprefix('# ')}"
            )


CASES = list(_cases())
