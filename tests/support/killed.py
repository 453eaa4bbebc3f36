"""A training program whose runs are forked, so that they can be killed: `python killed.py`.

Reads commands, a line each, and answers on standard output:

    start DIR    forks a run in DIR/run, which goes on with what is there; says `pid N`, then the
                 run says `saved I` whenever iteration I is safe, and `done` at its end
"""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import recurra as rc
from recurra.checkpoint import checkpoint

ITERATIONS = 60


def program() -> Any:
    """Learns in CartPole with autoreset; the environment lives on from iteration to iteration."""
    ctx = rc.Context(num_dims=3)
    with ctx as ((b, B), (i, I), (t, T)):
        env = rc.rl.env.make("CartPole-v1", episodes="autoreset", max_episode_steps=9)
        dnn = rc.nn.DNNBuilder(domain=(i,)).from_env(env, hidden=[4]).build()
        o = rc.like(env.observation_space, domain=(b, i, t))
        o[b, i, 0] = env.reset(domain=(b, i))
        pi = dnn(o)
        a = pi.sample()
        o[b, i, t + 1], r, d = env.step(a)
        live = env.last.live.cast("f32")
        old = rc.like(rc.f32[()], domain=(i,), name="old")
        old[i < 3] = 0.0
        old[i] = old[i - 3] * 0.5 + o[0:B, i, T - 1].mean()  # lives on for three iterations
        loss = (-live * (r - old * 0.01) * pi.log_prob(a))[0:B, i, 0:T].mean()
        loss.backward()
        rc.optim.Adam(dnn.params, lr=1e-2).step()
        rc.log(loss=loss, ended=d.cast("f32")[0:B, i, 0:T].sum(), old=old)
        dnn[i % 3 == 2].checkpoint("run")
    return ctx.compile({B: 3, I: ITERATIONS, T: 5}, backend="numpy")


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def run(compiled: Any) -> None:
    """One run of the program, in this directory, which may be killed at any time."""
    folder = Path("run")
    save = checkpoint.save

    def saying(directory: Any, arrays: Any, meta: Any, **more: Any) -> Path:
        path = save(directory, arrays, meta, **more)
        say(f"saved {int(path.stem)}")
        return path

    checkpoint.save = saying
    known = checkpoint.saved(folder / "checkpoints")
    with open(os.devnull, "w") as quiet, redirect_stdout(quiet):
        sys.stderr = quiet
        compiled.run(seed=7, folder=folder, resume=folder if known else None, overwrite=not known)
    say("done")


def main() -> None:
    compiled = program()
    compiled.execution  # noqa: B018  compiled before it is forked
    say("ready")
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os.chdir(line.split()[1])
            run(compiled)
            os._exit(0)
        say(f"pid {child}")
        os.waitpid(child, 0)
        say("gone")


if __name__ == "__main__":
    main()
