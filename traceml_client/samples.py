"""The form of a sample, and of what takes one."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Sample(NamedTuple):
    """A kind of `protocol.columns` and its six values; NOT_MEASURED where the system does not tell."""

    kind: int
    values: tuple[int, int, int, int, int, int]


class Sampler(Protocol):
    """One kind of sample, or several. `sample` raises OSError where the system refuses."""

    def sample(self) -> list[Sample]: ...

    def close(self) -> None: ...
