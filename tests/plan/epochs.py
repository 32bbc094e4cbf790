"""Epochs of small files, played worker beside worker by arithmetic alone.

What :mod:`torch_distinput.plan` decides is asked of it; what a reader does with that is modelled
here in the plainest way: a file is a list of rows, and a stream is a list of its rows.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from torch_distinput.options import AutoShardPolicy, Rebatch
from torch_distinput.plan.assignment.batching import Splitter
from torch_distinput.plan.assignment.topology import Topology
from torch_distinput.plan.progress.delivered import DeliveryCounter
from torch_distinput.plan.progress.end_of_data import Outcome, Vote, VoterState, decide
from torch_distinput.plan.progress.place import Place
from torch_distinput.plan.progress.position import (
    Position,
    ResumePoint,
    begin_epoch,
    make_layout,
)
from torch_distinput.plan.progress.route import ReadPlan, Route
from torch_distinput.plan.progress.schedule import Schedule

FILE, DATA, OFF = AutoShardPolicy.FILE, AutoShardPolicy.DATA, AutoShardPolicy.OFF


class Cluster(NamedTuple):
    """Workers, and the replicas of each."""

    num_workers: int
    num_replicas: int


CLUSTERS = [Cluster(*counts) for counts in itertools.product((1, 2, 3), (1, 2))]


class Setting(NamedTuple):
    """What stays the same through an epoch.

    ``known``: the lengths of files are known before they are read; else workers vote.
    """

    lengths: tuple[int, ...]
    policy: AutoShardPolicy = FILE
    rebatch: Rebatch = Rebatch.SPLIT
    size: int = 4
    known: bool = True
    drop_last: bool = False

    @property
    def num_rows(self) -> int:
        """Rows are numbered from 0 through all files."""
        return sum(self.lengths)


class Row(NamedTuple):
    """A row of a worker's stream, and where it stands.

    ``num_touched``: how many files of the last segment it and the rows before it are from.
    """

    number: int
    num_touched: int
    segment: int
    file: int
    offset: int


class LocalStep(NamedTuple):
    """What one worker brings to a step."""

    rows: tuple[int, ...]
    num_touched: int = 0
    resume_point: ResumePoint | None = None


class Played(NamedTuple):
    """One step in sync: the rows of each worker, and where the epoch stands after it."""

    rows: tuple[tuple[int, ...], ...]
    after: Position


@cache
def routes_of(setting: Setting, cluster: Cluster) -> tuple[Route, ...]:
    """How each worker reads."""
    return tuple(
        Route(
            splitter=Splitter(
                topology=Topology(
                    num_workers=cluster.num_workers,
                    replicas_per_worker=cluster.num_replicas,
                    worker_index=worker,
                ),
                rebatch=setting.rebatch,
                global_batch_size=setting.size,
                shared=setting.policy is DATA,
            ),
            policy=setting.policy,
            has_parts=True,
        )
        for worker in range(cluster.num_workers)
    )


def begin(setting: Setting, cluster: Cluster) -> Position:
    """The beginning of an epoch."""
    layout = make_layout(routes_of(setting, cluster)[0].splitter)
    return begin_epoch(0, layout, 1 if setting.policy is DATA else cluster.num_workers)


def read(setting: Setting, plan: ReadPlan) -> list[Row]:
    """The rows of a plan, without those that its segments pass over."""
    return list(_read(setting.lengths, plan.segments))


@lru_cache(maxsize=1 << 14)
def _read(lengths, segments):
    firsts = [0, *itertools.accumulate(lengths)]
    last = segments[-1].number if segments else 0
    found, owed = [], 0
    for segment in segments:
        files = segment.shard.select(np.arange(len(lengths))).tolist()
        first = segment.start.number("number") if segment.start else 0
        rows = [
            Row(firsts[file] + offset, index + 1 if segment.number == last else 0,
                segment.number, index, offset)
            for index, file in enumerate(files[first:], first)
            for offset in range(lengths[file])
        ]  # fmt: skip
        owed += segment.skip
        found += rows[owed:]
        owed = max(0, owed - len(rows))
    return tuple(found)


def plans_of(setting: Setting, cluster: Cluster, position: Position) -> list[ReadPlan]:
    """What each worker reads from a position on."""
    return [
        route.plan_reads(position, route.splitter.steps_per_batch)
        for route in routes_of(setting, cluster)
    ]


def rest_of(setting: Setting, cluster: Cluster, position: Position) -> list[list[int]]:
    """What each worker has still to deliver; under DATA the first stands for all."""
    plans = plans_of(setting, cluster, position)
    return [
        [row.number for row in read(setting, plan)[rows - plan.row :]]
        for plan, rows in zip(plans, position.rows, strict=False)
    ]


def resume(setting: Setting, cluster: Cluster, position: Position) -> Position:
    """Go on with a cluster; how many files are touched is told by the rows, where it must be."""
    route = routes_of(setting, cluster)[0]
    if route.lacks_files_touched(position) and not position.files_touched:
        position = replace(position, files_touched=touched_by(setting, position))
    return route.resume(position)


@lru_cache(maxsize=8)
def touched_by(setting: Setting, position: Position) -> tuple[int, ...]:
    """How many files of its last segment each worker has touched, as the rows tell it."""
    before = Cluster(position.layout.num_workers, position.layout.replicas_per_worker)
    return tuple(
        count_touched(setting, plan, rows)
        for plan, rows in zip(plans_of(setting, before, position), position.rows, strict=True)
    )


def count_touched(setting: Setting, plan: ReadPlan, num_rows: int) -> int:
    """How many files of its last segment a worker has touched when so many rows are delivered."""
    *earlier, own = plan.segments
    rows_before = sum(
        len(read(setting, replace(plan, segments=(replace(segment, skip=0),)))) - segment.skip
        for segment in earlier
    )
    num_own = num_rows - plan.row - rows_before + own.skip
    rows = read(setting, replace(plan, segments=(replace(own, skip=0),)))[: max(0, num_own)]
    return rows[-1].num_touched if rows else 0


def play(setting: Setting, cluster: Cluster, before: Position, pace: int = 2) -> list[Played]:
    """All steps from a position of this cluster on.

    ``pace``: so many steps of a worker are ready whenever it votes.
    """
    plans = plans_of(setting, cluster, before)
    if setting.known:
        return list(_play_known(setting, cluster, before, plans))
    return list(_play_voted(setting, cluster, before, plans, pace))


def _play_known(setting, cluster, before, plans):
    """By schedule: each worker by its own, and all must come to the same position."""
    streams = [read(setting, plan) for plan in plans]
    plan = plans[0]
    lengths = tuple(
        one.row + len(rows)
        for one, rows in zip(plans[: len(before.streams)], streams, strict=False)
    )
    schedules = [
        Schedule(
            splitter=route.splitter,
            lengths=lengths,
            drop_last=setting.drop_last,
            steps_done=before.steps_done,
        )
        for route in routes_of(setting, cluster)
    ]
    steps = [list(schedule.iterate_steps()) for schedule in schedules]
    position = before
    for number, parts in enumerate(zip(*steps, strict=True)):
        (total,) = {part.num_examples for part in parts}
        (done,) = {part.steps_done for part in parts}
        (delivered,) = {schedule.count_delivered(done) for schedule in schedules}
        rows = tuple(
            tuple(row.number for row in stream[part.start - plan.row :][: sum(part.sizes)])
            for stream, part in zip(streams, parts, strict=True)
        )
        assert total == sum(map(len, rows)) > 0
        position = replace(
            before,
            steps=before.steps + number + 1,
            examples=position.examples + total,
            steps_done=done,
            rows=delivered,
            files_touched=(),
        )
        yield Played(rows, position)
    if not before.steps_done:
        assert {len(own) for own in steps} == {schedules[0].num_left}


def _play_voted(setting, cluster, before, plans, pace):
    """By votes: all workers vote on what each has ready, until all have ended."""
    routes, shared = routes_of(setting, cluster), setting.policy is DATA
    waiting = [cut(setting, route, plan) for route, plan in zip(routes, plans, strict=True)]
    counter = DeliveryCounter(
        before,
        cluster.num_workers,
        shared=shared,
        steps_per_batch=routes[0].splitter.steps_per_batch,
    )
    position, outcome = before, None
    while outcome is not Outcome.ENDED:
        votes = [vote(own, pace + worker) for worker, own in enumerate(waiting)]
        verdict = decide(votes, shared=shared)
        outcome = verdict.outcome
        num_steps = len(verdict.totals)
        after_steps = counter.add_round(votes, num_steps)
        for step, total in enumerate(verdict.totals):
            rows = tuple(own[step].rows if step < len(own) else () for own in waiting)
            assert total == sum(map(len, rows))
            if total:
                position = replace(
                    after_steps[step].to_position(before, shared=shared),
                    steps=position.steps + 1,
                    examples=position.examples + total,
                )
                yield Played(rows, position)
        waiting = [own[num_steps:] for own in waiting]
        for own, one in zip(waiting, votes, strict=True):  # what was told is not told again
            ready = len(one.counts) - num_steps
            for step in range(ready):
                own[step] = own[step]._replace(resume_point=None)


def vote(waiting: list[LocalStep], pace: int) -> Vote:
    """The word of a worker that has some steps ready."""
    ready = waiting[:pace]
    return Vote(
        state=VoterState.ENDED if len(ready) == len(waiting) else VoterState.RUNNING,
        counts=tuple(len(step.rows) for step in ready),
        files_touched=tuple(step.num_touched for step in ready),
        resume_points=tuple(step.resume_point for step in ready if step.resume_point),
    )


def cut(setting: Setting, route: Route, plan: ReadPlan) -> list[LocalStep]:
    """This worker's steps of its rows, batch by batch."""
    found: list[LocalStep] = []
    splitter, first_step = route.splitter, plan.step
    bounds = splitter.bounds
    rows = read(setting, plan)[bounds.begin(plan.batch) - plan.row :]
    for batch in itertools.count(plan.batch):
        own, rows = rows[: setting.size], rows[setting.size :]
        if not own or (setting.drop_last and len(own) < setting.size):
            return found
        first = own[0]
        point = ResumePoint(
            batch=batch,
            row=bounds.begin(batch) - first.offset,
            segment=first.segment,
            start=Place("partition", (("number", first.file),)),
        )
        for piece in splitter.cut(len(own))[first_step:]:
            mine = tuple(row.number for row in own[piece.start : piece.stop])
            found.append(LocalStep(mine, own[-1].num_touched, point))
        first_step = 0
    raise AssertionError
