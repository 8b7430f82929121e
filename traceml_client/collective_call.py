"""The collective that an exception came out of, read from its traceback while the arguments are still there.

Of ranks that ran different collectives none can say by itself who was wrong, and gloo's messages name no rank. The call
and its size, compared over ranks, can.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple

_FILE = "torch/distributed/distributed_c10d.py"
_MAX_CHAIN = 16


class CollectiveCall(NamedTuple):
    name: str
    """The public function of torch.distributed."""
    num_bytes: int | None
    """Of its first tensor, or list of tensors; null where it has none (a barrier, pickled objects)."""
    text: str
    """`all_reduce(float32[400])`, for people."""


def call_of(error: BaseException) -> CollectiveCall | None:
    """Of the error, or of one that it was raised from or while handling; null where none came out of a collective."""
    for one in _chain(error):
        traceback = one.__traceback__
        while traceback is not None:
            frame = traceback.tb_frame
            if frame.f_code.co_filename.endswith(_FILE):  # the outermost is what the script called
                return _describe(frame)
            traceback = traceback.tb_next
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    for _ in range(_MAX_CHAIN):
        if seen is None:
            return
        yield seen
        seen = seen.__cause__ or seen.__context__


def _describe(frame: FrameType) -> CollectiveCall:
    code = frame.f_code
    arguments = (_tensors(frame.f_locals.get(name)) for name in _parameters(code))
    tensors = next((found for found in arguments if found), [])
    data = ", ".join(f"{str(one.dtype).removeprefix('torch.')}{list(one.shape)}" for one in tensors[:2])
    more = ", ..." if len(tensors) > 2 else ""
    num_bytes = sum(one.numel() * one.element_size() for one in tensors) if tensors else None
    return CollectiveCall(code.co_name, num_bytes, f"{code.co_name}({data}{more})")


def _parameters(code: CodeType) -> tuple[str, ...]:
    return code.co_varnames[: code.co_argcount]


def _tensors(value: Any) -> list[Any]:
    """The tensors in an argument, by what we ask of them: nothing here imports torch."""
    values = value if isinstance(value, list) else [value]
    is_tensors = all(hasattr(one, "element_size") and hasattr(one, "dtype") for one in values)
    return values if is_tensors else []
