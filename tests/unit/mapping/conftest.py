"""The native engine, built once for all tests into a folder that goes away."""

from __future__ import annotations

import pytest

from recurra.mapping import engine_choice, native


@pytest.fixture(scope="session")
def native_engine(tmp_path_factory: pytest.TempPathFactory) -> engine_choice.Engine:
    """Only for tests marked `needs_compiler`: elsewhere there may be none."""
    return engine_choice.native_engine(native.build(tmp_path_factory.mktemp("engine")))
