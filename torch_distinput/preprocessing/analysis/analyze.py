"""analyze: adapt over files, with the state of each file kept, and the result as a folder.

TensorFlow Transform's two phases without Beam. The state of a file is canonical and merges exactly,
so a pass that was cut off, or goes on with new files, ends bit for bit as a full one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

from torch_distinput.communicator import Communicator, communicator_of
from torch_distinput.data.files.dataset import (
    FileDataset,
    draw_numbers,
    find_files,
    with_listed_files,
)
from torch_distinput.data.files.operations import Filter, Map, Shuffle
from torch_distinput.data.files.stream import FileStream
from torch_distinput.data.storage.file_listing import FileInfo
from torch_distinput.data.stream.bad_records import ReadCounter
from torch_distinput.errors import ConfigurationError
from torch_distinput.plan.assignment.sharding import assign_items
from torch_distinput.plan.progress.route import Shard
from torch_distinput.preprocessing.adapt.adapt import adopt, count_batch
from torch_distinput.preprocessing.adapt.merging import (
    check_same_layers,
    fail_together,
    merge_across,
)
from torch_distinput.preprocessing.adapt.reading import ROWS, Workers
from torch_distinput.preprocessing.analysis.state_cache import (
    StateCache,
    States,
    identify_recipe,
)
from torch_distinput.preprocessing.artifact.artifact import check_target, save
from torch_distinput.preprocessing.artifact.registry import describe_layer
from torch_distinput.preprocessing.columns.collate import collate_columns
from torch_distinput.preprocessing.layers.features import Features


def analyze(
    features: Features,
    dataset: FileDataset,
    out: str,
    *,
    cache: str | None = None,
    strategy: Workers | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Features:
    """Adapt layers to files and write them to a folder, for training and for serving.

    The workers deal the files out among themselves. With ``cache`` each file's state is kept when
    it has been read: a pass that is started again reads what is missing or has changed. The result
    is the same as without, and as with any number of workers.

    Args:
        features: the layers; all workers pass the same ones.
        dataset: the files, with maps and filters of their records.
        out: the folder to write (:func:`load` reads it); worker 0 does.
        cache: a folder to keep states in. A state belongs to a file's path, size and version
            (entity tag or modification time), the reader, the functions of the recipe (with the
            global names they use, in modules of yours) and the configuration of the layers; where
            a function takes ``rng``, also to the file's number, on which the draws depend.
        strategy: of the workers that share the files; None: this process reads all.
        storage_options: of fsspec, for ``out`` and ``cache``.

    Returns:
        ``features``, with their state, on all workers.

    Raises:
        ConfigurationError: a ValueError; for a layer that got no values, or a recipe with an
            operation that concerns more than one file.
        PeerFailedError: another worker could not read, count or write.
    """
    workers = communicator_of(strategy)
    options = storage_options or {}
    plan = _make_plan(features, dataset, (out, cache, options), workers)
    layers = dict(features.adaptive())
    check_same_layers(features, layers, workers)
    with fail_together(workers, "analyze its files"):
        states = _count(features, plan, workers)
    adopt(merge_across(states, layers, workers), layers)
    with fail_together(workers, f"write {out}"):
        if workers.rank == 0:
            about = {"files": len(plan.stream.listing)}
            save(features, out, about=about, storage_options=options)
    return features


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    """What all workers know before any of them reads.

    Attributes:
        stream: the files, as worker 0 lists them.
        kept: where their states are kept; None: nowhere.
        known: the numbers of those that there is a state of.
    """

    stream: FileStream
    kept: StateCache | None
    known: frozenset[int]


def _make_plan(
    features: Features,
    dataset: FileDataset,
    folders: tuple[str, str | None, Mapping[str, Any]],
    workers: Communicator,
) -> _Plan:
    """Refuse what cannot end well, before anything is read; and list files."""
    out, cache, options = folders
    listing: Sequence[FileInfo] = ()
    known: frozenset[int] = frozenset()
    kept: StateCache | None = None
    with fail_together(workers, "prepare to analyze"):
        _check_recipe(features, dataset)
        _check_folders(out, cache)
        describe_layer(features)
        if cache is not None and (recipe := identify_recipe(dataset, features)) is not None:
            kept = StateCache(cache, options, recipe, by_number=draw_numbers(dataset))
        if workers.rank == 0:
            check_target(out, options)
            listing = find_files(dataset)
            known = frozenset() if kept is None else kept.find_known(listing)
    listing, known = workers.gather_objects((listing, known))[0]
    maps = any(isinstance(operation, Map) for operation in dataset.operations)
    # Without a map the reader's batches stay whole.
    collate = partial(collate_columns, names=tuple(features.input_columns())) if maps else None
    # A state is kept under the number of its file, so files are numbered as they are listed.
    stream = FileStream(dataset=with_listed_files(dataset), listing=listing, collate=collate)
    return _Plan(stream=stream, kept=kept, known=known)


def _check_folders(out: str, cache: str | None) -> None:
    if cache is not None and f"{cache.rstrip('/')}/".startswith(f"{out.rstrip('/')}/"):
        msg = (
            f"Expected the cache beside the folder to write, which is replaced as a whole; got "
            f"cache={cache!r} in out={out!r}. Choose a folder outside of it."
        )
        raise ConfigurationError(msg)


def _count(features: Features, plan: _Plan, workers: Communicator) -> States:
    """Count this worker's share of the files; what is kept of them is not read again.

    Files that have to be read are dealt out from the largest down, the others as they come.
    """
    layers = dict(features.adaptive())
    total = {name: layer.analyzer.new_state() for name, layer in layers.items()}
    listing, kept = plan.stream.listing, plan.kept
    unread = set(range(len(listing))) - plan.known
    largest = sorted(unread, key=lambda number: (-(listing[number].size or 0), number))
    for number in _share(sorted(plan.known), workers) + _share(largest, workers):
        states = None
        if kept is not None and number in plan.known:
            states = kept.load(number, listing[number], layers)
        if states is None:
            states, skipped = _read(features, plan.stream, number, ReadCounter(workers.rank))
            if kept is not None and not skipped:  # who reads the rest again is told again
                kept.store(number, listing[number], states)
        for name, state in states.items():
            total[name].merge(state)
    return total


def _share(numbers: list[int], workers: Communicator) -> list[int]:
    return [numbers[place] for place in assign_items(len(numbers), workers.size, workers.rank)]


def _read(
    features: Features, stream: FileStream, number: int, read_counter: ReadCounter
) -> tuple[States, dict[str, int]]:
    """Count one file; return its states, and how many records of it were left out."""
    layers = dict(features.adaptive())
    states = {name: layer.analyzer.new_state() for name, layer in layers.items()}
    shard = Shard(num_shards=len(stream.listing), index=number)
    reader = stream.open(shard)
    while (chunk := reader.take(ROWS)) is not None:
        count_batch(states, layers, features.select_columns, stream.finish(chunk, shard))
        read_counter.add(reader.notes())
    read_counter.add(reader.notes())
    return states, read_counter.skipped


def _check_recipe(features: Any, dataset: Any) -> None:
    if not isinstance(features, Features):
        msg = f"analyze() takes Features, got {type(features).__name__}. Wrap it: Features(x=...)."
        raise TypeError(msg)
    if not isinstance(dataset, FileDataset):
        msg = (
            f"analyze() reads a FileDataset, file by file, got {type(dataset).__name__}. For other "
            "data call features.adapt(dataset) and save(features, out)."
        )
        raise TypeError(msg)
    for operation in dataset.operations:
        if not isinstance(operation, (Map, Filter, Shuffle)):
            msg = (
                f"analyze() reads each file by itself, so the recipe may map, filter and shuffle; "
                f"got {type(operation).__name__.lower()}(). Leave it out."
            )
            raise ConfigurationError(msg)
