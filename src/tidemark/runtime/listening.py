"""Sockets on which clients and peers connect."""

from __future__ import annotations

import errno
import socket

from tidemark.config import Address, parse_address
from tidemark.errors import ConfigError
from tidemark.runtime import machine


def bound(name: str, text: str, backlog: int) -> tuple[socket.socket, Address]:
    """A bound socket for the setting `listen.NAME`, and where it really is.

    Raises:
        ConfigError: the address is in use or not ours.
    """
    address = parse_address(f"listen.{name}", text)
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, where = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen(backlog)
        except BaseException:
            listener.close()
            raise
    except OSError as problem:
        if problem.errno == errno.EADDRINUSE:
            words = f"{address} is in use by {_listener_on(address.port)}; stop it or choose another with --listen.{name}"
        else:
            words = f"cannot listen on {address}: {(problem.strerror or str(problem)).lower()}"
        raise ConfigError(key=f"listen.{name}", problem=words) from None
    listener.setblocking(False)
    host, port = listener.getsockname()[:2]
    return listener, Address(host, port)


def _listener_on(port: int) -> str:
    pid = machine.listening_pid(port)
    return "another program" if pid is None else f"process {pid} ({machine.command_of(pid)})"
