"""Who owns a run under a dynamic rendezvous without node ranks: the first launcher on the aggregator's own host.

The claim is an abstract Unix socket named after the port: exclusive on this host, and gone with its holder.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from traceml_launch.commandline.config import LaunchConfig


@contextlib.contextmanager
def claimed(config: LaunchConfig) -> Iterator[bool]:
    """Whether this launcher owns the run; its claim is held until the end of the block."""
    if config.role != "contender" or not is_local(config.aggregator_host):
        yield config.role == "owner"
        return
    with socket.socket(socket.AF_UNIX) as holder:
        try:
            holder.bind(f"\0traceml-owner-{config.aggregator_port}")
            is_owner = True
        except OSError:
            is_owner = False
        yield is_owner


def is_local(host: str) -> bool:
    """Whether one of the host's addresses is one of this machine's: whether it can be bound."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in found)


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(address)
        except OSError:
            return False
    return True
