"""Ranks connect to each other, by what each of them writes into the store.

Of two ranks the higher one calls, and the lower one answers. So each rank answers in a thread, from
before it can be called until all have called, while it calls others itself.

    thread    writes                     ordered by
    connect   its own table of sockets   joins ``answer`` before it reads what that has written
    answer    ``sockets``                ends after its last write
    any       ``_is_stopped``            the answering thread looks at it now and then

What comes to an open port may be anybody: who calls must know the secret of whom it calls, and who
answers must say the rest of it, as an address may lead to another host's process. A caller that has
waited too long hangs up and calls again, so it confirms that it has heard the answer.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import cycle
from typing import NamedTuple, final

from torch.distributed.distributed_c10d import Store

from torch_distinput.cluster.channels.peer_address import named_address, own_addresses
from torch_distinput.cluster.channels.peer_connection import PeerConnection
from torch_distinput.communicator import ChannelBrokenError, named_workers
from torch_distinput.threads import call_in_child, start_thread

_SECRET_BYTES = 8
_RANK_BYTES = 4
_CONFIRMED = b"!"
_TRY_SECONDS = 5.0
"""For one address, and for a caller to say who it is."""
_LEAST_SECONDS = 0.001
_FIRST_PAUSE_SECONDS = 0.001
_LOOK_SECONDS = 0.5
"""Time between two questions whether answering was stopped; not all systems wake who accepts."""
_PAUSE_SECONDS = 0.1
"""Between two rounds of addresses that refuse at once."""
_CALL_PART = 5
"""A rank answers for the whole time; who calls gives up after a fifth of it, and can say so."""


class _Card(NamedTuple):
    """What a rank tells of itself."""

    addresses: Sequence[str]
    port: int
    call: str
    answer: str


def connect_peers(
    store: Store, rank: int, peers: Sequence[int], *, timeout: float
) -> dict[int, PeerConnection]:
    """Connect a rank with others, all of whom do the same at this time.

    Args:
        store: where they find each other; of this meeting alone.
        rank: this one.
        peers: the others.
        timeout: seconds to wait for those that call.

    Raises:
        ChannelBrokenError: not all of them could be reached, or have come.
    """
    try:
        addresses, listener = own_addresses(store), _listen()
    except OSError as error:
        raise ChannelBrokenError(str(error)) from error
    call, answer = secrets.token_hex(_SECRET_BYTES), secrets.token_hex(_SECRET_BYTES)
    card = _Card(addresses, listener.getsockname()[1], call, answer)
    call_in_child(listener, socket.socket.close)
    answering = _Answering(listener, card, {peer for peer in peers if peer > rank}, timeout)
    sockets: dict[int, socket.socket] = {}
    try:
        store.set(f"{rank}", json.dumps(card))
        for peer in peers:
            if peer < rank:
                sockets[peer] = _call(rank, peer, store, timeout / _CALL_PART)
        sockets |= answering.wait()
        return {peer: PeerConnection(connected) for peer, connected in sockets.items()}
    except BaseException:
        answering.stop()  # first, as it may be taking a call
        for connected in (*sockets.values(), *answering.sockets.values()):
            connected.close()
        raise
    finally:
        answering.stop()


def _listen() -> socket.socket:
    """A port on the one network that is named, else on all of this host."""
    if address := named_address():
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address, 0), family=family, backlog=socket.SOMAXCONN)
    if socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", 0), family=socket.AF_INET6, backlog=socket.SOMAXCONN, dualstack_ipv6=True
        )
    return socket.create_server(("", 0), backlog=socket.SOMAXCONN)


def _call(rank: int, peer: int, store: Store, seconds: float) -> socket.socket:
    """Connect to a rank, and hear from it that it is the one."""
    deadline = time.monotonic() + seconds
    card = _find_card(peer, store, deadline)
    longest = min(_TRY_SECONDS, seconds / (2 * max(1, len(card.addresses))))
    failed: dict[str, str] = {}
    for address in cycle(card.addresses):
        left = deadline - time.monotonic()
        if left <= 0.0:
            break
        try:
            return _call_address(rank, card, address, min(left, longest))
        except OSError as error:
            failed[address] = str(error)
        if address == card.addresses[-1]:
            time.sleep(_PAUSE_SECONDS)
    tried = "; ".join(f"{address}: {why}" for address, why in failed.items())
    msg = (
        f"Expected worker {peer} to answer at port {card.port} within {seconds:g} s, but it does "
        f"not. {tried or 'It has no address.'}. Let workers connect to any port of each other, or "
        "name a network that they share in GLOO_SOCKET_IFNAME."
    )
    raise ChannelBrokenError(msg)


def _find_card(peer: int, store: Store, deadline: float) -> _Card:
    """What a rank tells of itself.

    Asked for again and again: a client of the store that waits for a rank serves nobody else.
    """
    pause = _FIRST_PAUSE_SECONDS
    while not store.check([f"{peer}"]):
        if time.monotonic() > deadline:
            msg = f"Expected worker {peer} to say in the store where it is, but it has not in time."
            raise ChannelBrokenError(msg)
        time.sleep(pause)
        pause = min(2 * pause, _PAUSE_SECONDS)
    return _Card(*json.loads(store.get(f"{peer}")))


def _call_address(rank: int, card: _Card, address: str, seconds: float) -> socket.socket:
    deadline = time.monotonic() + seconds
    connected = socket.create_connection((address, card.port), seconds)
    call_in_child(connected, socket.socket.close)
    try:
        connected.sendall(card.call.encode() + rank.to_bytes(_RANK_BYTES, "big"))
        _expect(card.answer.encode(), connected, deadline)
        connected.sendall(_CONFIRMED)
    except BaseException:
        connected.close()
        raise
    return connected


def _hear(connected: socket.socket, size: int, deadline: float) -> bytes:
    """Read so many bytes, of whoever it is, in time."""
    heard = b""
    while len(heard) < size:
        connected.settimeout(max(_LEAST_SECONDS, deadline - time.monotonic()))
        received = connected.recv(size - len(heard))
        if not received or time.monotonic() > deadline:
            msg = "it has hung up, or takes too long"
            raise ConnectionError(msg)
        heard += received
    return heard


def _expect(wanted: bytes, connected: socket.socket, deadline: float) -> None:
    if not secrets.compare_digest(wanted, _hear(connected, len(wanted), deadline)):
        msg = "another process is there"
        raise ConnectionError(msg)


@final
class _Answering:
    """Takes the calls of other ranks, in a thread.

    Attributes:
        sockets: of those that have called, by rank.
    """

    def __init__(
        self, listener: socket.socket, card: _Card, expected: set[int], seconds: float
    ) -> None:
        """Start taking calls."""
        self.sockets: dict[int, socket.socket] = {}
        self._listener = listener
        self._card = card
        self._expected = expected
        self._deadline = time.monotonic() + seconds
        self._is_stopped = False
        self._thread = start_thread(self._run, name="answer", stop=self._shut)

    def wait(self) -> dict[int, socket.socket]:
        """Return them all.

        Raises:
            ChannelBrokenError: some have not come in time.
        """
        self._thread.join()
        if missing := sorted(self._expected - self.sockets.keys()):
            msg = f"Expected a connection from {named_workers(missing)}, but none has come in time."
            raise ChannelBrokenError(msg)
        return self.sockets

    def stop(self) -> None:
        """Take no more calls."""
        self._shut()
        self._thread.join()
        self._listener.close()

    def _shut(self) -> None:
        self._is_stopped = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread

    def _run(self) -> None:
        while self._expected - self.sockets.keys():
            left = self._deadline - time.monotonic()
            if self._is_stopped or left <= 0.0:
                return
            self._listener.settimeout(min(left, _LOOK_SECONDS))
            try:
                connected, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # stopped, or whoever called has gone by now
                time.sleep(0.0 if self._is_stopped else _PAUSE_SECONDS)
                continue
            call_in_child(connected, socket.socket.close)
            try:
                self._take(connected)
            except OSError:
                connected.close()  # nobody of ours

    def _take(self, connected: socket.socket) -> None:
        deadline = time.monotonic() + _TRY_SECONDS
        _expect(self._card.call.encode(), connected, deadline)
        rank = int.from_bytes(_hear(connected, _RANK_BYTES, deadline), "big")
        connected.sendall(self._card.answer.encode())
        _expect(_CONFIRMED, connected, deadline)  # or it has given up meanwhile
        self.sockets[rank] = connected
