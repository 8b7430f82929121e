"""Data workers by fork, which train something themselves, and by spawn; the data set is a stream."""

import stopwatch
import torch
from torch.utils.data import DataLoader, IterableDataset

from traceml_client.loader_times import TIMES


class Stream(IterableDataset):
    def __init__(self, is_training):
        self.is_training = is_training

    def __iter__(self):
        for _ in range(20):
            if self.is_training:
                train_in_worker()
            yield torch.randn(16)


def train_in_worker():
    model = torch.nn.Linear(4, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model(torch.randn(4)).mean().backward()
    optimizer.step()


def main():
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for method, num_workers in (("fork", 2), ("spawn", 1)):
        stream = Stream(is_training=method == "fork")
        for x in DataLoader(stream, batch_size=4, num_workers=num_workers, multiprocessing_context=method):
            model(x).mean().backward()
            optimizer.step()
            stopwatch.lap()
        stopwatch.facts[method] = TIMES.totals()
    stopwatch.report()


if __name__ == "__main__":
    main()
