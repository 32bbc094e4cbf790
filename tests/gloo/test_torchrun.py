"""End to end under torchrun: scripts that end in every way, in bounded time."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

LIMIT = 120

HEAD = """
    import torch
    import torch_distinput as tdi

    tdi.init_distributed(timeout=30)
    strategy = tdi.MultiWorkerMirroredStrategy()

    def numbers():
        yield from (torch.tensor(k) for k in range(100_000))

    dataset = strategy.distribute_dataset(numbers, global_batch_size=4)
"""


def torchrun(folder, script, *, ranks=2, limit=LIMIT):
    """Run a script and return the finished process."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(HEAD) + textwrap.dedent(script))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*command, f"--nproc-per-node={ranks}", str(path)],
        capture_output=True, text=True, timeout=limit, check=False, cwd=folder,
    )  # fmt: skip


GARBAGE = """
    import gc

    def collecting(line):
        gc.collect()
        return int(line)

    torch.distributed.barrier()  # leaves objects that hold threads of the group
    files = tdi.FileDataset("numbers-*.txt").map(collecting)
    files = strategy.distribute_dataset(files, global_batch_size=64, num_workers=1)
    for epoch in range(4):
        print(sum(len(batch) for batch in files), flush=True)
"""
EARLY = """
    left, closed, gone = (
        iter(strategy.distribute_dataset(numbers, global_batch_size=4)) for _ in range(3)
    )
    for iterator in (left, closed, gone):
        for _ in range(3):
            next(iterator)
    closed.close()
    del gone, iterator
    print("the last line")  # votes of the first one are under way
    torch.distributed.destroy_process_group()  # a gloo group that is left aborts at exit
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """What a job prints that does one after the other."""
    folder = tmp_path_factory.mktemp("job")
    for number in range(4):
        (folder / f"numbers-{number}.txt").write_text("".join(f"{i}\n" for i in range(100)))
    ended = torchrun(folder, textwrap.dedent(GARBAGE) + textwrap.dedent(EARLY), limit=60)
    assert 0 == ended.returncode, ended.stderr
    return ended.stdout


def test_garbage_in_loader_processes(printed):
    """A forked process must not collect what belongs to the threads of its parent."""
    assert 8 == printed.count("200")  # two ranks may share a line


def test_a_script_that_stops_early_ends(printed):
    """Nothing that reads or votes ahead keeps a process alive, however its iterator was left."""
    assert 2 == printed.count("the last line")


def test_a_rank_that_raises_ends_the_job(tmp_path):
    """The survivor's own words name the culprit; torchrun reports a failure."""
    script = """
    import sys
    try:
        for step, batch in enumerate(dataset):
            if step == 5 and strategy.worker_index == 1:
                sys.exit("the model broke")
    except tdi.PeerFailedError as error:
        print("survivor:", error, flush=True)
        raise
    """
    ended = torchrun(tmp_path, script)
    assert 0 != ended.returncode
    assert "the model broke" in ended.stderr
