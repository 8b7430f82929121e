"""What the hooks must not do: change an error, a pickle, a module, a result; and what an error of ours does instead."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.client.rings import Step, new_ring, read_steps
from traceml_client.recorder import Recorder
from traceml_client.step_clock import StepClock
from traceml_client.steps import MAX_FAULTS, Measuring
from traceml_client.torch_hooks.optimizer_table import OptimizerTable

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class Measured:
    """The hooks, set in this process, over a ring in memory."""

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        from traceml_client.torch_hooks.install import install
        from traceml_client.torch_hooks.transfers import install_transfers

        self.recorder = Recorder(new_ring())
        self.faults: list[BaseException] = []
        self.table = OptimizerTable()
        clock = StepClock(self.recorder, now_ns=now_ns, is_replacing=self.table.is_replacing)
        self.measuring = Measuring(clock, self.recorder.reader, lambda _kind, error: self.faults.append(error))
        self.table.forget = clock.forget_optimizer
        self.patches = install(self.measuring, self.table)
        install_transfers(self.measuring, self.patches)

    @property
    def steps(self) -> list[Step]:
        return read_steps(self.recorder.reader)


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x: Any) -> Any:
        return self.layer(x)


class Refusing(Net):
    """Has a `__call__` of its own, and raises in it and in its forward."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)

    def forward(self, x: Any) -> Any:
        if x.shape[0] == 3:
            raise ValueError("three")
        return super().forward(x)


@pytest.fixture
def measured() -> Iterator[Measured]:
    one = Measured()
    yield one
    one.patches.undo()


