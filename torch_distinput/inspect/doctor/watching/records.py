"""What one rank has seen of its loaders: values that are written to a file, for other ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, final

from torch_distinput.inspect.doctor.dataset_contents import Contents
from torch_distinput.inspect.doctor.loader_facts import Division, LoaderFacts


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class SeenEpoch:
    """One iteration of a loader.

    Attributes:
        loader: which of the loaders of its kind it was, by number.
        is_aside: whether it was a look at one batch, by another line than that which plays it.
        batches: delivered to the script.
        rows: in them.
        has_ended: whether the loader came to its end.
        trains: whether gradients were recorded while it was iterated.
        indices: what the sampler has drawn for these batches, as far as it was noted.
        digests: of the rows of each of the first batches.
        wait_seconds: from asking for a batch to having it, after the first one.
        step_seconds: from having a batch to asking for the next one.
        first_seconds: until the first batch.
    """

    loader: int
    is_aside: bool
    batches: int
    rows: int
    has_ended: bool
    trains: bool
    indices: tuple[int, ...]
    digests: tuple[tuple[str, ...], ...]
    wait_seconds: float
    step_seconds: float
    first_seconds: float


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderRecord:
    """All iterations of the loaders of one kind that one line of the script iterates.

    Attributes:
        place: that line, as ``train.py:31``; of several that iterate a loader, the first that has
            more than a look at a batch.
        fetch_seconds: reading the examples of a batch, on average; None where it was not seen.
        collate_seconds: making a batch of them, on average.
        alike: random generators from which several loader processes draw the same numbers.
        drawn_states: by random generator, with what states of it those processes began in the
            first epoch that have drawn from it.
        private_bytes: of the largest loader process, not shared with others; None: not seen.
    """

    place: str
    facts: LoaderFacts
    epochs: tuple[SeenEpoch, ...]
    fetch_seconds: float | None
    collate_seconds: float | None
    alike: tuple[str, ...]
    drawn_states: Mapping[str, tuple[int, ...]]
    private_bytes: int | None


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class RankRecord:
    """What a rank has seen.

    Attributes:
        outcome: how the script came to its end on this rank.
        was_stopped: by the doctor, after ``--steps`` batches.
    """

    rank: int
    num_ranks: int
    outcome: str
    was_stopped: bool
    loaders: tuple[LoaderRecord, ...]

    def to_json(self) -> str:
        """Write it down."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> RankRecord:
        """Read what :meth:`to_json` has written."""
        told = json.loads(text)
        loaders = tuple(_loader(loader) for loader in told["loaders"])
        return RankRecord(**{**told, "loaders": loaders})


def _loader(told: dict[str, Any]) -> LoaderRecord:
    facts = told["facts"]
    contents = facts["contents"]
    contents = Contents(**{**contents, "generators": tuple(contents["generators"])})
    division = facts["division"] and Division(**facts["division"])
    return LoaderRecord(
        **{
            **told,
            "facts": LoaderFacts(**{**facts, "contents": contents, "division": division}),
            "epochs": tuple(_epoch(epoch) for epoch in told["epochs"]),
            "alike": tuple(told["alike"]),
            "drawn_states": {name: tuple(each) for name, each in told["drawn_states"].items()},
        }
    )


def _epoch(told: dict[str, Any]) -> SeenEpoch:
    digests = tuple(tuple(rows) for rows in told["digests"])
    return SeenEpoch(**{**told, "indices": tuple(told["indices"]), "digests": digests})


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """The loaders that one line iterates, on each rank that does.

    Attributes:
        ranks: those that have iterated it, ascending.
        loaders: what each of them has seen.
        elsewhere: by other rank, the line in which it has first iterated a loader of the same data.
    """

    ranks: tuple[int, ...]
    loaders: tuple[LoaderRecord, ...]
    elsewhere: Mapping[int, str] = field(default_factory=dict)

    @property
    def facts(self) -> LoaderFacts:
        """Those of the first rank, without numbers that others have not: parts of their own."""
        first, *others = (loader.facts for loader in self.loaders)
        if any(first.num_examples != other.num_examples for other in others):
            first = replace(first, num_examples=None)
        if any(first.batch_size != other.batch_size for other in others):
            first = replace(first, batch_size=None)
        return first

    @property
    def num_ranks(self) -> int:
        """Among how many ranks the examples are divided, or read without being divided."""
        division = self.facts.division
        given = division and division.num_ranks
        return given or len(self.ranks)

    @property
    def trains(self) -> bool:
        """Whether gradients were recorded."""
        return any(epoch.trains for loader in self.loaders for epoch in loader.epochs)

    def epochs(self) -> Iterator[tuple[SeenEpoch, ...]]:
        """Each iteration of this line that all ranks have begun, on all of them."""
        own = ([one for one in loader.epochs if not one.is_aside] for loader in self.loaders)
        yield from zip(*own, strict=False)


def note_elsewhere(found: Sequence[Seen]) -> list[Seen]:
    """Note the ranks that may well iterate the same loader, and begin with it in another line.

    As where one of them takes statistics before the training: what they read was not compared.
    """
    noted = []
    for seen in found:
        places = {
            rank: loader.place
            for other in reversed(found)  # so that the first place of a rank stays
            if _has_same_data(seen, other)
            for rank, loader in zip(other.ranks, other.loaders, strict=True)
        }
        noted.append(replace(seen, elsewhere=places))
    return noted


def _has_same_data(one: Seen, other: Seen) -> bool:
    data = [
        (seen.facts.dataset, seen.facts.num_examples, seen.facts.batch_size)
        for seen in (one, other)
    ]
    return data[0] == data[1] and not set(one.ranks) & set(other.ranks)
