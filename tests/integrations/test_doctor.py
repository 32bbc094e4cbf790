"""The doctor under torchrun, and what it says of loaders that frameworks have made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.commands import output_of
from tests.inspect.doctor.scripts import ACCELERATE, LIGHTNING, UNEVEN
from tests.torchrun import Ended, run_script


def run_doctor(folder: Path, script: str, *options: str) -> Ended:
    file = folder / "train.py"
    file.write_text(script)
    return run_script(folder / "job", 2, "torch_distinput", "doctor", *options, file)


def test_ranks_report_together_and_one_that_waits_for_an_ended_one_is_ended(tmp_path) -> None:
    ended = run_doctor(tmp_path, UNEVEN, "--patience", "0.5")
    assert not ended.is_well
    assert 1 == ended.out.count("torch-distinput doctor"), ended
    assert "Rank 0: ran to the end.\nRank 1: waited for ranks that had ended." in ended.out
    assert "an epoch of 9 examples delivers 10. 1 comes again" in ended.out
    assert "rank 0 came to the end of its data after 5 steps, rank 1 had 6" in ended.out
    assert "Seen: 3 steps on each of 2 ranks in 1 epoch, 10 rows in all." in ended.out


def test_a_rank_that_has_no_loader_is_well_when_the_others_were_stopped(tmp_path) -> None:
    """Accelerate's dispatcher: rank 0 reads for all.

    By torchrun's command: beside a rank that leaves its process at once, the agent of
    ``run_script`` lets none end.
    """
    plain, sized = "Accelerator(cpu=True)", ACCELERATE.replace("SIZE", "64")
    dispatching = sized.replace(plain, "Accelerator(cpu=True, dataloader_config=config)")
    config = "config = accelerate.DataLoaderConfiguration(dispatch_batches=True)"
    file = tmp_path / "train.py"
    file.write_text(f"import accelerate\n\n{config}\n{dispatching}")
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    doctor = ("-m", "torch_distinput", "doctor", "--steps", "4", "--patience", "0.5", file)
    out = output_of([*torchrun, *doctor])
    assert "Rank 0: stopped after 4 steps, as asked." in out
    assert "Rank 1: waited for ranks that were stopped, as asked." in out


@pytest.mark.parametrize(
    ("script", "size", "found"),
    [
        (ACCELERATE, 64, "Found nothing"),
        (ACCELERATE, 61, "an epoch of 61 examples delivers 64. 3 come again, because Accelerate"),
        (LIGHTNING, 64, "Found nothing"),
        (LIGHTNING, 61, "an epoch of 61 examples delivers 62. 1 comes again, because Distributed"),
    ],
)
def test_what_a_framework_makes_of_a_loader_is_seen(script, size, found, tmp_path) -> None:
    """Two epochs of a shuffled loader, of which each framework tells the sampler the epoch."""
    ended = run_doctor(tmp_path, script.replace("SIZE", str(size)))
    assert ended.is_well, ended.err
    assert found in ended.out
    assert ended.out.count("\n1. ") == (size == 61)
    assert "\n2. " not in ended.out
