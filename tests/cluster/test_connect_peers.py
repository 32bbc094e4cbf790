"""How ranks find each other: strangers, addresses that lead nowhere, and who never comes."""

from __future__ import annotations

import json
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from torch_distinput.cluster.channels import connect_peers as module
from torch_distinput.cluster.channels import peer_address
from torch_distinput.cluster.channels.connect_peers import connect_peers
from torch_distinput.cluster.channels.peer_address import own_addresses
from torch_distinput.communicator import ChannelBrokenError

LIMIT = 30.0
SHORT = 0.5
SECRET = 16
HERE, THERE = "127.0.0.1", "127.0.0.2"


@pytest.fixture
def here(monkeypatch):
    """Loopback only, whatever the network of this machine is."""
    monkeypatch.setattr(module, "own_addresses", lambda _: [HERE])


def connect(store, rank, size, timeout=LIMIT):
    peers = [peer for peer in range(size) if peer != rank]
    return connect_peers(store, rank, peers, timeout=timeout)


def close(*connected):
    for peers in connected:
        for peer in peers.values():
            peer.close()


def connect_all(size):
    store = HashStore()
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: connect(store, rank, size), range(size)))


@pytest.mark.parametrize("size", [2, 3, 7])
def test_each_rank_is_connected_with_each_other_one(here, size):
    connected = connect_all(size)
    for rank, peers in enumerate(connected):
        for peer in peers:
            peers[peer].send(0, bytes([rank, peer]))
    for rank, peers in enumerate(connected):
        assert {peer: bytes([peer, rank]) for peer in peers} == {
            peer: bytes(peers[peer].receive(0)) for peer in peers
        }
        option = socket.SOL_SOCKET, socket.SO_KEEPALIVE
        assert all(peer._socket.getsockopt(*option) for peer in peers.values())
    close(*connected)


def test_the_addresses_of_this_machine_lead_to_it():
    """As they are found here, without a variable that says which."""
    connected = connect_all(2)
    connected[0][1].send(0, b"here")
    assert b"here" == connected[1][0].receive(0)
    close(*connected)


def strangers(port):
    """What may come to an open port: silence, noise, who leaves at once, and a wrong secret."""
    said = (b"", b"GET / HTTP/1.1\r\n\r\n", b"0" * SECRET + bytes([0, 0, 0, 1]) + b"!")
    found = [socket.create_connection((HERE, port)) for _ in said]
    for stranger, words in zip(found, said, strict=True):
        stranger.sendall(words)
    socket.create_connection((HERE, port)).close()
    return found


def test_strangers_at_the_port_are_sent_away(here, monkeypatch):
    monkeypatch.setattr(module, "_TRY_SECONDS", SHORT)
    store = HashStore()
    with ThreadPoolExecutor(1) as pool:
        answering = pool.submit(connect, store, 0, 2)
        others = strangers(json.loads(store.get("0"))[1])
        calling = connect(store, 1, 2)  # again and again, until those before it are gone
        answered = answering.result(LIMIT)
    calling[0].send(0, b"mine")
    assert b"mine" == answered[1].receive(0)
    close(calling, answered)
    for stranger in others:
        stranger.close()


def servers_at_one_port():
    """At THERE and HERE; a port that is free on one may be taken on the other."""
    while True:
        try:
            there = socket.create_server((THERE, 0))
        except OSError:
            pytest.skip(f"macOS has no {THERE}")
        try:
            return there, socket.create_server((HERE, there.getsockname()[1]))
        except OSError:
            there.close()


@pytest.mark.parametrize("said", [b"", b"x" * SECRET])
def test_an_address_that_leads_to_another_process_is_passed_over(here, said):
    """127.0.1.1 on another host, say, where something listens at the same port."""
    store = HashStore()
    other, right = servers_at_one_port()
    with other, right, ThreadPoolExecutor(2) as pool:
        card = [[THERE, HERE], right.getsockname()[1], "a" * SECRET, "b" * SECRET]

        def answer():
            with other.accept()[0] as connected:
                connected.recv(99)
                connected.sendall(said)
                if len(said) >= SECRET:
                    assert not connected.recv(1)  # it hangs up

        def answer_well():
            connected, _ = right.accept()
            assert b"a" * SECRET + bytes([0, 0, 0, 1]) == connected.recv(99)
            connected.sendall(b"b" * SECRET)
            assert b"!" == connected.recv(1)
            return connected

        answering_ill, answering = pool.submit(answer), pool.submit(answer_well)
        store.set("0", json.dumps(card))
        connected = connect(store, 1, 2)
        answering.result(LIMIT).close()
        answering_ill.result(LIMIT)
    with pytest.raises(ChannelBrokenError, match="closed"):
        connected[0].receive(0)
    close(connected)


