"""Two ranks of torchrun on TPUs whose torch_tpu is pretended; see ``tpu_script.py``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch.utils import backend_registration

from tests.torchrun import run_script

SCRIPT = Path(__file__).with_name("tpu_script.py")

pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch takes backends in C++ only",
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict]:
    """What each rank has found."""
    folder = tmp_path_factory.mktemp("tpu")
    ended = run_script(tmp_path_factory.mktemp("logs"), 2, SCRIPT, folder)
    assert ended.is_well, ended.err
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
def test_the_process_group_knows_the_tpu(ranks):
    """And the host beside it, for what is no tensor of the TPU."""
    assert ["cpu:gloo,tpu:tpu_dist"] * 2 == [rank["backend"] for rank in ranks]


def test_a_rank_is_a_worker_on_its_tpu(ranks):
    expected = [f"TPUStrategy(worker {rank} of 2, devices tpu:0)" for rank in range(2)]
    assert expected == [rank["strategy"] for rank in ranks]


def test_every_example_comes_once_an_epoch(ranks):
    """Two epochs over 11 examples: without look-ahead, and with it."""
    examples = sorted(example for rank in ranks for example in rank["examples"])
    assert sorted([*range(11), *range(11)]) == examples


def test_steps_have_one_shape_on_the_tpu(ranks):
    """The last step has an example less than the others, and so has its mask."""
    for rank in ranks:
        assert [[2, 1]] * 6 == rank["shapes"]
        assert {"tpu:0"} == set(rank["devices"])


def test_every_copy_to_the_tpu_blocks(ranks):
    """As torch sees it: batches and masks of six steps, and what the script moves."""
    for rank in ranks:
        assert [True] * (2 * 6 + 1) == rank["blocking"][:13]
        assert all(rank["blocking"])


def test_results_are_gathered_over_the_host(ranks):
    """Tensors of a TPU go there and come back: three examples in the last step."""
    assert [[8, 9, 10]] * 2 == [rank["gathered"] for rank in ranks]
    assert [27] * 2 == [rank["sum"] for rank in ranks]
