"""Training runs in a thread, while another thread asks a loader for batches ahead of it."""

import queue
import threading

import stopwatch
import torch
from torch.utils.data import DataLoader, TensorDataset

ready = queue.Queue(maxsize=2)


def prefetch():
    for batch in DataLoader(TensorDataset(torch.randn(160, 16)), batch_size=4):
        ready.put(batch)
    ready.put(None)


def train():
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while (batch := ready.get()) is not None:
        model(batch[0]).mean().backward()
        optimizer.step()
        stopwatch.lap()


threads = [threading.Thread(target=prefetch), threading.Thread(target=train)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
stopwatch.report()
