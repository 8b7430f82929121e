"""Messages to bytes and back; old and new peers; what is no message of ours."""

from __future__ import annotations

import typing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceml_client.protocol import messages
from traceml_client.protocol.codec import decode_from_daemon, decode_to_daemon, encode
from traceml_client.protocol.errors import LocalProtocolError, RemoteProtocolError
from traceml_client.protocol.frames import HEADER_BYTES, MAX_FRAME_BYTES
from traceml_client.protocol.messages import FromDaemon, Message, Records, ToDaemon
from traceml_client.protocol.node import NodeReport, ProcessLeft, RankEnd, RankError

TO_DAEMON = typing.get_args(ToDaemon)
FROM_DAEMON = typing.get_args(FromDaemon)

integers = st.integers(min_value=-(2**63), max_value=2**64 - 1)
text = st.text(st.characters(codec="utf-8"), max_size=30)


def values_of(kind: object) -> st.SearchStrategy[object]:
    """Any value that a field of this type may hold."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    simple: dict[object, st.SearchStrategy[object]] = {
        int: integers, bool: st.booleans(), str: text, bytes: st.binary(max_size=50), type(None): st.none(),
    }  # fmt: skip
    if kind in simple:
        return simple[kind]
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, arguments))
    if origin is dict:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
    if origin is not None:
        return st.one_of(*map(values_of, arguments))
    assert isinstance(kind, type)
    return structs(kind)


def structs(kind: type) -> st.SearchStrategy[object]:
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{name: values_of(hint) for name, hint in hints.items() if name in kind.__struct_fields__})


def payload(message: Message) -> bytes:
    return encode(message)[HEADER_BYTES:]


@given(st.one_of(*map(structs, TO_DAEMON)))
def test_every_message_to_the_daemon_comes_back(message: ToDaemon) -> None:
    assert decode_to_daemon(payload(message)) == message


@given(st.one_of(*map(structs, FROM_DAEMON)))
def test_every_message_of_the_daemon_comes_back(message: FromDaemon) -> None:
    assert decode_from_daemon(payload(message)) == message


def test_tags_are_unique_and_for_ever() -> None:
    """A tag that changes is another protocol: this list is only ever appended to."""
    tags = {kind.__name__: kind.__struct_config__.tag for kind in {*TO_DAEMON, *FROM_DAEMON}}

    assert tags == {
        "Challenge": 1, "RankHello": 2, "NodeHello": 3, "Welcome": 4, "Refused": 5, "Records": 6, "Ack": 7,
        "RankFinished": 8, "RankFailed": 9, "RankStarted": 10, "RankExited": 11, "Salvaged": 12, "SalvageAck": 13,
        "TrainingStarted": 14, "Interrupted": 15, "NodeFiles": 16, "NodeEnded": 17, "Ping": 18, "Pong": 19,
        "RunFinalized": 20, "Notice": 21,
    }  # fmt: skip


@given(st.one_of(*map(structs, TO_DAEMON)), st.lists(integers | text, max_size=3))
def test_trailing_fields_of_a_newer_peer_are_skipped(message: ToDaemon, extra: list[object]) -> None:
    fields = msgspec.msgpack.decode(payload(message))

    assert decode_to_daemon(msgspec.msgpack.encode([*fields, *extra])) == message


def test_an_older_peer_leaves_out_fields_that_have_defaults() -> None:
    ping = msgspec.msgpack.encode([18, 5])

    assert decode_to_daemon(ping) == messages.Ping(sent_ns=5, clock_offset_ns=0, clock_bound_ns=-1)


def test_reports_within_messages_are_maps_and_take_new_fields_too() -> None:
    report = NodeReport(1, "r", "id", 0, "h", 1, 1, None, None, None, None, None)
    fields = msgspec.msgpack.decode(payload(messages.NodeEnded(report)))
    fields[1]["of_the_future"] = [1, 2]

    assert decode_to_daemon(msgspec.msgpack.encode(fields)) == messages.NodeEnded(report)


@given(st.binary(max_size=200))
def test_random_bytes_are_the_peers_error_or_a_message(data: bytes) -> None:
    for decode in (decode_to_daemon, decode_from_daemon):
        try:
            decode(data)
        except RemoteProtocolError as error:
            assert "\n" not in str(error)  # noqa: PT017 - most random bytes are no message, some are


@given(st.recursive(integers | text | st.none(), lambda inner: st.lists(inner, max_size=4), max_leaves=20))
def test_other_msgpack_is_the_peers_error_or_a_message(value: object) -> None:
    try:
        decode_to_daemon(msgspec.msgpack.encode(value))
    except RemoteProtocolError:
        return
    assert isinstance(value, list)


@pytest.mark.parametrize("depth", [100, 5_000, 500_000])
def test_a_deep_nest_is_the_peers_error(depth: int) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_to_daemon(b"\x91" * depth + b"\x01")


def test_a_daemons_message_is_not_taken_from_a_peer() -> None:
    with pytest.raises(RemoteProtocolError):
        decode_to_daemon(payload(messages.Ack(0, 1)))


def test_the_largest_frame_fits_and_a_larger_one_is_our_own_error() -> None:
    with pytest.raises(LocalProtocolError, match="over the limit"):
        encode(Records(0, 0, 1, "qB6I", bytes(MAX_FRAME_BYTES)))


def test_the_strategies_reach_every_part_of_a_report() -> None:
    for kind in (RankEnd, RankError, ProcessLeft, NodeReport):
        structs(kind).validate()
