"""Lengths of ranges for known bounds, including ranges whose ends mention earlier dims."""

from __future__ import annotations

from collections.abc import Mapping

from recurra.ir.expr import substitute
from recurra.ir.types import Domain, Range
from recurra.polyhedral import isl


def varies(extent: Range, sizes: Mapping[str, int]) -> bool:
    """Tell whether the range depends on the point of other dims."""
    return bool(extent.mentions() - sizes.keys())


def at_sizes(domain: Domain, sizes: Mapping[str, int]) -> Domain:
    """Return the domain with numbers for bounds."""
    ends = ((substitute(r.hi, sizes), substitute(r.lo, sizes)) for r in domain)
    return Domain(tuple(Range(d, *e) for d, e in zip(domain.dims, ends, strict=True)))


def longest(domain: Domain, dim: str, sizes: Mapping[str, int]) -> int:
    """The maximum length of a dim, over all points of the others."""
    r = domain[dim]
    if not varies(r, sizes):
        return r.size(sizes)
    return longest_axis(r.hi - r.lo, domain.without(dim), sizes)


def longest_axis(length: object, domain: Domain, sizes: Mapping[str, int]) -> int:
    """The maximum length of an axis, over all points of a domain."""
    known = substitute(length, sizes)
    top = known if isinstance(known, int) else isl.largest(known, at_sizes(domain, sizes))
    assert isinstance(top, int), f"{length} is not bounded over {domain}"
    return top
