"""Do all workers have the same dataset, and batches of one structure and dtype?

What spot checks found is compared here, and the first batch of each worker. Each keeps to the kinds
of its first batch (:class:`Shapes` sees to it), so that no later one needs to be compared. The
first steps of partners, ranks that get the same data, are the same.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence

from torch_distinput.communicator import named_workers
from torch_distinput.data.batch.spec import name_difference
from torch_distinput.data.sources.spot_check import UNKNOWN, Fingerprints
from torch_distinput.errors import MismatchError, refer

_log = logging.getLogger(__name__)
_NUMBERS = frozenset({"torch.bool", "torch.int64", "torch.float64"})
"""What plain numbers of Python become: whether all are whole depends on where a batch was cut."""


def find_difference(shown: Sequence[Fingerprints]) -> tuple[int, list[int]] | None:
    """The first example that is not the same on all workers, and the workers that differ.

    Args:
        shown: for each worker the fingerprints of the same examples; nothing of one that has none.

    Returns:
        The place of the example, and the workers whose leaves differ from those of the lowest
        worker that knows them; None if there is no such example.
    """
    known = {worker: fingerprints for worker, fingerprints in enumerate(shown) if fingerprints}
    for place, examples in enumerate(zip(*known.values(), strict=True)):
        for leaf in zip(*(example for example in examples if example), strict=False):
            owners = [worker for worker, example in zip(known, examples, strict=True) if example]
            told = {w: found for w, found in zip(owners, leaf, strict=True) if found != UNKNOWN}
            first = next(iter(told.values()), UNKNOWN)
            odd = [worker for worker, found in told.items() if found != first]
            if odd:
                return place, odd
    return None


def confirm(before: list[int], again: list[int]) -> list[int]:
    """What is still the same after many looks."""
    if len(before) != len(again):
        return []
    return [new if new == old else UNKNOWN for old, new in zip(before, again, strict=True)]


def refuse_other_data(shown: Sequence[Fingerprints], index: int, name: str) -> None:
    """Refuse an example that still differs between workers, on all of them.

    Args:
        shown: for each worker its fingerprints, as those of the only example.
        index: which example it is.
        name: of the source.

    Raises:
        MismatchError: names the workers.
    """
    found = find_difference(shown)
    if found is not None:
        msg = (
            "Expected the same data on all workers, because under AutoShardPolicy.DATA each "
            f"delivers its own part of the whole, but example {index} of {name} on "
            f"{named_workers(found[1])} is not that of worker 0. Was the dataset split by rank "
            "before (a Subset, split_dataset_by_node, files of this rank's)? Then pass the "
            "whole of it. Is it made of random numbers? Then seed them alike on all ranks. Does "
            "it contain the name or number of the rank, its process or its machine? Then leave "
            "that out. For data that differs between ranks on purpose, use "
            'distribute_datasets_from_function, or auto_shard_policy="off".'
        )
        raise refer(MismatchError(msg), "docs/errors.md#the-data-differs-between-ranks")


def name_change(
    before: Mapping[str, str], now: Mapping[str, str], *, has_one_kind: bool
) -> tuple[str, str] | None:
    """What two batches have where their kinds differ first; None where they may be as they are.

    Args:
        before: the kinds of one batch, by the names of leaves and containers.
        now: those of the other.
        has_one_kind: we make the batches, of examples: nothing may differ. Batches of the user's,
            or of a ``collate_fn``, may change on purpose, but not between bool, int64 and float64.
    """
    if has_one_kind:
        return None if before == now else name_difference(before, now)
    if before.keys() == now.keys():
        for name, one in before.items():
            if one != now[name] and {one, now[name]} <= _NUMBERS:
                return f"{one} at {name}", now[name]
    return None


def compare_first_batch(
    kinds: Mapping[str, str],
    texts: Mapping[str, str],
    worker: int,
    show_first: Callable[[str], str],
    *,
    has_one_kind: bool,
) -> None:
    """Refuse a first batch of other kinds than that of the worker which had one first.

    No worker waits for another. Who comes later raises, and the others hear of it.

    Args:
        kinds: of the batch.
        texts: which of its lists are of text, and which of bytes.
        worker: whose it is.
        show_first: shows a text, unless another worker has; returns the one that is shown.
        has_one_kind: see :func:`name_change`.

    Raises:
        MismatchError: names both workers, and what each has.
    """
    shown = show_first(json.dumps([worker, dict(kinds), dict(texts)]))
    first, expected, expected_texts = json.loads(shown)
    change = name_change(expected, kinds, has_one_kind=has_one_kind)
    for name, text in texts.items():  # a list of None, which is not among them, fits either
        if change is None and expected_texts.get(name, text) != text:
            change = f"{expected_texts[name]} at {name}", text
    if change is not None:
        raise make_kinds_error(first, change[0], [worker], change[1])


def compare_partners(
    first: int, own: int, names: Sequence[str], show_first: Callable[[str], str]
) -> None:
    """Refuse a first step that is not the one of the partner which had it first.

    No partner waits for another. Who comes later raises, and the others hear of it.

    Args:
        first: a fingerprint of the step.
        own: this rank's number among the partners.
        names: of all partners.
        show_first: as in :func:`compare_first_batch`.

    Raises:
        MismatchError: names both ranks.
    """
    other, expected = json.loads(show_first(json.dumps([own, first])))
    if first != expected:
        msg = (
            f"Expected the same batches on {names[other]} and {names[own]}, which share data, got "
            "different ones at their first step. Is the data shuffled, made or changed by random "
            "numbers, or does it depend on the rank? Then seed it alike on all ranks (the rng= of "
            'a map does); or on a mesh pass replicate_input="broadcast", so that one of them reads '
            "for all."
        )
        raise refer(MismatchError(msg), "docs/errors.md#the-data-differs-between-ranks")


def warn_of_copies(fingerprints: Mapping[int, int | None], own: int) -> None:
    """Warn of first steps that are the same, where each worker has made its own.

    Args:
        fingerprints: by worker, a fingerprint of its first step; None where it is not compared.
        own: this worker's number. The first of those that have the same says it for all.
    """
    mine = fingerprints.get(own)
    alike = [worker for worker, found in fingerprints.items() if found and found == mine]
    if len(alike) > 1 and own == alike[0]:
        _log.warning(
            "Expected first batches of their own from all workers, got the same from %s: a "
            "dataset_fn that does not take its part trains each example once for every worker. "
            "Choose it by context.input_pipeline_id and context.num_input_pipelines. If it does, "
            "or the batches are alike on purpose, nothing is wrong.",
            named_workers(alike),
        )


def make_kinds_error(
    first: int, expected: str, odd: Sequence[int], got: str
) -> MismatchError:
    """The error for workers whose first batches are not like that of the worker ``first``."""
    msg = (
        f"Expected batches of one structure and dtype on all workers, got {expected} on "
        f"worker {first} and {got} on {named_workers(odd)}. Give the examples, files or sources "
        "of all workers the same columns and types; look for values of another type, such as 1 "
        "among 1.5. In JSON lines and CSV the reader's columns= say what a column is."
    )
    return MismatchError(msg)
