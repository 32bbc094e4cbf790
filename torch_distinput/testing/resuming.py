"""Restore at every position: the oracle for states."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch_distinput.data.batch import rows
from torch_distinput.data.batch.fingerprint import examine
from torch_distinput.testing.simulated import simulate

if TYPE_CHECKING:
    from torch_distinput.distribute.dataset import DistributedDataset
    from torch_distinput.distribute.strategy import Strategy

Cluster = tuple[int, int]


def assert_resumes_everywhere(
    make_dataset: Callable[[Strategy], DistributedDataset],
    *,
    num_workers: int = 2,
    replicas_per_worker: int = 1,
    elsewhere: Sequence[Cluster] = ((1, 1), (3, 2)),
) -> None:
    """Save after each step of an epoch, restore, and compare the rest with what was to come.

    On the same cluster the rest must be the same batches. ``elsewhere``, if all workers read one
    stream (``AutoShardPolicy.DATA``), it must be the same examples in the same order (with
    ``balance``: in the same steps); if files are dealt out, each example that was not delivered,
    once. So must the rest of that rest be, from its
    middle on, back on the first cluster.

    Args:
        make_dataset: from a strategy to a dataset; called anew for each run, on simulated workers.
        num_workers: of the cluster that saves.
        replicas_per_worker: of the cluster that saves.
        elsewhere: clusters to go on with, as pairs of these two numbers; none for sources that
            cannot change it, and for files that are dealt out with ``drop_last``: how many workers
            there are decides there which examples are left out.

    Raises:
        AssertionError: names the position, the cluster and the difference. Also for an epoch that
            proves nothing: one without steps, and one of examples that cannot be compared.
    """
    here = (num_workers, replicas_per_worker)
    whole = _play(make_dataset, here)
    _check_proof(whole)
    for position, state in enumerate(whole.states):
        rest = _play(make_dataset, here, state)
        expected = [worker[position:] for worker in whole.workers]
        if rest.workers != expected:
            msg = f"{_place(position, here, here)}: {_first_difference(expected, rest.workers)}"
            raise AssertionError(msg)
        for there in elsewhere:
            _check_elsewhere(make_dataset, whole, position, (here, there))


@dataclass(frozen=True, slots=True)
class _Played:
    """Per worker, step and replica the fingerprints of the examples; the state before each step.

    ``is_dealt``: by what they cost. Then only the order of steps is that of one stream.
    """

    workers: list[list[list[list[int]]]]
    states: list[str]
    is_dealt: bool
    unchecked: frozenset[str]

    def examples(self, start: int = 0, stop: int | None = None) -> list[int]:
        """All examples of some steps, step by step, in the order of the replicas."""
        steps = zip(*(worker[start:stop] for worker in self.workers), strict=True)
        flat = [[one for worker in step for batch in worker for one in batch] for step in steps]
        return [one for step in flat for one in (sorted(step) if self.is_dealt else step)]


def _play(
    make_dataset: Callable[[Strategy], DistributedDataset],
    cluster: Cluster,
    state: str | None = None,
) -> _Played:
    unchecked: set[str] = set()

    def work(strategy: Strategy) -> tuple[list[list[list[int]]], list[str], bool]:
        dataset = make_dataset(strategy)
        if state is not None:
            dataset.load_state_dict(json.loads(state))
        states, steps = [json.dumps(dataset.state_dict())], []
        for step in (iterator := iter(dataset)):
            batches = zip(
                strategy.local_results(step), iterator.last_step.local_counts, strict=True
            )
            steps.append([_fingerprints(batch, count, unchecked) for batch, count in batches])
            states.append(json.dumps(dataset.state_dict()))
        return steps, states, iterator.stats().balance is not None

    results = simulate(work, num_workers=cluster[0], replicas_per_worker=cluster[1])
    workers, states, dealt = zip(*results, strict=True)
    for number, said in enumerate(zip(*states, strict=True)):
        if len(set(said)) > 1:
            msg = f"The states after {number} steps differ between the workers: {sorted(set(said))}"
            raise AssertionError(msg)
    return _Played(list(workers), states[0], any(dealt), frozenset(unchecked))


def _fingerprints(batch: Any, count: int, unchecked: set[str]) -> list[int]:
    """Of the examples: padding comes after them."""
    prints = [examine(example) for example in islice(rows.iterate_rows(batch), count)]
    unchecked.update(*(found.unchecked for found in prints))
    return [found.number for found in prints]


def _check_proof(whole: _Played) -> None:
    """Refuse an epoch with which any dataset would pass."""
    if not any(whole.workers):
        msg = (
            "Expected a dataset with some steps, but it delivers none: there is no position to "
            "resume at. Is it empty, or does drop_last leave out all of it?"
        )
        raise AssertionError(msg)
    if whole.unchecked:
        msg = (
            f"The examples hold objects of class {', '.join(sorted(whole.unchecked))}, which "
            "cannot be compared: they are not arrays and cannot be pickled, or are too large, or "
            "look different each time. Map them to arrays, numbers or strings for this test."
        )
        raise AssertionError(msg)


def _first_difference(expected: list[Any], got: list[Any]) -> str:
    counts = len(expected[0]), len(got[0])
    if counts[0] != counts[1]:
        return f"expected {counts[0]} more steps, got {counts[1]}."
    step, worker = next(
        (step, worker)
        for step in range(counts[0])
        for worker in range(len(expected))
        if expected[worker][step] != got[worker][step]
    )
    return (
        f"step {step} after it is not the same on worker {worker}. Are the examples the same "
        "whenever they are read?"
    )


def _check_elsewhere(
    make_dataset: Callable[[Strategy], DistributedDataset],
    whole: _Played,
    position: int,
    clusters: tuple[Cluster, Cluster],
) -> None:
    rest = _play(make_dataset, clusters[1], whole.states[position])
    where = _place(position, *clusters)
    _compare(whole, position, rest.examples(), where)
    middle = len(rest.states) // 2
    back = _play(make_dataset, clusters[0], rest.states[middle])
    got = [*rest.examples(0, middle), *back.examples()]
    _compare(whole, position, got, f"{where}, and back after {middle} steps")


def _compare(whole: _Played, position: int, got: list[int], where: str) -> None:
    expected = whole.examples(position)
    lost = list((Counter(expected) - Counter(got)).elements())
    repeated = list((Counter(got) - Counter(expected)).elements())
    policy = dict(json.loads(whole.states[position])["recipe"]).get("auto_shard_policy")
    if lost or repeated:
        cause = (
            " With drop_last, each worker leaves out the rest of its own files: which examples "
            "these are depends on the number of workers. Pass elsewhere=() then."
        )
        msg = (
            f"{where}: {len(lost)} examples are lost and {len(repeated)} repeated."
            f"{cause if policy == 'file' else ''}"
        )
        raise AssertionError(msg)
    if policy == "data" and got != expected:
        msg = f"{where}: the rest of the epoch comes in another order."
        raise AssertionError(msg)


def _place(position: int, here: Cluster, there: Cluster) -> str:
    return (
        f"Saved after {position} steps on {here[0]} x {here[1]} replicas, restored on {there[0]} "
        f"x {there[1]}"
    )
