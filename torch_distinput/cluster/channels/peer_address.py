"""Where other ranks reach this one: addresses to try in turn, as no rank knows how others see it.

gloo asks the name of the host, which may lead to 127.0.1.1, or to a network that is not shared.
Here it is one of several addresses, and a rank that answers on one of them proves who it is.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from torch.distributed.distributed_c10d import Store

_ANYWHERE = "192.0.2.1"
"""An address for documentation: where packets to the world would leave this host; none is sent."""
_ANY_PORT = 9
_GET_ADDRESS = 0x8915
"""Linux' SIOCGIFADDR."""
_ADDRESS = slice(20, 24)
"""Where it puts an IPv4 address."""


def own_addresses(store: Store) -> list[str]:
    """Addresses of this host, those first that others reach most likely.

    ``GLOO_SOCKET_IFNAME`` says which networks to use, as with torch's own groups; else it is the
    one towards the store, those of the host's name, and the one towards the world.

    Raises:
        OSError: the variable names an interface that is not there, or has no IPv4 address.
    """
    names = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    if names and sys.platform == "linux":
        return [_address_of(name) for name in names]
    return list(dict.fromkeys(_guess(store)))


def _guess(store: Store) -> Iterator[str]:
    base: Any = store
    while hasattr(base, "underlying_store"):
        base = base.underlying_store
    if host := getattr(base, "host", ""):
        yield from _addresses_towards(host)
    with suppress(OSError, UnicodeError):  # the latter for names that are too long
        named = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
        yield from (str(address[0]) for *_, address in named)
    yield from _addresses_towards(_ANYWHERE)


def _addresses_towards(host: str) -> Iterator[str]:
    """From which address this host would talk to another one; nothing is sent."""
    with suppress(OSError, UnicodeError):  # the latter for names that are too long
        family, kind, *_, address = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            yield str(probe.getsockname()[0])


def _address_of(interface: str) -> str:
    import fcntl  # noqa: PLC0415 - not on Windows

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            request = struct.pack("256s", interface.encode())
            answer = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, request)
        except OSError as error:
            msg = (
                "Expected names of network interfaces with IPv4 addresses in GLOO_SOCKET_IFNAME, "
                f"got {interface!r}: {error}"
            )
            raise OSError(msg) from error
    return socket.inet_ntoa(answer[_ADDRESS])
