"""Which collective an exception came out of, with the arguments that it had: real calls of torch.distributed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from traceml_client.collective_call import CollectiveCall, call_of

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def _group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def raised(call: Callable[[], object]) -> BaseException:
    with pytest.raises((ValueError, RuntimeError)) as caught:
        call()
    return caught.value


@pytest.mark.usefixtures("_group")
def test_call_and_size_of_its_first_tensors() -> None:
    error = raised(lambda: dist.broadcast(torch.zeros(4, 3, dtype=torch.float64), src=5))
    assert call_of(error) == CollectiveCall("broadcast", 96, "broadcast(float64[4, 3])")
    error = raised(lambda: dist.all_gather([torch.zeros(2), torch.zeros(2)], torch.zeros(2)))
    assert call_of(error) == CollectiveCall("all_gather", 16, "all_gather(float32[2], float32[2])")


@pytest.mark.usefixtures("_group")
def test_pickled_objects_have_no_size() -> None:
    found = call_of(raised(lambda: dist.broadcast_object_list([{"a": 1}], src=5)))
    assert found == CollectiveCall("broadcast_object_list", None, "broadcast_object_list()")


@pytest.mark.usefixtures("_group")
def test_the_cause_of_an_error_is_searched_too() -> None:
    def evaluate() -> None:
        try:
            dist.broadcast(torch.zeros(1), src=5)
        except (ValueError, RuntimeError) as error:
            raise ValueError("evaluation failed") from error

    found = call_of(raised(evaluate))
    assert found is not None
    assert found.name == "broadcast"


def test_an_error_of_the_script_came_out_of_none() -> None:
    assert call_of(raised(lambda: int("x"))) is None
