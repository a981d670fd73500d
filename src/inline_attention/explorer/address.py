"""The address of the page: where its server listens, and by which names a request may call it."""

import errno
import socket
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

PORTS = range(7860, 7960)
"""Tried in this order, unless a port is given."""
EVERY_NETWORK = ("0.0.0.0", "::")
THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Address:
    """The host and the port that the page is served at."""

    host: str
    port: int

    def __str__(self) -> str:
        host = "localhost" if self.host in EVERY_NETWORK else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"

    def is_named(self, given: str) -> bool:
        """Whether the Host header of a request names this server.

        Another site can let its own name point here (DNS rebinding), and its scripts then count as the page's own. So only
        the host that the server was started with and the names of this machine itself are accepted, with the port. A server
        for every network does not know all addresses that lead to it, nor the port outside of a container. It accepts
        addresses in digits, which nobody can let point elsewhere, and the machine's own name, with any port.
        """
        try:
            parts = urlsplit(f"//{given}")
            name, port = parts.hostname or "", parts.port or 80
        except ValueError:
            return False
        if parts.netloc != given or "@" in given:
            return False
        if self.host not in EVERY_NETWORK:
            return name in (*THIS_MACHINE, self.host.lower()) and port == self.port
        own = socket.gethostname().lower()
        return name in ("localhost", own, f"{own}.local") or _is_in_digits(name)


def _is_in_digits(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def listen(host: str, port: int | None) -> tuple[socket.socket, Address]:
    """A socket that listens, and its address; a free port from 7860 on if None. What cannot be is a ValueError."""
    host = host.strip().removeprefix("[").removesuffix("]")
    if port is not None and not 0 <= port <= 65535:
        raise ValueError(f"--port takes a number from 1 to 65535, or 0 for any free one, got {port}")
    try:
        found = socket.getaddrinfo(host or "?", port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:  # ValueError: a name that cannot be encoded
        raise ValueError(f"--host {host!r} is no address and no known name: give 127.0.0.1, or 0.0.0.0") from error
    family, _, _, _, place = found[0]
    for number in PORTS if port is None else (port,):
        try:
            listener = socket.create_server((place[0], number, *place[2:]), family=family)
        except OSError as error:
            if port is None and error.errno == errno.EADDRINUSE:
                continue
            raise ValueError(f"cannot listen at {host}:{number}: {_reason(error)}") from error
        return listener, Address(host, listener.getsockname()[1])
    raise ValueError(f"all ports from {PORTS[0]} to {PORTS[-1]} are taken at {host}: give one by --port")


def _reason(error: OSError) -> str:
    reasons = {
        errno.EADDRNOTAVAIL: "this machine has no such address",
        errno.EADDRINUSE: "the port is taken; without --port, a free one is found",
        errno.EACCES: "the system does not allow that port; take one above 1023",
    }
    return reasons.get(error.errno or 0, error.strerror or str(error))
