"""Jobs whose ranks are killed: what was trained on, as checkpoints have it, is each epoch once.

A job is torchrun's agent with ranks of ``restart_script.py``. A rank that is killed, or whose
loader process is, breaks the job; the agent starts all ranks again, or the test does with another
number of them. That torchrun itself restarts ranks is seen in ``test_init_distributed.py``.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import torch_distinput as tdi
from tests.gloo import restart_script
from tests.gloo.restart_script import EPOCHS, NUM_EXAMPLES, SAVE_EVERY, Job
from tests.torchrun import run_job

FILE_SIZES = [9, 20, 0, 14, 11, 6, 23]  # of NUM_EXAMPLES in all


@pytest.fixture
def folder(tmp_path):
    """A folder with the files."""
    assert sum(FILE_SIZES) == NUM_EXAMPLES
    numbers = iter(range(NUM_EXAMPLES))
    for place, size in enumerate(FILE_SIZES):
        text = "".join(f"{next(numbers)}\n" for _ in range(size))
        (tmp_path / f"data-{place}.txt").write_text(text)
    return tmp_path


def torchrun(job, ranks, *, restarts=0):
    """Run a job; returns whether it ended well, and what the ranks printed."""
    logs = Path(job.folder, f"logs-{job.run}")
    logs.mkdir()
    ended = run_job(logs, ranks, restart_script.be_rank, job, restarts=restarts)
    return ended.is_well, ended.out + ended.err


def broken(folder, seed, *, ranks, **keywords):
    """A job in which a random rank is killed at a random moment."""
    chance = random.Random(seed)
    moment = chance.choice(["before", "after", "saving"])
    victim, step = chance.randrange(ranks), chance.randrange(2, 21)
    if moment == "saving":  # only rank 0 does, in some steps
        victim, step = 0, SAVE_EVERY * math.ceil(step / SAVE_EVERY)
    return Job(folder=str(folder), victim=victim, step=step, moment=moment, **keywords)


def notes_of(folder):
    """For each attempt in order the step it went on from, and its ranks' [step, epoch, numbers]."""
    attempts = {}
    for path in folder.glob("notes-*.jsonl"):
        _, run, attempt, _ = path.stem.split("-")
        first, *steps = map(json.loads, path.read_text().splitlines())
        starts, notes = attempts.setdefault((int(run), int(attempt)), (set(), []))
        starts.add(first)
        notes += steps
    assert all(len(starts) == 1 for starts, _ in attempts.values()), "the ranks start together"
    return [(*starts, notes) for _, (starts, notes) in sorted(attempts.items())]


def check(folder, *, attempts=2):
    """Each epoch was trained on once, less what no checkpoint held when an attempt broke."""
    played = notes_of(folder)
    assert attempts == len(played)
    kept = []
    for start, notes in played:
        kept = [note for note in kept if note[0] <= start] + notes
    assert {step for step, _, _ in kept} == set(range(1, max(step for step, _, _ in kept) + 1))
    for epoch in range(EPOCHS):
        numbers = Counter(n for _, of, numbers in kept if of == epoch for n in numbers)
        assert numbers == Counter(range(NUM_EXAMPLES)), f"epoch {epoch}"
    weights = json.loads((folder / "weights.json").read_text())
    assert all(map(math.isfinite, weights))
    return weights


def weights_alone():
    """What one process that nobody kills trains from the indexed source."""
    model, optimizer = restart_script.new_model()
    data = restart_script.distributed(
        Job(folder="", source="indexed"), tdi.OneDeviceStrategy("cpu")
    )
    for _ in range(EPOCHS):
        for numbers in data:
            optimizer.zero_grad()
            restart_script.losses_of(model, numbers).mean().backward()
            optimizer.step()
    return torch.cat([each.detach().flatten() for each in model.parameters()]).tolist()


def restart(folder, job, ranks):
    """Break a job, and let torchrun start it again."""
    is_well, printed = torchrun(job, ranks, restarts=1)
    assert is_well, printed
    return check(folder)


def go_on(folder, job, ranks, others):
    """Break a job, and go on with another number of ranks."""
    is_well, printed = torchrun(job, ranks)
    assert not is_well, printed
    is_well, printed = torchrun(replace(job, run=1, victim=None), others)
    assert is_well, printed
    return check(folder)


@pytest.mark.slow
def test_files_after_a_restart(folder):
    """FILE, while a checkpoint is written: the one before it holds."""
    restart(folder, broken(folder, 5, ranks=2), 2)


@pytest.mark.slow
def test_examples_by_index_with_another_number_of_ranks(folder):
    """DATA: the same order goes on, so that the model is that of a single process."""
    weights = go_on(folder, broken(folder, 1, ranks=2, source="indexed"), 2, 3)
    assert weights == pytest.approx(weights_alone(), rel=0, abs=1e-9)


@pytest.mark.slow
def test_a_killed_loader_process(folder):
    """It ends its rank, not only itself; nothing of what it had read ahead is lost."""
    job = Job(folder=str(folder), num_workers=1, victim=1, step=7, moment="loader")
    restart(folder, job, 2)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("source", ["files", "indexed"])
def test_random_kills(folder, source, seed):
    """Any rank, at any moment, on one to four ranks; restarted by torchrun or as another job."""
    ranks = 1 + seed % 4
    job = broken(folder, 100 + seed, ranks=ranks, source=source, num_workers=seed % 3)
    others = [ranks, 1, 4, 3][seed // 2]
    if others == ranks:
        weights = restart(folder, job, ranks)
    else:
        weights = go_on(folder, job, ranks, others)
    if source == "indexed":
        assert weights == pytest.approx(weights_alone(), rel=0, abs=1e-9)
