"""Finds the lines of a large log that hold any of many words, at the speed of a few passes over its bytes.

Of each word the four bytes that are rarest in logs are kept; a table of a hash of four bytes says for every position
whether a word may stand there, and only there the words are compared.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np

_BITS: Final = 17
"""The table of half of them fits a core's own cache."""
_FACTOR: Final = np.uint32(2654435761)
_COMMON: Final = b" etaoinsrhld0123456789.:-_cumpfgybwvkxqjz/,=[]()'\""
"""Bytes by falling frequency in logs, roughly; others are rare."""
_COST: Final = {byte: math.log(1 + place) for place, byte in enumerate(_COMMON)}
_PROGRESS: Final = (
    b"[rank0]: step 10/100 epoch 1 iter: 5 loss: 0.5 loss=2.1 lr: 1e-5 learning rate, grad_norm 0.1, time: data: batch "
    b"tokens/s memory: gpu cuda training rank: 3 world size model.layers eval val accuracy throughput 100%| 3.2it/s] "
    b"info warning number of samples saved checkpoint to num_workers config size shape "
)
"""What lines of progress are made of: four bytes that stand here would be found in nearly every line."""


def build_screen(words: Iterable[bytes]) -> Callable[[bytes], Iterator[int]]:
    """A function from a block to the offsets at which words stand, ascending. Words: lower case, four bytes or more."""
    by_gram: dict[bytes, list[tuple[int, bytes]]] = defaultdict(list)
    for word in words:
        start = _rarest(word)
        by_gram[word[start : start + 4]].append((start, word))
    grams = np.sort(np.frombuffer(b"".join(by_gram), dtype="<u4"))
    table = np.zeros(1 << _BITS, dtype=np.bool_)
    table[_hashes(grams)] = True

    def screen(block: bytes) -> Iterator[int]:
        lowered = block.lower()
        for position in _candidates(lowered, table, grams):
            for start, word in by_gram.get(lowered[position : position + 4], ()):
                if lowered.startswith(word, position - start) and position >= start:
                    yield position
                    break

    return screen


def _rarest(word: bytes) -> int:
    def cost(start: int) -> float:
        gram = word[start : start + 4]
        return sum(_COST.get(byte, 4.5) for byte in gram) - (100.0 if gram in _PROGRESS else 0.0)

    return max(range(len(word) - 3), key=cost)


def _hashes(grams: np.ndarray) -> np.ndarray:
    return np.asarray((grams * _FACTOR) >> np.uint32(32 - _BITS))


def _candidates(block: bytes, table: np.ndarray, wanted: np.ndarray) -> list[int]:
    found = []
    for shift in range(4):
        count = (len(block) - shift) // 4
        if count > 0:
            grams = np.frombuffer(block, dtype="<u4", offset=shift, count=count)
            places = np.flatnonzero(np.take(table, _hashes(grams)))
            places = places[np.isin(grams[places], wanted)]
            found.append(places * 4 + shift)
    return sorted(np.concatenate(found).tolist()) if found else []
