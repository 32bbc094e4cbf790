"""How a channel of many ranks is connected: through the network that torch was told to use."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from torch_distinput.cluster.gloo_channel import GlooChannel
from torch_distinput.communicator import ChannelBrokenError


def open_alone(size):
    """One rank, to which nobody has connected yet."""
    GlooChannel(dist.HashStore(), 0, size, timeout=1.0).close()


@pytest.mark.parametrize("names", [None, "", "lo", "lo,lo"])
def test_who_opens_a_channel_of_many_waits_for_nobody(monkeypatch, names):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    if names is not None:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", names)
    open_alone(4)


@pytest.mark.parametrize("size", [2, 4])
def test_the_network_is_that_of_the_environment(monkeypatch, size):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere")
    with pytest.raises(ChannelBrokenError, match="nowhere"):
        open_alone(size)