def train(model: Any, num_steps: int = 3) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(num_steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    return optimizer


def raise_in_forward(model: Any) -> None:
    model(torch.ones(3, 4))


def raise_in_backward(model: Any) -> None:
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    loss.backward()


def raise_in_grad(model: Any) -> None:
    torch.autograd.grad(model(torch.ones(2, 4)).sum(), torch.ones(1, requires_grad=True))


def raise_in_loader(_model: Any) -> None:
    next(iter(torch.utils.data.DataLoader([1, object()], batch_size=2)))


def raise_in_save(_model: Any) -> None:
    torch.save(lambda: None, "/nonexistent/folder/file")


def raise_in_scaler(model: Any) -> None:
    torch.amp.GradScaler("cpu").step(torch.optim.SGD(model.parameters()))


def raise_in_transfer(_model: Any) -> None:
    torch.ones(1).to("no such device")


RAISING: list[Callable[[Any], None]] = [
    raise_in_forward,
    raise_in_backward,
    raise_in_grad,
    raise_in_loader,
    raise_in_save,
    raise_in_scaler,
    raise_in_transfer,
]


def frames_of(action: Callable[[Any], None], model: Any) -> list[tuple[str, int | None]]:
    with pytest.raises(Exception) as caught:
        action(model)
    return [(frame.filename, frame.lineno) for frame in traceback.extract_tb(caught.value.__traceback__)]


@pytest.mark.parametrize("action", RAISING, ids=lambda action: action.__name__)
def test_tracebacks_are_those_of_a_script_without_us(action: Callable[[Any], None]) -> None:
    model = Refusing()
    plain = frames_of(action, model)
    one = Measured()
    train(model)
    measured = frames_of(action, model)
    one.patches.undo()
    assert measured == plain
    assert one.faults == []


def test_an_error_names_the_phase_it_arose_in(measured: Measured) -> None:
    model = Refusing()
    train(model)
    frames_of(raise_in_forward, model)
    assert measured.recorder.reader.progress()[:2] == (4, "forward")
    frames_of(raise_in_backward, model)
    assert measured.recorder.reader.progress()[:2] == (4, "backward")


def test_a_module_is_pickled_and_copied_as_if_we_were_not_there(measured: Measured) -> None:
    model = Net()
    before = (sorted(vars(model)), pickle.dumps(model))
    train(model, num_steps=1)
    assert measured.steps[0].phases["backward"]
    model.zero_grad()
    again = pickle.loads(pickle.dumps(model))
    assert (sorted(vars(model)), len(pickle.dumps(model))) == (before[0], len(before[1]))
    assert b"traceml_client" not in pickle.dumps(model)
    for other in (again, copy.deepcopy(model)):
        assert torch.equal(other(torch.ones(2, 4)), model(torch.ones(2, 4)))


def test_replaced_functions_are_pickled_by_name(measured: Measured) -> None:
    for function in (torch.save, torch.autograd.backward, torch.autograd.grad):
        assert pickle.loads(pickle.dumps(function)) is function


def test_undo_leaves_nothing_behind() -> None:
    def state() -> list[object]:
        loader = torch.utils.data.dataloader
        optimizer = sys.modules["torch.optim.optimizer"]
        return [
            torch.autograd.backward,
            torch.autograd.grad,
            torch.save,
            torch.serialization.save,
            torch.amp.GradScaler.step,
            torch.optim.Optimizer.zero_grad,
            torch.utils.data.DataLoader.__iter__,
            loader._BaseDataLoaderIter.__next__,
            torch.Tensor.to,
            Net.__call__,
            Refusing.__call__,
            "__call__" in vars(Net),
            "to" in vars(torch.Tensor),
            list(optimizer._global_optimizer_pre_hooks.values()),
            list(optimizer._global_optimizer_post_hooks.values()),
        ]

    before = state()
    one = Measured()
    train(Net())
    train(Refusing())
    assert state() != before
    one.patches.undo()
    assert state() == before


def test_the_first_forward_of_a_loop_that_clears_its_gradients_first_is_timed(measured: Measured) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    plain = torch.optim.Optimizer.zero_grad
    optimizer.zero_grad()
    assert torch.optim.Optimizer.zero_grad is not plain
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert measured.steps[0].phases["forward"]


def test_only_the_roots_are_timed(measured: Measured) -> None:
    model, other = Net(), Net()
    train(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    other(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert measured.steps[2].phases["forward"]
    assert measured.steps[3].phases["forward"] is None


def test_transfers_to_another_device_are_timed_between_batch_and_forward(measured: Measured) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in torch.utils.data.DataLoader(torch.ones(4, 2, 4)):
        if measured.measuring.clock.step == 2:
            assert batch.to("meta").device.type == "meta"
        batch = batch.to(torch.float64).to(torch.float32)
        model(batch).sum().backward()
        if measured.measuring.clock.step == 3:
            batch.to("meta")
        optimizer.step()
    assert [bool(step.phases["h2d"]) for step in measured.steps] == [False, True, False, False]


def test_an_optimizer_is_not_kept_alive(measured: Measured) -> None:
    optimizer = weakref.ref(train(Net()))
    gc.collect()
    assert optimizer() is None
    assert not measured.table.alive


class BreakingClock:
    """A clock that can be broken."""

    def __init__(self) -> None:
        self.is_broken = False

    def __call__(self) -> int:
        if self.is_broken:
            raise OSError("no time")
        return time.monotonic_ns()


def test_errors_of_ours_are_reported_and_end_measuring_but_not_training() -> None:
    now_ns = BreakingClock()
    one = Measured(now_ns)
    try:
        model = Net()
        optimizer = train(model)
        now_ns.is_broken = True
        for _ in range(10):
            for batch in torch.utils.data.DataLoader(torch.ones(2, 4)):
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()
        assert model.layer.weight.grad is not None
        with pytest.raises(RuntimeError):
            model(torch.ones(7, 7)).sum().backward()
    finally:
        one.patches.undo()
    assert [str(error) for error in one.faults] == ["no time"] * MAX_FAULTS
    assert len(one.steps) == 3


def test_a_hook_error_of_the_optimizer_does_not_reach_it(measured: Measured) -> None:
    """An optimizer whose parameter groups are not what they should be."""
    optimizer = train(Net())
    strange = copy.copy(optimizer)
    strange.param_groups = []
    strange.step()
    strange.param_groups = [{}]
    with pytest.raises(KeyError):
        strange.step()
    assert len(measured.faults) <= 1
