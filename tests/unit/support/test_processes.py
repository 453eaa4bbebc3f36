"""Workers in several processes: what one process computes, each of them gets."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from documents import env
from sharded_programs import lengths, ppo

PROCESSES = 2
PROGRAM = """
import json, sys
import jax
jax.distributed.initialize(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
from recurra.errors import RecurraError
from sharded_programs import hosted, lengths, ppo, saved
runs = [ppo(8, workers=2).run(seed=5), lengths(workers=2)]
told = []
for workers, make in ((3, ppo), (2, hosted), (2, saved)):
    try:
        make(4, workers=workers).run(seed=5)
    except RecurraError as error:
        told.append(str(error))
print(json.dumps([*({k: x.tolist() for k, x in r.items()} for r in runs), told]))
jax.distributed.shutdown()
"""


def together(program: str) -> list[Any]:
    """What each of the processes prints."""
    theirs = env(JAX_PLATFORMS="cpu")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{s.getsockname()[1]}"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, address, str(PROCESSES), str(k)],
            stdout=subprocess.PIPE,
            text=True,
            env=theirs,
        )
        for k in range(PROCESSES)
    ]
    try:
        out = [p.communicate(timeout=300)[0] for p in running]
    finally:
        for p in running:
            p.kill()
    assert [p.returncode for p in running] == [0] * PROCESSES
    return [json.loads(text.splitlines()[-1]) for text in out]


@pytest.mark.slow
@pytest.mark.usefixtures("hasty_xla")
def test_processes_do_what_one_does() -> None:
    wants = ppo(8, backend="numpy").run(seed=5), lengths(backend="numpy")
    for *runs, told in together(PROGRAM):
        for want, got in zip(wants, runs, strict=True):
            for name, x in want.items():
                np.testing.assert_allclose(got[name], x, rtol=1e-4, atol=1e-5, err_msg=name)
        three, host, saved = told
        assert "the processes have 2 devices for 3 workers" in three
        assert "is called on the host, and there are 2 processes" in host
        assert "a run of several processes is not saved" in saved
