"""What differs from TensorFlow on purpose: one table of named rules.

A rule is a pure function of the recorded case: it rewrites the *expected* side into what we
promise. It never sees what was observed. The runner counts the cases that each rule changes.
A word in brackets, such as (Sharding), is the section of docs/semantics.md that has the rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tests.golden import facts, program_rules, spec_rules
from tests.golden.errors import UNFIT_BATCH, accepted, error_of
from tests.golden.expected import (
    Grid,
    each_epoch,
    each_grid,
    each_worker,
    failing,
    failing_after,
    is_empty,
    steps_of,
)
from tests.golden.values import Json, joined, leaves, map_leaves, num_rows, sliced


@dataclass(frozen=True, slots=True)
class Rule:
    """A difference: ``rewrite`` turns TensorFlow's answer into ours, or gives the case back."""

    name: str
    reason: str
    rewrite: Callable[[Json], Json]


# ---- errors


def _file_policy_needs_files(case: Json) -> Json:
    if case["kind"] != "distribute_dataset" or facts.policy(case) != "FILE":
        return case
    return case if facts.finds_reader(case["pipeline"]) else failing(case, ("ValueError",))


def _rows_must_agree(case: Json) -> Json:
    def is_uneven(value: Json) -> bool:
        return len({leaf["s"][0] for leaf in leaves(value)}) > 1

    if case["kind"] not in facts.ITERATION or any(map(error_of, case["expected"])):
        return case
    steps = zip(*map(steps_of, case["expected"]), strict=True)
    for number, workers in enumerate(steps):
        if any(is_uneven(value) for step in workers for value in step):
            return failing_after(case, UNFIT_BATCH, number)
    return case


def _too_few_files_everywhere(case: Json) -> Json:
    errors = [error_of(seen) for seen in case["expected"]]
    too_few = ("TooFewFilesError",)
    return failing(case, too_few) if any(e and accepted(e) == too_few for e in errors) else case


def _errors_reach_all_ranks(case: Json) -> Json:
    """Peers of a failed rank hang or die in TensorFlow."""
    lost = ("ProcessDied", "UnavailableError")
    errors = [error_of(seen) for seen in case["expected"]]
    causes = [accepted(error) for error in errors if error and error.get("type") not in lost]
    if len(causes) in (0, len(case["expected"])):
        return case
    told = {"ours": ["PeerFailedError", *causes[0]]}

    def changed(seen: Json) -> Json:
        error = error_of(seen)
        if error and error.get("type") not in lost:
            return seen
        return {"num_replicas_in_sync": facts.num_in_sync(case), "error": told}

    return each_worker(case, changed)


# ---- steps


def _pieces_rotate(case: Json) -> Json:
    """TensorFlow's first splitter plays the pieces of each own batch unrotated."""
    own_batches = case["kind"] == "distribute_dataset" and not facts.deals_pieces(case)
    if not own_batches or facts.cycles(case) or facts.num_workers(case) == 1:
        return case
    workers, replicas = facts.num_workers(case), facts.replicas_per_worker(case)
    in_sync = workers * replicas

    def rotated(grid: Grid) -> Grid:
        whole = len(grid[0]) // workers * workers  # a batch whose end was not recorded is left out
        return [
            _rotated(steps[:whole], in_sync, worker * replicas, replicas)
            for worker, steps in enumerate(grid)
        ]

    return each_grid(case, rotated)


def _rotated(steps: list[list[Json]], in_sync: int, by: int, replicas: int) -> list[list[Json]]:
    """The same rows of each batch of ``in_sync`` pieces, in sizes rotated left."""
    pieces = [value for step in steps for value in step]
    played: list[Json] = []
    for start in range(0, len(pieces), in_sync):
        batch = pieces[start : start + in_sync]
        sizes = [num_rows(piece) for piece in batch]
        bounds = np.cumsum([0, *sizes[by:], *sizes[:by]]).tolist()
        whole = joined(batch)
        played += [sliced(whole, *pair) for pair in pairwise(bounds)]
    return [played[i : i + replicas] for i in range(0, len(played), replicas)]


