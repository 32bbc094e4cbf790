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
from pathlib import Path
from typing import Any

from torch.distributed.distributed_c10d import Store

_ANYWHERE = "192.0.2.1"
"""An address for documentation: where packets to the world would leave this host; none is sent."""
_ANY_PORT = 9
_GET_ADDRESS = 0x8915
"""Linux' SIOCGIFADDR."""
_ADDRESS = slice(20, 24)
"""Where it puts an IPv4 address."""
_OF_LINK = "20"
"""The scope of addresses that need the name of an interface beside them."""


def own_addresses(store: Store) -> list[str]:
    """Addresses of this host, those first that others reach most likely.

    ``GLOO_SOCKET_IFNAME`` says which networks to use, as with torch's own groups; else it is the
    one towards the store, those of the host's name, and the one towards the world.

    Raises:
        OSError: the variable names an interface that is not there, or has no address.
    """
    return _named_addresses() or list(dict.fromkeys(_guess(store)))


def named_address() -> str:
    """That of the network that ``GLOO_SOCKET_IFNAME`` names; empty if it names none, or several."""
    named = set(_named_addresses())
    return named.pop() if len(named) == 1 else ""


def _named_addresses() -> list[str]:
    names = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    return [_address_of(name) for name in names] if sys.platform == "linux" else []


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
    address = _ipv4_of(interface) or _ipv6_of(interface)
    if address is None:
        msg = (
            "Expected names of network interfaces that have an address in GLOO_SOCKET_IFNAME, got "
            f"{interface!r}. `ip address` lists them."
        )
        raise OSError(msg)
    return address


def _ipv4_of(interface: str) -> str | None:
    import fcntl  # noqa: PLC0415 - not on Windows

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            request = struct.pack("256s", interface.encode())
            answer = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[_ADDRESS])


def _ipv6_of(interface: str) -> str | None:
    """One that other hosts may reach: not of the link alone."""
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:  # without IPv6
        return None
    for address, _, _, scope, _, name in map(str.split, lines):
        if name == interface and scope != _OF_LINK:
            return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(address))
    return None
