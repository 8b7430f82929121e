"""Another thread makes a backward of its own that ends after the first of the loop's has ended and begun before."""

import threading

import stopwatch
import torch

model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
is_inside, may_end = threading.Event(), threading.Event()


def wait_inside(gradient):
    is_inside.set()
    may_end.wait()


def work():
    other = torch.ones(1, requires_grad=True)
    other.register_hook(wait_inside)
    other.sum().backward()


def cross(gradient):
    other.start()
    is_inside.wait()


for number in range(30):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 16)).mean()
    if number == 10:
        other = threading.Thread(target=work)
        loss.register_hook(cross)
    loss.backward()
    if number == 10:
        may_end.set()
        other.join()
    optimizer.step()
    stopwatch.lap()
stopwatch.report()
