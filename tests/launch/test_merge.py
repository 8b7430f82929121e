"""Lines of several processes in one stream: whole where they can be, live where they must be, and never a byte lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from traceml_launch.output.merge import MAX_HELD_BYTES, LineMerger

LINE = st.text("ab\r", max_size=4).map(lambda text: text.encode() + b"\n")


@st.composite
def writes(draw: st.DrawFn) -> tuple[dict[int, bytes], list[tuple[int, bytes]]]:
    """What each source writes in all, and in which pieces and order it arrives."""
    wholes = {source: b"".join(draw(st.lists(LINE, max_size=5))) for source in range(draw(st.integers(1, 4)))}
    left = dict(wholes)
    pieces = []
    while any(left.values()):
        source = draw(st.sampled_from([each for each, data in left.items() if data]))
        size = draw(st.integers(1, len(left[source])))
        pieces.append((source, left[source][:size]))
        left[source] = left[source][size:]
    return wholes, pieces


@given(writes())
def test_lines_stay_whole_in_any_chunking(case: tuple[dict[int, bytes], list[tuple[int, bytes]]]) -> None:
    wholes, pieces = case
    merger = LineMerger(hold_s=1.0)
    out = b"".join(merger.feed(source, data, now_s=0.0) for source, data in pieces)
    out += b"".join(merger.end(source) for source in wholes)
    assert sorted(out.split(b"\n")) == sorted(
        [line for data in wholes.values() for line in data.split(b"\n")[:-1]] + [b""]
    )
    assert len(out) == sum(map(len, wholes.values()))


@given(writes(), st.lists(st.booleans()))
def test_each_source_keeps_its_order_and_only_newlines_are_added(
    case: tuple[dict[int, bytes], list[tuple[int, bytes]]], flushes: list[bool]
) -> None:
    _, pieces = case
    numbered = [(source, bytes([0x30 + source]) * len(data)) for source, data in pieces]
    merger = LineMerger(hold_s=1.0)
    out, now_s = b"", 0.0
    for index, (source, data) in enumerate(numbered):
        out += merger.feed(source, data, now_s=now_s)
        if index < len(flushes) and flushes[index]:
            now_s += 2.0
            out += merger.advance(now_s=now_s)
    out += b"".join(merger.end(source) for source in range(4))
    assert sorted(out.replace(b"\n", b"")) == sorted(b"".join(data for _, data in numbered))


def test_one_source_is_copied_exactly() -> None:
    merger = LineMerger(hold_s=0.1)
    out = merger.feed(0, b"\r 10%", now_s=0.0) + merger.advance(now_s=0.1)
    out += merger.feed(0, b"\r 20%", now_s=0.2) + merger.end(0)
    assert out == b"\r 10%\r 20%"


def test_a_progress_bar_is_shown_when_its_time_has_come() -> None:
    merger = LineMerger(hold_s=0.1)
    assert merger.feed(0, b"\r 10%", now_s=5.0) == b""
    assert merger.next_deadline_s() == 5.1
    assert merger.advance(now_s=5.09) == b""
    assert merger.advance(now_s=5.1) == b"\r 10%"
    assert merger.next_deadline_s() is None


def test_a_line_that_waits_keeps_its_age() -> None:
    merger = LineMerger(hold_s=0.1)
    merger.feed(0, b"a", now_s=0.0)
    merger.feed(0, b"b", now_s=0.09)
    assert merger.next_deadline_s() == 0.1


def test_another_source_begins_on_a_line_of_its_own() -> None:
    merger = LineMerger(hold_s=0.1)
    out = merger.feed(0, b"\r 10%", now_s=0.0) + merger.advance(now_s=1.0)
    out += merger.feed(1, b"epoch 2\n", now_s=1.1)
    out += merger.feed(0, b"\r 20%\n", now_s=1.2)
    assert out == b"\r 10%\nepoch 2\n\r 20%\n"


def test_an_endless_line_is_not_collected_in_memory() -> None:
    merger = LineMerger(hold_s=1e9)
    assert merger.feed(0, b"x" * MAX_HELD_BYTES, now_s=0.0) == b""
    assert len(merger.feed(0, b"x", now_s=0.0)) == MAX_HELD_BYTES + 1


def test_an_overlong_bar_is_cut_between_two_of_its_frames() -> None:
    merger = LineMerger(hold_s=1e9)
    frames = b"\r" + b"x" * MAX_HELD_BYTES
    assert merger.feed(0, frames + b"\r 99%", now_s=0.0) == frames + b"\r"
    assert merger.end(0) == b" 99%"
