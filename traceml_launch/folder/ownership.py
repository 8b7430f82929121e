"""Who owns a run under a dynamic rendezvous without node ranks: the first launcher on the aggregator's own host.

The claim is an abstract Unix socket named after the port: exclusive on this host, and gone with its holder.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

from traceml_launch.commandline.config import LaunchConfig


@dataclass(slots=True)
class Claim:
    """Held until `close`; `is_owner` says whether it was won, or did not need to be."""

    is_owner: bool
    _socket: socket.socket | None = None

    def close(self) -> None:
        """Legal twice."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def claim(config: LaunchConfig) -> Claim:
    """Settle this launcher's role."""
    if config.role != "contender":
        return Claim(config.role == "owner")
    if not is_local(config.aggregator_host):
        return Claim(False)
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.bind(f"\0traceml-owner-{config.aggregator_port}")
    except OSError:
        holder.close()
        return Claim(False)
    return Claim(True, holder)


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
