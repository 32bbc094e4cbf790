"""What completion offers a user: the documented names, and nothing of the machine behind them."""

from __future__ import annotations

import pytest
import torch

import torch_distinput as tdi
from torch_distinput.integrations.torchdata import DistributedNode

DATASET = tdi.OneDeviceStrategy("cpu").distribute_dataset(torch.arange(4), global_batch_size=2)
PUBLIC = {
    "DistributedDataset": (
        "auto_shard_policy element_spec epoch load_state_dict replay set_aside set_epoch state_dict"
        " steps strategy"
    ),
    "DistributedIterator": (
        "close element_spec get_next get_next_as_optional last_step load_state_dict report"
        " state_dict stats"
    ),
    "FileShardDataset": "set_epoch",
    "DataShardDataset": "set_epoch",
    "InputContext": (
        "get_per_replica_batch_size input_pipeline_id num_input_pipelines num_replicas_in_sync"
    ),
    "InputOptions": (
        "audit auto_shard_policy cp_columns cp_dim fetch_to_device partial_batch"
        " per_replica_buffer_size rebatch replication_mode timeout trace"
    ),
    "InputStats": (
        "balance examples num_tokens packing repeats retries skipped sources steps"
        " wait_seconds zero_row_batches"
    ),
    "OptionalStep": "get_value has_value",
    "PerReplica": "count index values",
    "RebatchSampler": "",
    "ReplayedStep": "batches ids index num_examples",
    "ReplicaContext": (
        "all_gather all_reduce device local_replica merge_call num_replicas_in_sync"
        " replica_id_in_sync_group strategy"
    ),
    "Step": (
        "average batch ids index info is_empty load_state_dict local_counts num_examples num_tokens"
        " padded_rows sources state_dict"
    ),
    "StepGroup": "count index load_state_dict num_examples num_tokens state_dict",
    "StepInfo": (
        "cp_dim ids index is_empty local_counts num_examples num_tokens padded_rows sources"
    ),
    "TensorSpec": "dtype layout shape",
    "Topology": "first_replica num_replicas_in_sync num_workers replicas_per_worker worker_index",
    "ValueContext": "num_replicas_in_sync replica_id_in_sync_group",
}


def names_of(value: object) -> list[str]:
    return [name for name in dir(value) if not name.startswith("_")]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_class_offers_its_documented_names(name: str) -> None:
    assert PUBLIC[name].split() == names_of(getattr(tdi, name))


@pytest.mark.parametrize("make", [lambda: DATASET, lambda: iter(DATASET)])
def test_an_object_offers_no_more_than_its_class(make) -> None:
    """Its attributes are private: what a class does not declare is found there only."""
    value = make()
    assert PUBLIC[type(value).__name__].split() == names_of(value)


def test_a_node_offers_what_torchdata_asks_for_and_the_dataset() -> None:
    expected = "DATASET_KEY close dataset get_state next reset state_dict with_info"
    assert expected.split() == names_of(DistributedNode(DATASET))
