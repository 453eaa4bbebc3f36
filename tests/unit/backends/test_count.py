"""Comparisons of counted numbers that their ranges decide: a loop asks no more."""

from __future__ import annotations

import pytest

from recurra.backends.bounded_int import Count, compare_ranges


@pytest.mark.parametrize("sign", ["<", "<=", ">", ">=", "==", "!="])
def test_a_comparison_is_told_by_the_ranges_alone(sign: str) -> None:
    """Of all pairs of short ranges, against every number in them."""
    ends = [(lo, hi) for lo in range(4) for hi in range(lo, 4)]
    for a in ends:
        for b in ends:
            found = {
                eval(f"{m} {sign} {n}")
                for m in range(a[0], a[1] + 1)
                for n in range(b[0], b[1] + 1)
            }
            assert compare_ranges(a, b, sign) == (found.pop() if len(found) == 1 else None)


def test_what_is_always_true_leaves_the_rest_of_a_condition() -> None:
    t = Count("t", (0, 9), lambda count: count)
    assert (t >= 0) is True
    assert ((t >= 0) & (t < 5)).text == "t < 5"
    assert ((t > 9) | (t < 5)).text == "t < 5"
    assert ((t > 9) & (t < 5)) is False