def test_who_cannot_be_reached_is_named_with_what_was_tried(here):
    store = HashStore()
    with socket.create_server((HERE, 0)) as gone:
        port = gone.getsockname()[1]
    store.set("0", json.dumps([[HERE, THERE], port, "a" * SECRET, "b" * SECRET]))
    with pytest.raises(ChannelBrokenError, match=r"worker 0 to answer .*127.0.0.1: .*127.0.0.2: "):
        connect(store, 1, 2, timeout=SHORT)


def test_who_never_says_where_it_is_does_not_keep_the_store(here):
    """A client of the store that waited for it would serve nobody else meanwhile."""
    with pytest.raises(ChannelBrokenError, match="worker 0 to say in the store where it is"):
        connect(HashStore(), 1, 2, timeout=SHORT)


def test_a_silent_address_leaves_time_for_the_next_one(monkeypatch):
    store = HashStore()
    monkeypatch.setattr(module, "own_addresses", lambda _: [THERE, HERE])
    silent, listener = servers_at_one_port()
    monkeypatch.setattr(module, "_listen", lambda: listener)
    with silent, ThreadPoolExecutor(1) as pool:
        answering = pool.submit(connect, store, 0, 2, 10)
        store.get("0")
        monkeypatch.setattr(module, "_listen", lambda: socket.create_server((HERE, 0)))
        close(connect(store, 1, 2, timeout=10), answering.result(LIMIT))


def test_who_never_calls_is_named(here):
    with pytest.raises(ChannelBrokenError, match="connection from workers 1, 2"):
        connect(HashStore(), 0, 3, timeout=SHORT)


def test_no_socket_or_thread_is_left_of_a_try_that_failed(here):
    before = threading.active_count()
    store = HashStore()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(connect, store, 0, 3, SHORT)
        with pytest.raises(ChannelBrokenError):
            connect(store, 1, 3, timeout=SHORT)
        with pytest.raises(ChannelBrokenError):
            waiting.result(LIMIT)
    assert before == threading.active_count()


@pytest.mark.skipif(sys.platform != "linux", reason="the variable is read on Linux only")
class TestNetworkOfTheEnvironment:
    @pytest.mark.parametrize("names", ["lo", "lo,lo"])
    def test_it_is_used_alone(self, monkeypatch, names):
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", names)
        assert [HERE] * len(names.split(",")) == own_addresses(HashStore())

    def test_a_port_is_open_there_alone(self, monkeypatch):
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
        with module._listen() as listener:
            assert HERE == listener.getsockname()[0]
        monkeypatch.delenv("GLOO_SOCKET_IFNAME")
        with module._listen() as listener:
            assert listener.getsockname()[0] in ("::", "0.0.0.0")  # noqa: S104 - what it is by default

    @pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="it needs IPv6")
    def test_it_may_have_an_ipv6_address_only(self, monkeypatch):
        listed = "00000000000000000000000000000001 01 80 10 80       lo\n"
        linked = "fe800000000000000000000000000001 01 40 20 80       lo\n"
        monkeypatch.setattr(peer_address, "_ipv4_of", lambda _: None)
        monkeypatch.setattr(peer_address.Path, "read_text", lambda _: linked + listed)
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
        assert ["::1"] == own_addresses(HashStore())
        with module._listen() as listener:
            assert "::1" == listener.getsockname()[0]

    @pytest.mark.parametrize("name", ["nowhere", "a name that is much too long for it"])
    def test_one_that_is_not_there_is_an_error(self, monkeypatch, name):
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", name)
        with pytest.raises(ChannelBrokenError, match=f"GLOO_SOCKET_IFNAME, got '{name}'"):
            connect(HashStore(), 0, 2)


def test_a_host_without_a_network_or_a_name_has_an_empty_list_or_loopback(monkeypatch):
    """What cannot be found is left out."""
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)

    def fail(*_, **__):
        raise OSError

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert [] == own_addresses(HashStore())
