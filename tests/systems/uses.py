"""What must work without forks, shared memory and signals, and what must say that it needs them."""

from __future__ import annotations

import importlib
import logging
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

import torch_distinput as tdi
from torch_distinput.testing import run_ranks, simulate

FRAMEWORKS = {"integrations"}


def import_everything() -> None:
    """Every module but those that need another library."""
    top = Path(str(tdi.__file__)).parent
    for path in sorted(top.rglob("*.py")):
        parts = path.relative_to(top).with_suffix("").parts
        if parts[-1] != "__main__" and parts[0] not in FRAMEWORKS:
            if "ray" in parts[-1] or parts[-1] == "tqdm_bar":
                continue
            importlib.import_module(".".join(("torch_distinput", *parts)))


def play_columns() -> None:
    """One worker; also resumed."""
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
        torch.arange(10), global_batch_size=4, shuffle=True
    )
    steps = [step.batch.tolist() for step in dataset.steps()]
    assert list(range(10)) == sorted(row for step in steps for row in step)
    dataset.set_epoch(0)
    state = next(dataset.steps()).state_dict()
    dataset.load_state_dict(state)
    assert steps[1:] == [batch.tolist() for batch in dataset]


def play_files() -> None:
    """Two simulated workers that vote, and threads that decode."""
    with tempfile.TemporaryDirectory() as folder:
        for name, lines in (("a", "012"), ("b", "34")):
            Path(folder, name).write_text("\n".join(lines))

        def play(strategy: tdi.Strategy) -> list[str]:
            files = tdi.FileDataset(str(Path(folder, "*"))).map(str.strip)
            dataset = strategy.distribute_dataset(files, global_batch_size=2, num_threads=2)
            return [line for batch in dataset for line in batch]

        assert [["0", "1", "2"], ["3", "4"]] == simulate(play, num_workers=2)


def play_virtual_replicas() -> None:
    """Several replicas in this process."""
    strategy = tdi.MirroredStrategy(["cpu"] * 3)
    dataset = strategy.distribute_dataset(torch.arange(7.0), global_batch_size=7)
    (batch,) = dataset
    total = strategy.reduce("sum", strategy.run(torch.sum, args=(batch,)), axis=None)
    assert 21.0 == total.item()


def show() -> None:
    """A bar, and a picture."""
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(torch.ones(4), global_batch_size=2)
    assert 2 == len(list(tdi.progress(dataset)))
    assert "DistributedDataset" in dataset._repr_html_()


def look_up_words() -> None:
    """A vocabulary of a file is kept for all processes of the machine."""
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        Path(folder, "words").write_text("a\nb\n")
        layer = tdi.preprocessing.StringLookup(vocabulary=str(Path(folder, "words")))
        assert [2, 1, 0] == layer(["b", "a", "c"]).tolist()
        tempfile.tempdir = None


def read_with_processes() -> None:
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
        torch.ones(4), global_batch_size=2, num_workers=1, collate_fn=torch.stack
    )
    list(dataset)


def run_real_ranks() -> None:
    run_ranks(len, 2)  # type: ignore[arg-type]


def start_local_engine() -> None:
    tdi.coordinator.LocalEngine()


WORK = [import_everything, play_columns, play_files, play_virtual_replicas, show, look_up_words]
NEED_MORE: dict[str, dict[Callable[[], None], str]] = {
    "win32": {
        read_with_processes: "for num_workers=1, got win32. Pass num_threads= instead",
        run_real_ranks: "for run_ranks, got win32. Test with torch_distinput.testing.simulate",
        start_local_engine: "for LocalEngine, got win32. Use engine=",
    },
    "darwin": {start_local_engine: "for LocalEngine, got darwin. Use engine="},
}
"""What a system has not got enough for, and what is said then."""


def run_all() -> None:
    """Run both, and print the name of each that ended as it should."""
    logging.getLogger("torch_distinput").addHandler(logging.NullHandler())
    for use in WORK:
        use()
        print(use.__name__)
    for use, expected in NEED_MORE[sys.platform].items():
        try:
            use()
        except tdi.ConfigurationError as error:
            assert expected in str(error), error  # noqa: PT017
            print(use.__name__)
        else:
            print(use.__name__, "worked")
