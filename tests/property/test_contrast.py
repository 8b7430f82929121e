"""The contrast of any streams: the same for any chunks, quotes that stand where they say, and bounds."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from traceml_daemon.log_files.sign_files import load_book
from traceml_daemon.triage.contrast import MAX_LINES, MAX_SHAPES, WORDS, Contrast, Odd, shape_of
from traceml_daemon.triage.screen import build_screen

BOOK = load_book()
SCREEN = build_screen(WORDS)
PIECES = (
    "[rank0]: shard failed to load\n",
    "[rank1]: shard failed to load\n",
    "[rank2]: index is corrupt at 0x7f00 in /data/a/b.bin\n",
    "[rank3]: step 10 loss 0.5\n",
    "reader failed\n",
    "10%|#  | 1/10\r[rank1]: cannot seek\r20%|##\n",
    "\x1b[31m[rank1]: parse error\x1b[0m\r\n",
    "\x00\xff\n",
    "no end of line: error",
    "x" * 70_000 + " fatal \n",
)
some_log = st.lists(st.sampled_from(PIECES) | st.text(max_size=20), max_size=30).map(
    lambda pieces: "".join(pieces).encode("utf-8", "surrogatepass")
)


def read(streams: Iterable[tuple[int | None, Iterable[bytes]]], *, is_screened: bool = False) -> list[Odd]:
    contrast = Contrast(SCREEN if is_screened else None)
    for file, (rank, chunks) in enumerate(streams):
        reader = contrast.reader(file, rank)
        for chunk in chunks:
            reader.feed(chunk)
        reader.finish()
    return contrast.odd_lines(BOOK)


@given(log=some_log, rank=st.none() | st.integers(0, 3), data=st.data())
@settings(max_examples=150, deadline=None)
def test_the_chunks_in_which_a_stream_arrives_change_nothing(log: bytes, rank: int | None, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=8)))
    chunks = [log[start:end] for start, end in zip([0, *cuts], [*cuts, len(log)], strict=True)]
    whole = read([(rank, [log]), (7, [b""])])
    assert read([(rank, chunks), (7, [b""])]) == whole
    assert read([(rank, log.splitlines(keepends=True)), (7, [b""])]) == whole


@given(log=some_log)
@settings(max_examples=100, deadline=None)
def test_screened_streams_give_the_same(log: bytes) -> None:
    assert read([(None, [log]), (7, [b""])], is_screened=True) == read([(None, [log]), (7, [b""])])


@given(log=some_log)
@settings(max_examples=100, deadline=None)
def test_every_quote_stands_on_its_line(log: bytes) -> None:
    lines = log.split(b"\n")
    for odd in read([(None, [log]), (7, [b""])]):
        assert odd.place.quote in lines[odd.place.line - 1].decode("utf-8", "replace"), odd


@given(logs=st.lists(some_log, min_size=2, max_size=4))
@settings(max_examples=50, deadline=None)
def test_the_same_streams_of_all_ranks_show_nothing(logs: list[bytes]) -> None:
    assert read([(rank, [log]) for rank in range(3) for log in logs]) == []


@given(text=st.text())
def test_a_shape_is_a_line_without_numbers(text: str) -> None:
    assert not any(letter in "0123456789" for letter in shape_of(text))


def words(number: int) -> str:
    return "".join(chr(ord("g") + int(digit)) for digit in str(number))


def test_more_shapes_than_are_kept_are_passed_over() -> None:
    log = "".join(f"{words(number)} failed\n" for number in range(MAX_SHAPES + 100)).encode()
    assert len(read([(0, [b""]), (1, [log])])) == MAX_SHAPES


def test_nothing_is_said_of_more_lines_than_are_read() -> None:
    lines = "".join(f"[rank1]: {words(number % 50)} failed\n" for number in range(MAX_LINES))
    log = lines.encode()
    assert len(read([(0, [b""]), (None, [log])])) == 50
    assert read([(0, [b""]), (None, [log + b"[rank0]: x failed\n"])]) == []
