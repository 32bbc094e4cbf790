"""What torchrun starts: loader processes are forked by its ranks, and one of these raises."""

from __future__ import annotations

import textwrap

import pytest

from tests.torchrun import run_script

HEAD = """
    import torch
    import torch_distinput as tdi

    tdi.init_distributed(timeout=100)
    strategy = tdi.MultiWorkerMirroredStrategy()
"""


def play(folder, script):
    """Run a script on two ranks; its folder is its first argument."""
    logs, path = folder / "logs", folder / "script.py"
    logs.mkdir()
    path.write_text(textwrap.dedent(HEAD) + textwrap.dedent(script))
    return run_script(logs, 2, path, folder)


@pytest.mark.slow
def test_garbage_in_loader_processes(tmp_path):
    """A forked process must not collect what belongs to the threads of its parent."""
    for number in range(4):
        (tmp_path / f"numbers-{number}.txt").write_text("".join(f"{i}\n" for i in range(100)))
    script = """
    import gc
    import sys

    def collecting(line):
        gc.collect()
        return int(line)

    torch.distributed.barrier()  # leaves objects that hold threads of the group
    files = tdi.FileDataset(f"{sys.argv[1]}/numbers-*.txt").map(collecting)
    files = strategy.distribute_dataset(files, global_batch_size=64, num_workers=1)
    for epoch in range(4):
        print(sum(len(batch) for batch in files), flush=True)
    """
    ended = play(tmp_path, script)
    assert ended.is_well, ended.err
    assert ["200"] * 8 == ended.out.split()


@pytest.mark.slow
def test_a_rank_that_raises_ends_the_job(tmp_path):
    """The survivor's own words name the culprit; the agent reports a failure."""
    script = """
    import sys

    def numbers():
        yield from (torch.tensor(k) for k in range(100_000))

    try:
        for step, batch in enumerate(strategy.distribute_dataset(numbers, global_batch_size=4)):
            if step == 5 and strategy.worker_index == 1:
                sys.exit("the model broke")
    except tdi.PeerFailedError as error:
        print("survivor:", error, flush=True)
        raise
    """
    ended = play(tmp_path, script)
    assert not ended.is_well
    assert "the model broke" in ended.err
