"""Backends are named as text, so that each is imported only when it is used."""

from __future__ import annotations

from pkgutil import resolve_name

import pytest

from recurra.backends import registry

NAMED = (registry.BACKENDS, registry.DOORS, registry.ON_DISK, registry.MESHES)


@pytest.mark.parametrize("named", sorted({name for table in NAMED for name in table.values()}))
def test_what_the_registry_names_is_there(named: str) -> None:
    assert resolve_name(named) is not None
