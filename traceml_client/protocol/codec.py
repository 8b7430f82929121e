"""Messages to bytes and back.

Rules of evolution: a field is only ever appended, with a default; an unknown trailing field is skipped; a type never
changes; an unknown message is an error of the peer. `PROTOCOL_MAJOR` changes when these rules have to be broken.
"""

from __future__ import annotations

import msgspec

from traceml_client.protocol.errors import RemoteProtocolError
from traceml_client.protocol.frames import frame
from traceml_client.protocol.messages import FromDaemon, Message, ToDaemon

_encoder = msgspec.msgpack.Encoder()
_to_daemon = msgspec.msgpack.Decoder(ToDaemon)
_from_daemon = msgspec.msgpack.Decoder(FromDaemon)


def encode(message: Message) -> bytes:
    """A whole frame, ready to be written.

    Raises:
        LocalProtocolError: the message is over the frame limit.
    """
    return frame(_encoder.encode(message))


def decode_to_daemon(payload: bytes | memoryview) -> ToDaemon:
    """A payload that a rank or launcher sent.

    Raises:
        RemoteProtocolError: not msgpack, not one of our messages, or a wrong type in it.
    """
    try:
        return _to_daemon.decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"not a message of ours: {str(error)[:200]}") from None


def decode_from_daemon(payload: bytes | memoryview) -> FromDaemon:
    """A payload that a daemon sent. Raises RemoteProtocolError as `decode_to_daemon`."""
    try:
        return _from_daemon.decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"not a message of ours: {str(error)[:200]}") from None
