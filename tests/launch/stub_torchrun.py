"""Stands in for torchrun: starts workers in sessions of their own, passes signals on, exits with the first error.

`python -m tests.launch.stub_torchrun NUM_WORKERS CODE [--deaf]`: each worker takes its pipes and ring from the launcher
and runs CODE, with `rank` and `recorder` at hand. `--deaf`: ignores signals, as an agent in its exit barrier does.
`--redirect FILE`: gives their standard output a file, as torchrun's own `--redirects` does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import FrameType


def main() -> int:
    num_workers, code = int(sys.argv[1]), sys.argv[2]
    redirect = sys.argv[sys.argv.index("--redirect") + 1] if "--redirect" in sys.argv else None
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.launch.stub_worker", code],
            env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_workers)},
            stdout=open(redirect, "wb") if redirect else None,  # noqa: SIM115
            start_new_session=True,
        )
        for rank in range(num_workers)
    ]

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
