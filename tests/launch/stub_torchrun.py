"""Stands in for torchrun: starts workers in sessions of their own, passes signals on, exits with the first error.

`python -m tests.launch.stub_torchrun NUM_WORKERS CODE [--deaf]`: each worker takes its pipes and ring from the launcher
and runs CODE, with `rank` and `recorder` at hand. `--deaf`: ignores signals, as an agent in its exit barrier does.
`--real`: CODE is the path of a script, run by the client's own worker; `--pass WORD`: its argument.
`--redirect FILE`: gives their standard output a file, as torchrun's own `--redirects` does. `--node N --num-nodes M`:
one node of several.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import FrameType


def option(name: str) -> str | None:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else None


def start_worker(local_rank: int, num_workers: int, code: str) -> subprocess.Popen[bytes]:
    node, num_nodes = int(option("--node") or 0), int(option("--num-nodes") or 1)
    ranks = {"RANK": node * num_workers + local_rank, "LOCAL_RANK": local_rank}
    sizes = {"WORLD_SIZE": num_nodes * num_workers, "LOCAL_WORLD_SIZE": num_workers}
    redirect = option("--redirect")
    worker = "traceml_client.worker" if "--real" in sys.argv else "tests.launch.stub_worker"
    return subprocess.Popen(
        [sys.executable, "-m", worker, code, *([option("--pass") or ""] if "--pass" in sys.argv else [])],
        env={**os.environ, **{name: str(number) for name, number in {**ranks, **sizes}.items()}},
        stdout=open(redirect, "wb") if redirect else None,
        start_new_session=True,
    )


def main() -> int:
    num_workers, code = int(sys.argv[1]), sys.argv[2]
    workers = [start_worker(local_rank, num_workers, code) for local_rank in range(num_workers)]

    def pass_on(number: int, frame: FrameType | None) -> None:
        print(f"agent got {signal.Signals(number).name}", file=sys.stderr, flush=True)
        if "--deaf" not in sys.argv:
            for worker in workers:
                worker.send_signal(number)

    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, pass_on)
    print("agent started", flush=True)
    codes = [worker.wait() for worker in workers]
    return next((1 if code < 0 else code for code in codes if code), 0)


if __name__ == "__main__":
    raise SystemExit(main())
