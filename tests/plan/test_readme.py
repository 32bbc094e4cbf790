"""The epoch that plan/progress/README.md draws is the one that the code plays."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.plan.epochs import Cluster, Setting, begin, plans_of, play, read, resume
from torch_distinput.plan.progress.place import list_place
from torch_distinput.plan.progress.position import ALL
from torch_distinput.plan.progress.state import to_state

PAGE = Path(__file__).parents[2] / "torch_distinput" / "plan" / "progress" / "README.md"
SETTING = Setting(lengths=(8, 5, 7, 4), size=6)
TWO, THREE, ONE = Cluster(2, 1), Cluster(3, 1), Cluster(1, 1)
NAMES = [f"{file}{row}" for file, count in zip("ABCD", SETTING.lengths, strict=True)
         for row in range(count)]  # fmt: skip


def draw_steps(cluster, before, *, setting=SETTING):
    """A line for each worker: ``|`` between steps, ``||`` between batches."""
    steps_per_batch = 1 if setting.policy.name == "DATA" else cluster.num_workers
    lines = [f"worker {worker}  " for worker in range(cluster.num_workers)]
    done = before.steps_done
    for step in play(setting, cluster, before):
        gap = "" if done == before.steps_done else " || " if done % steps_per_batch == 0 else " | "
        cells = [" ".join(NAMES[row] for row in rows) or "-" for rows in step.rows]
        width = max(map(len, cells))
        lines = [
            f"{line}{gap}{cell:{width}}" for line, cell in zip(lines, cells, strict=True)
        ]
        done = step.after.steps_done
    return "\n".join(line.rstrip() for line in lines)


def draw_streams(cluster, position, *, setting=SETTING):
    """A line for each segment: the files in it, and its numbers."""
    lines = []
    for worker, (stream, plan) in enumerate(
        zip(position.streams, plans_of(setting, cluster, position), strict=True)
    ):
        for segment, reads in zip(stream.segments, plan.segments, strict=True):
            files = reads.shard.select(np.arange(len(setting.lengths)))
            names = " ".join("ABCD"[file] for file in files) or "-"
            count = "ALL" if segment.num_files == ALL else segment.num_files
            owner = f"worker {worker}" if segment is stream.segments[0] else ""
            numbers = f"assignment {segment.assignment}, worker {segment.worker}"
            lines.append(
                f"{owner:10}{names:6}{numbers}, num_files {count}, skip {segment.skip}"
                + (f", start {json.dumps(list_place(segment.start))}" if segment.start else "")
            )
    return "\n".join(lines)


def draw_counts(position):
    """The counts of a position."""
    names = ("steps", "examples", "steps_done", "rows", "files_touched", "reassignments")
    return "\n".join(f"{name:14} {getattr(position, name)}" for name in names)


def draw_state(position):
    """The state, a key a line, and a stream a line."""
    state = {**to_state(position, {}), "recipe": ["..."]}
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in state.items())
    return ("{" + ",\n ".join(lines) + "}").replace("]], [", "]],\n             [")


def blocks():
    """What the page must show, in order."""
    start = begin(SETTING, TWO)
    yield "what they read", draw_streams(TWO, start)
    yield "two workers", draw_steps(TWO, start)
    first = play(SETTING, TWO, start)[0].after
    yield "after step 1", draw_counts(first)
    yield "state after step 1", draw_state(first)
    position = resume(SETTING, THREE, first)
    yield "three workers read", draw_streams(THREE, position)
    yield "what was reassigned", draw_counts(position)
    yield "three workers", draw_steps(THREE, position)
    second = play(SETTING, THREE, position)[1].after
    yield "after step 3", draw_counts(second)
    yield "state after step 3", draw_state(second)
    position = resume(SETTING, ONE, second)
    yield "one worker reads", draw_streams(ONE, position)
    yield "one worker", draw_steps(ONE, position)
    unknown = SETTING._replace(known=False)
    third = play(unknown, ONE, position)[0].after
    yield "a resume point", draw_streams(ONE, third, setting=unknown)
    yield "state after step 4", draw_state(third)


def test_the_page_shows_what_the_code_does():
    """Each block of the page is one of those, in their order."""
    shown = PAGE.read_text().split("```\n")[1::2]
    expected = list(blocks())
    assert len(expected) == len(shown)
    for (name, block), found in zip(expected, shown, strict=True):
        assert f"{block}\n" == found, name


def test_every_row_of_the_drawing_is_delivered_once():
    first, *_ = play(SETTING, TWO, begin(SETTING, TWO))
    second = play(SETTING, THREE, resume(SETTING, THREE, first.after))[:2]
    third = play(SETTING, ONE, resume(SETTING, ONE, second[-1].after))
    rows = [row for step in (first, *second, *third) for own in step.rows for row in own]
    assert list(range(24)) == sorted(rows)


def test_a_resume_point_changes_nothing_but_the_reading():
    """From it fewer rows are passed over, and the same are left."""
    unknown = SETTING._replace(known=False)
    position = begin(SETTING, ONE)
    for step in play(unknown, ONE, position):
        plain = replace(step.after, streams=position.streams)
        (rest,), (all_rows,) = (
            [read(unknown, plan) for plan in plans_of(unknown, ONE, where)]
            for where in (step.after, plain)
        )
        assert [row.number for row in all_rows][-len(rest) :] == [row.number for row in rest]
