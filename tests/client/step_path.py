"""A loop under the hooks, watched from outside between two writes to a descriptor: `python -m tests.client.step_path`.

Prints how many traced bytes more there are after 1,000 steps than after some hundred.
"""

from __future__ import annotations

import os
import tracemalloc

from tests.client.rings import new_ring
from traceml_client import trace_step
from traceml_client.protocol.columns import STEP_STREAM
from traceml_client.recorder import Recorder
from traceml_client.torch_hooks import install_when_imported

BEGIN, END = b"steps begin", b"steps end"
NUM_WARM_UP, NUM_STEPS = 300, 1_000


def main() -> None:
    import torch  # here, so that the test beside it can be collected where there is none

    torch.set_num_threads(1)
    recorder = Recorder(new_ring())
    faults: list[str] = []
    install_when_imported(recorder, lambda kind, error: faults.append(f"{kind}: {error!r}"))
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(torch.randn(4, 16), batch_size=4)
    batch = next(iter(loader))

    def train(num_steps: int) -> None:
        for _ in range(num_steps):
            with trace_step() if is_declared else torch.enable_grad():
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()

    for is_declared in (False, True):  # noqa: B007 - `train` reads it
        train(NUM_WARM_UP)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.write(nowhere, BEGIN)
        train(NUM_STEPS)
        os.write(nowhere, END)
    tracemalloc.start()
    train(NUM_WARM_UP)
    before, _ = tracemalloc.get_traced_memory()
    train(NUM_STEPS)
    after, _ = tracemalloc.get_traced_memory()
    assert not faults, faults
    assert recorder.reader.head(STEP_STREAM) > 2 * NUM_STEPS
    print(after - before)


if __name__ == "__main__":
    main()
