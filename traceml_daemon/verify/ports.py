"""Ports and rendezvous addresses of this host."""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import Final

import psutil

from traceml_daemon.verify.case import Case, CheckResult, NotCheckable, gone, not_checkable, printable, still_there

_CONNECT_TIMEOUT_S: Final = 2.0
_MAX_PORT: Final = 65535


def port_free(case: Case) -> CheckResult:
    """Binds the port as a server would, and lets go of it."""
    port = _port(case)
    error = _bind(port)
    if error is None:
        return gone(f"port {port} is free on this host: it could be bound")
    if error == errno.EADDRINUSE:
        return still_there(f"port {port} is taken{_holder(port)}")
    return not_checkable(f"binding port {port} failed: {errno.errorcode.get(error, error)}")


def port_permitted(case: Case) -> CheckResult:
    port = _port(case)
    if _bind(port) in (errno.EACCES, errno.EPERM):
        return still_there(f"this user may not bind port {port}")
    return gone(f"this user may bind port {port}")


def rendezvous_address(case: Case) -> CheckResult:
    """Connects only to this host: other machines are not ours to knock at."""
    found = case.values("address with a port")
    host, _, port_text = found[0].replace(", ", ":").rpartition(":")
    host, shown = host.strip("'\"[]"), printable(found[0])
    if not port_text.isdecimal() or not 0 < int(port_text) <= _MAX_PORT:
        return not_checkable(f"{shown} is no address with a port")
    if not is_own_host(host):
        return not_checkable(f"{shown} is another machine, or a name that only a name server knows")
    try:
        socket.create_connection((host, int(port_text)), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return not_checkable(f"{shown} is this host and nothing answers there now ({error.strerror or error})")
    return gone(f"{shown} is this host and answers")


def is_own_host(host: str) -> bool:
    """Without asking a name server."""
    if host in ("localhost", socket.gethostname()):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    own = {each.address.partition("%")[0] for addresses in psutil.net_if_addrs().values() for each in addresses}
    return address.is_loopback or str(address) in own


def _port(case: Case) -> int:
    found = [int(value) for value in case.values("port") if value.isdecimal()]
    if not found or not 0 < found[0] <= _MAX_PORT:
        raise NotCheckable("the evidence names no port")
    return found[0]


def _bind(port: int) -> int | None:
    """The errno of the first family that refuses; null if a server could listen on all addresses."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as server:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                server.bind((address, port))
                server.listen(1)
        except OSError as error:
            if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                continue  # a host without IPv6
            return error.errno
    return None


def _holder(port: int) -> str:
    """` by NAME (pid N)` where this user may see it."""
    try:
        for each in psutil.net_connections("tcp"):
            if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port and each.pid:
                return f" by {printable(psutil.Process(each.pid).name())} (pid {each.pid})"
    except psutil.Error:
        pass
    return ""
