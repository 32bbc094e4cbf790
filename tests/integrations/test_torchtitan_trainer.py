"""torchtitan's own Trainer, Validator and checkpoints on finite data, by torchrun."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.commands import output_of

SCRIPT = Path(__file__).with_name("torchtitan_script.py")
ROWS, GLOBAL_BATCH_SIZE, VALIDATION_ROWS = 41, 12, 5


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What the ranks of each leg have told: two ranks stop after 2 steps; who goes on ends."""
    folder = tmp_path_factory.mktemp("torchtitan")
    return {
        **legs_of(folder, 2, {"begun": "a:2:-1", "resumed": "a:99:2", "whole": "b:99:-1"}),
        **legs_of(folder, 1, {"elsewhere": "a:99:2"}),
    }


def legs_of(folder, num_ranks, legs):
    torchrun = ("torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}")
    command = [sys.executable, "-m", *torchrun, str(SCRIPT), str(folder), ",".join(legs.values())]
    output_of(command)
    files = [folder / f"{num_ranks}_{rank}.json" for rank in range(num_ranks)]
    ranks = [json.loads(file.read_text()) for file in files]
    return dict(zip(legs, zip(*ranks, strict=True), strict=True))


def rows_of(ranks, what="trained"):
    """The rows of each step over all ranks, sorted."""
    return {
        int(step): sorted(row for rank in ranks for row in rank[what][step])
        for step in ranks[0][what]
    }


def counted(*legs):
    return sorted(row for ranks in legs for rows in rows_of(ranks).values() for row in rows)


def test_an_epoch_trains_every_row_once(told):
    """In steps of 12; the last one has 5, and the micro-batches that fill it up count nothing."""
    assert list(range(ROWS)) == counted(told["whole"])
    sizes = {step: len(rows) for step, rows in rows_of(told["whole"]).items()}
    assert {1: 12, 2: 12, 3: 12, 4: 5} == sizes


def test_a_resume_goes_on_behind_the_checkpoint(told):
    assert list(range(ROWS)) == counted(told["begun"], told["resumed"])
    assert rows_of(told["whole"]) == {**rows_of(told["begun"]), **rows_of(told["resumed"])}


def test_another_degree_goes_on_with_the_same_steps(told):
    """Which torchtitan's own loaders refuse."""
    assert list(range(ROWS)) == counted(told["begun"], told["elsewhere"])
    assert rows_of(told["resumed"]) == rows_of(told["elsewhere"])


def test_the_weights_do_not_depend_on_the_degree(told):
    """Nor on padding, nor on the micro-batches that fill a step up."""
    for rank in told["resumed"]:
        assert told["elsewhere"][0]["weights"] == pytest.approx(rank["weights"], abs=1e-6)
        assert told["begun"][0]["weights"] != rank["weights"]


def test_every_validation_has_every_row_once(told):
    """It has one at step 1 and at every second one."""
    for name, steps in [("whole", [1, 2, 4]), ("elsewhere", [4])]:
        expected = {step: list(range(VALIDATION_ROWS)) for step in steps}
        assert expected == rows_of(told[name], "validated")
