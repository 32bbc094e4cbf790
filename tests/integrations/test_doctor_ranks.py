"""The doctor under torchrun: the ranks of a job bring together what they have seen."""

from __future__ import annotations

from tests.inspect.doctor.scripts import UNEVEN
from tests.torchrun import run_script


def test_ranks_report_together_and_one_that_waits_for_an_ended_one_is_ended(tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(UNEVEN)
    ended = run_script(
        *(tmp_path / "job", 2, "torch_distinput", "doctor", "--patience", "0.5", script)
    )
    assert not ended.is_well
    assert 1 == ended.out.count("torch-distinput doctor"), ended
    assert "Rank 0: came to its end.\nRank 1: waits for ranks that have ended." in ended.out
    assert "an epoch of 9 examples delivers 10. 1 come again" in ended.out
    assert "rank 0 came to the end of its data after 5 steps, rank 1 had 6" in ended.out
    assert "Seen: 3 steps on each of 2 ranks in 1 epoch, 10 rows in all." in ended.out
