"""What a node of torchdata cannot play is refused, with its cure."""

from __future__ import annotations

import pytest
import torch
from torchdata import nodes

import torch_distinput as tdi
from torch_distinput.integrations import versions
from torch_distinput.integrations.claims import claim
from torch_distinput.integrations.torchdata import DistributedNode


def distribute(size=2):
    strategy = tdi.OneDeviceStrategy("cpu")
    return strategy.distribute_dataset(torch.arange(5), global_batch_size=size)


@pytest.mark.parametrize(
    "wrap", [lambda node: node, nodes.Loader, lambda node: nodes.Prefetcher(node, 2)]
)
def test_a_node_is_not_distributed_again(wrap):
    """Its steps are parts of global batches already."""
    source, one = wrap(DistributedNode(distribute())), tdi.OneDeviceStrategy("cpu")
    with pytest.raises(TypeError, match="distributed already"):
        one.distribute_dataset(source, global_batch_size=4)
    with pytest.raises(TypeError, match="replica batches"):
        one.distribute_datasets_from_function(lambda _: source)


def test_a_dataset_that_another_integration_plays():
    dataset = distribute()
    claim(dataset, "Accelerate")
    with pytest.raises(tdi.UsageError, match="only torchdata uses, got one.*Accelerate"):
        DistributedNode(dataset)


def test_a_state_of_another_node():
    node = DistributedNode(distribute())
    with pytest.raises(ValueError, match=r"a state of DistributedNode.*\['_num_yielded'\]"):
        node.reset({"_num_yielded": 3})
    with pytest.raises(ValueError, match="state"):
        node.reset({node.DATASET_KEY: {"epoch": 3}})


def test_a_state_of_steps_that_were_cut_otherwise(caplog):
    """A place inside of a step would be another one; nobody warns of the same steps."""

    def resume(size):
        loader = nodes.Loader(nodes.Unbatcher(DistributedNode(distribute(size))))
        loader.load_state_dict(state)
        return next(iter(loader))

    loader = nodes.Loader(nodes.Unbatcher(DistributedNode(distribute(2))))
    steps = iter(loader)
    assert [0, 1, 2] == [next(steps).item() for _ in range(3)]
    state = loader.state_dict()
    assert 3 == resume(2)
    assert not caplog.text
    resume(3)
    assert "1 replicas each and global batches of 2 is loaded for 1, 1 and 3" in caplog.text


def test_a_version_that_was_not_tested(monkeypatch):
    monkeypatch.setattr(versions, "_told", set())
    monkeypatch.setattr(versions.metadata, "version", lambda package: "0.12.0")
    with pytest.warns(UserWarning, match=r"got torchdata 0\.12\.0"):
        DistributedNode(distribute())
