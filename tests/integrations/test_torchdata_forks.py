"""A node of torchdata in a child that was forked while the parent's thread was inside of it."""

from __future__ import annotations

import os
import signal

import torch

import torch_distinput as tdi
from torch_distinput.integrations.torchdata import DistributedNode

SECONDS = 100
"""A watchdog of the child."""


def test_a_child_waits_for_no_thread_of_its_parent():
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(torch.arange(4), global_batch_size=2)
    node = DistributedNode(dataset)
    node.reset()
    with node._run.reading:  # as torchdata's thread has it nearly always
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(SECONDS)
            os._exit(use(node))
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert [0, 1] == node.next().tolist()


def use(node):
    node.close()
    node.reset()
    return int([0, 1] != node.next().tolist())
