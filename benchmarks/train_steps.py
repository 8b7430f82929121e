"""One rank of a direct launch, timed from inside: `train_steps.py NUM_STEPS STEPS_PER_S`.

With a pace the body is empty and a step is a `trace_step()` block, otherwise it is an unedited step of one Linear
layer. Says when it is warm, trains at a line on standard input, and prints its figures.
"""

from __future__ import annotations

import json
import os
import sys
import time

from benchmarks.client_step import training_step
from traceml_client import init, trace_step

WARM_UP_STEPS = 300


def main() -> None:
    num_steps, steps_per_s = map(int, sys.argv[1:3])
    if "TRACEML_AGGREGATOR_PORT" in os.environ:
        init()
    step = training_step(-1) if steps_per_s == 0 else None
    clock = time.perf_counter_ns

    def train(count: int) -> list[int]:
        times = []
        start = clock()
        for index in range(count):
            begin = clock()
            if step is not None:
                step()
            else:
                while clock() < start + index * 1_000_000_000 // steps_per_s:
                    time.sleep(0)
                with trace_step():
                    pass
            times.append(clock() - begin)
        return times

    train(WARM_UP_STEPS)
    print("warm", flush=True)
    sys.stdin.readline()
    cpu_ns = time.process_time_ns()
    times = sorted(train(num_steps))
    cpu_us = (time.process_time_ns() - cpu_ns) / num_steps / 1e3
    print(json.dumps({"p10_us": times[num_steps // 10] / 1e3, "cpu_us": cpu_us}), flush=True)


if __name__ == "__main__":
    main()