def _pieces_in_order(case: Json) -> Json:
    """TensorFlow deals the pieces of a global batch to workers in turn: w, w + W, ..."""
    if case["kind"] != "distribute_dataset" or not facts.deals_pieces(case):
        return case
    workers, replicas = facts.num_workers(case), facts.replicas_per_worker(case)

    def ordered(grid: Grid) -> Grid:
        places = [
            [divmod(w * replicas + r, workers) for r in range(replicas)] for w in range(workers)
        ]
        return [
            [[grid[w][step][r] for r, w in mine] for step in range(len(grid[0]))] for mine in places
        ]

    return each_grid(case, ordered)


def _no_empty_step(case: Json) -> Json:
    def filled(grid: Grid) -> Grid:
        kept = [step for step in range(len(grid[0])) if not all(is_empty(w[step]) for w in grid)]
        return [[worker[step] for step in kept] for worker in grid]

    return each_grid(case, filled) if case["kind"] in facts.ITERATION else case


def _zero_rows_keep_trailing(case: Json) -> Json:
    """TensorFlow's dummies have 0 where a trailing dimension is unknown."""
    firsts = [value for seen in case["expected"] for step in steps_of(seen) for value in step]
    first = next((value for value in firsts if num_rows(value)), None)
    if case["kind"] not in facts.ITERATION or first is None:
        return case

    def changed(seen: Json) -> Json:
        last = first

        def completed(step: list[Json]) -> list[Json]:
            nonlocal last
            last = next((value for value in reversed(step) if num_rows(value)), last)
            return [value if num_rows(value) else _empty_like(value, last) for value in step]

        epochs = [
            {**epoch, "steps": list(map(completed, epoch["steps"]))}
            for epoch in seen.get("epochs", ())
        ]
        return {**seen, "epochs": epochs} if epochs else seen

    return each_worker(case, changed)


def _empty_like(empty: Json, real: Json) -> Json:
    return map_leaves(lambda leaf, like: {**leaf, "s": [0, *like["s"][1:]]}, empty, real)


def _end_is_stop_iteration(case: Json) -> Json:
    def renamed(name: str) -> str:
        return "StopIteration" if name == "OutOfRangeError" else name

    def changed(epoch: Json) -> Json:
        end = {**epoch["end"], "event": renamed(epoch["end"]["event"])}
        past = {"past_end": list(map(renamed, epoch["past_end"]))} if "past_end" in epoch else {}
        return {**epoch, "end": end, **past}

    return each_epoch(case, changed)


# ---- the table; the order matters: errors first, then steps, then what describes them

RULES = (
    Rule(
        "FILE needs files",
        "FILE on a source without files is an error (Sharding)",
        _file_policy_needs_files,
    ),
    Rule(*program_rules.SCALARS),
    Rule(
        "rows must agree",
        "the leaves of a batch have one number of rows (Zero rows)",
        _rows_must_agree,
    ),
    Rule(
        "too few files fail everywhere",
        "on every rank, before the first step (Sharding)",
        _too_few_files_everywhere,
    ),
    Rule(
        "errors reach all ranks",
        "no rank waits for one that failed (Failure)",
        _errors_reach_all_ranks,
    ),
    Rule(
        "pieces rotate",
        "a worker's own batches are cut rotated, by every splitter (Sharding)",
        _pieces_rotate,
    ),
    Rule(
        "pieces in order",
        "under DATA piece p goes to replica p in sync (Sharding)",
        _pieces_in_order,
    ),
    Rule(
        "no empty step",
        "a step in which no replica has an example is not delivered (Splitting)",
        _no_empty_step,
    ),
    *(Rule(*row) for row in program_rules.FROM_FUNCTION),
    Rule(
        "zero rows keep trailing",
        "a zero-row batch looks like the last real one (Zero rows)",
        _zero_rows_keep_trailing,
    ),
    Rule("end is StopIteration", "get_next() ends as next() does (Steps)", _end_is_stop_iteration),
    *(Rule(*row) for row in spec_rules.ROWS),
)


def rewritten(case: Json) -> tuple[Json, list[str]]:
    """What we promise for a case, and the names of the rules that changed it."""
    touched = []
    for rule in RULES:
        after = rule.rewrite(case)
        if after != case:
            touched.append(rule.name)
        case = after
    return case, touched
