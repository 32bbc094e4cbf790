"""Every script of examples/ does on several ranks what it says."""

from __future__ import annotations

import functools
import json
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torch_distinput as tdi
from tests.examples.parameter_server_report import check_report
from tests.examples.scripts import EXAMPLES, play_script, run, run_by_torchrun, run_launcher
from torch_distinput.testing.ranks import run_ranks_outcomes


class TestTrainStdlib:
    @pytest.mark.slow
    @pytest.mark.parametrize("num_ranks", [1, 2])
    def test_learns_and_delivers_every_line_once(self, num_ranks: int, tmp_path: Path) -> None:
        """By torchrun, and alone in this process."""
        by = run if num_ranks == 1 else functools.partial(run_by_torchrun, tmp_path)
        lines = by(num_ranks, "train_stdlib.py", "--max-files=12", "--global-batch-size=32")

        pattern = r"held-out files: (\S+) bits per byte, unigram entropy (\S+)"
        losses = re.fullmatch(pattern, lines[-4])
        assert losses, lines
        assert 0 < float(losses[1]) < float(losses[2]) < 8
        counts = re.fullmatch(r"delivered (\d+) of (\d+) examples", lines[-3])
        assert counts, lines
        assert int(counts[1]) == int(counts[2]) > 1000
        steps = re.fullmatch(r"steps on every rank: (\d+(?: = \d+)*)", lines[-2])
        assert steps, lines
        on_ranks = steps[1].split(" = ")
        assert len(on_ranks) == num_ranks
        assert len(set(on_ranks)) == 1
        assert re.fullmatch(r"waiting for input: \d+\.\d %", lines[-1]), lines

    def test_leaves_out_what_is_not_utf8(self, tmp_path: Path) -> None:
        count_lines = runpy.run_path(str(EXAMPLES / "train_stdlib.py"))["count_lines"]
        path = tmp_path / "x.py"

        for text, expected in [
            ("é\n\nb".encode(), 3),
            ("é\n".encode("latin-1"), None),
            (b"", 0),
            (b"\x0c\r\n", 1),  # a form feed does not end a line
        ]:
            path.write_bytes(text)
            assert count_lines(path) == expected

    def test_reports_lines_that_are_missing_or_came_twice(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The right number of examples is not enough."""
        script = runpy.run_path(str(EXAMPLES / "train_stdlib.py"))
        delivered = script["Delivered"](
            ids=torch.tensor([[0, 0], [1, 1], [1, 1]]), steps=3, seconds=2.0, wait_seconds=0.5
        )
        expected = {Path("a.py"): 1, Path("b.py"): 2}

        wrong = script["report"](tdi.OneDeviceStrategy("cpu"), delivered, expected)

        assert wrong == [
            "b.py, line 1: expected 1 time(s), delivered 0",
            "b.py, line 2: expected 1 time(s), delivered 2",
        ]
        assert capsys.readouterr().out.splitlines() == [
            "delivered 3 of 3 examples",
            "steps on every rank: 3",
            "waiting for input: 25.0 %",
        ]


class TestTrainDigits:
    @staticmethod
    def train(folder: Path, num_ranks: int, *arguments: str) -> tuple[list[float], float]:
        """The loss of each step, and the accuracy."""
        curve = folder / "curve.json"
        run(num_ranks, "train_digits.py", f"--curve={curve}", *arguments)
        written = json.loads(curve.read_text())
        return written["losses"], written["accuracy"]

    @pytest.fixture(scope="class")
    @classmethod
    def alone(cls, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
        """The losses of one process with one device."""
        losses, _ = cls.train(tmp_path_factory.mktemp("alone"), 1)
        return losses

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("num_ranks", "arguments"),
        [
            pytest.param(2, (), marks=pytest.mark.long, id="2 ranks"),  # equal shares
            pytest.param(3, (), id="3 ranks"),  # of 100 rows 34, 33 and 33
            pytest.param(1, ("--replicas=2",), id="2 virtual replicas"),
        ],
    )
    def test_same_losses_on_any_replicas(
        self, alone: list[float], tmp_path: Path, num_ranks: int, arguments: tuple[str, ...]
    ) -> None:
        losses, accuracy = self.train(tmp_path, num_ranks, *arguments)

        assert losses == pytest.approx(alone, rel=0, abs=1e-5)
        assert losses[-1] < losses[0] / 5
        assert accuracy > 0.95


class TestPredictInOrder:
    @pytest.mark.parametrize("num_ranks", [1, 2])
    def test_predictions_come_back_in_the_order_of_the_data(self, num_ranks: int) -> None:
        lines = run(num_ranks, "predict_in_order.py")

        assert lines[0] == f"1797 predictions by {num_ranks} rank(s), in order: True"


class TestPreprocessAndServe:
    @pytest.mark.slow
    def test_what_is_served_prepares_what_training_saw(self, tmp_path: Path) -> None:
        small = ("--max-modules=40", "--epochs=3", f"--out={tmp_path}")
        lines = run(2, "preprocess_and_serve.py", *small)

        scores = re.fullmatch(r"(\d+)% right of (\d+) other functions; (\d+)% .*", lines[-2])
        assert scores, lines
        assert int(scores[2]) > 100
        assert int(scores[1]) > max(int(scores[3]), 100 - int(scores[3])) + 5
        assert lines[-1].startswith("served: the same columns to the bit"), lines
        assert 7 == len(list((tmp_path / "states").iterdir()))
        assert (tmp_path / "served" / "model.pt2").exists()


class TestParameterServer:
    """parameter_server.py, which kills one of its workers; with Ray in tests/integrations."""

    @pytest.mark.slow
    def test_every_example_comes_and_the_killed_worker_comes_back(self):
        lines = run(1, "parameter_server.py", "--num-steps=240")

        check_report(lines, num_steps=240)


class TestParquetInAnObjectStore:
    """train_parquet_s3.py, which brings the store and starts the ranks."""

    @pytest.mark.slow
    def test_every_digit_once_an_epoch(self):
        """On two ranks; it learns."""
        lines = run_launcher("train_parquet_s3.py", "--epochs", "3")
        wanted = r"epoch \d: \d+ steps, (\d+) digits read, (\S+)% right, 0 requests repeated"
        found = [re.fullmatch(wanted, line).groups() for line in lines]
        assert ["1797"] * 3 == [digits for digits, _ in found]
        assert float(found[-1][1]) > 85


class TestResumeElastic:
    """resume_elastic.py, which starts the ranks."""

    @pytest.mark.slow
    def test_one_epoch_over_three_clusters(self):
        """The picture has cells of the ranks of every leg; files that were begun are finished."""
        lines = run_launcher("resume_elastic.py")

        leg = r"leg \d: (\d) rank\(s\), \d+ steps, loss \d+\.\d"
        ranks = [re.fullmatch(leg, line)[1] for line in lines[:3]]
        assert ["2", "3", "1"] == ranks
        cells = [re.fullmatch(r" *\S+\.py ([01abcA]+)", line)[1] for line in lines[4:-2]]
        assert set("01abcA") == set("".join(cells))
        assert any(len(set(row)) > 1 for row in cells)  # a file that two ranks have read
        assert lines[-1].startswith("Each line of each file was trained on once")

    def test_an_epoch_that_is_not_whole_is_reported(self) -> None:
        """The right number of lines is not enough."""
        check = runpy.run_path(str(EXAMPLES / "resume_elastic.py"))["check"]
        files = {Path("a.py"): 1, Path("b.py"): 2}
        good = torch.tensor([[0, 1, 1, 1], [2, 0, 0, 0], [1, 0, 1, 0]])

        assert check(files, good) is None
        assert check(files, good[[0, 1, 1]]) is not None
        assert check(files, good[:2]) is not None
        assert check(files, good[[0, 1, 2, 2]]) is not None


class TestTrainFsdp2:
    """train_fsdp2.py, three times: each part on another mesh."""

    # Four ranks import for long what two have imported; gloo/test_meshes.py has meshes of 2 x 2.
    @pytest.mark.slow
    @pytest.mark.parametrize("width", [1, pytest.param(2, marks=pytest.mark.long)])
    def test_every_digit_once_an_epoch_over_three_meshes(self, tmp_path, width):
        """The second part receives what one rank of each pair reads; the last one is alone."""
        folder = f"--folder={tmp_path}"
        pairs = ("--steps=20", "--tp=2", "--replicate=broadcast")
        parts = [
            run(2, "train_fsdp2.py", folder, "--steps=30"),
            run(2 * width, "train_fsdp2.py", folder, *pairs),
            run(1, "train_fsdp2.py", folder),
        ]

        assert [part[-3] for part in parts] == [
            "2 ranks, dp_shard 2 x tp 1: 30 steps",
            f"{2 * width} ranks, dp_shard {width} x tp 2: 20 steps",
            "1 ranks, dp_shard 1 x tp 1: 19 steps",
        ]
        pattern = r"loss (\S+) -> (\S+); (\S+) % of others right"
        found = [re.fullmatch(pattern, part[-2]) for part in parts]
        assert float(found[-1][2]) < float(found[0][1]) / 5
        assert float(found[-1][3]) > 90
        assert [part[-1].split()[2] for part in parts] == ["1885", "3130", "4311"]
        assert parts[-1][-1] == "trained on 4311 digits of 3 x 1437"


class TestTrainDocuments:
    """train_documents.py, whose ranks are killed."""

    @staticmethod
    def leg(num_ranks: int, folder: Path, *arguments: str) -> list[int | None]:
        """Run some ranks, and return how their processes have ended; None: they have not."""
        asked = (f"--folder={folder}", "--num-files=10", *arguments)
        job = functools.partial(play_script, "train_documents.py", asked)
        return [outcome.exitcode for outcome in run_ranks_outcomes(job, num_ranks)]

    @pytest.mark.slow
    def test_killed_and_resumed_it_trains_as_one_process(self, tmp_path: Path) -> None:
        """Steps after the last checkpoint are trained again."""
        legs, alone = tmp_path / "legs", tmp_path / "alone"
        assert [-signal.SIGKILL] * 2 == self.leg(2, legs, "--kill-at=6")
        for folder in (legs, alone):
            run(1, "train_documents.py", f"--folder={folder}", "--num-files=10")
        rows, expected = (json.loads((part / "rows.json").read_text()) for part in (legs, alone))

        assert [2] * 5 + [1] * (len(rows) - 5) == [len(row["pairs"]) for row in rows]
        report = runpy.run_path(str(EXAMPLES / "train_documents.py"))["report"]
        assert report(rows, expected) < 1e-5
        assert rows[-1]["loss"] < rows[0]["loss"] - 0.5
        for row, same in zip(rows, expected, strict=True):
            assert (row["sources"], row["tokens"]) == (same["sources"], same["tokens"])

    @pytest.mark.long
    def test_three_legs_by_torchrun(self) -> None:
        """As it is started by hand."""
        command = [sys.executable, str(EXAMPLES / "train_documents.py")]
        lines = subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=300
        ).stdout.splitlines()

        assert ["2 rank(s) were killed at step 14", "3 rank(s) were killed at step 27"] == lines[:2]
        assert re.fullmatch(r"1 rank\(s\) trained steps 25 to \d+", lines[2])
        assert float(lines[-1].rpartition(" ")[2]) < 1e-5
