"""This worker's steps of sources that are read in order, by what the source consists of.

ExampleSteps   examples: files, dealt-out shards, opaque streams
ReadySteps     ready global batches
PlayedSteps    replica batches that a ``dataset_fn`` made
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch_distinput.data.element_spec import spec_of
from torch_distinput.data.loader import run_stages, run_stream
from torch_distinput.data.local_step import LocalStep
from torch_distinput.data.read_log import Notes, Tally
from torch_distinput.data.ready_batches import PlayedDataset, RebatchReadyDataset
from torch_distinput.data.rebatch import Finish, RebatchDataset
from torch_distinput.data.source import Prepared, ReadySource, StreamSource
from torch_distinput.data.stream import ReadyStream, Shard, Stream
from torch_distinput.options import AutoShardPolicy
from torch_distinput.plan.batching import Splitter
from torch_distinput.plan.known_steps import KnownSteps
from torch_distinput.plan.sharding import check_enough_shards


class Steps(ABC):
    """This worker's steps of a source that is read in order."""

    @abstractmethod
    def facts(self) -> dict[str, object]:
        """What must be equal on all workers; finds files, so it may raise."""

    @abstractmethod
    def start(self, epoch: int) -> Iterator[LocalStep | Notes]:
        """Start an epoch. Called after :meth:`facts` and :meth:`accept`."""

    def share(self) -> object:
        """What this worker finds out for all."""
        return None

    def accept(self, shares: list[Any], tally: Tally) -> None:
        """Take what all workers found out, and note what went wrong here."""
        del shares, tally

    def known(self, epoch: int) -> KnownSteps | None:
        """The steps of an epoch where they are known before they are read."""
        del epoch
        return None

    def spec(self) -> Any:
        """The spec of a batch with ids, where that can be known without the other workers."""
        return None


class ExampleSteps(Steps):
    """Examples in order: files, dealt-out shards, opaque streams."""

    def __init__(
        self, source: StreamSource, splitter: Splitter, *, policy: AutoShardPolicy, seed: int
    ) -> None:
        """Take a stream; FILE deals out its files or shards."""
        self._source = source
        self._splitter = splitter
        self._policy = policy
        self._seed = seed
        self._prepared: Prepared | None = None
        self._notes: Notes | None = None

    def facts(self) -> dict[str, object]:
        """The files or shards that were found; they are looked for once."""
        prepared = self._prepared or self._source.prepare()
        if self._policy is AutoShardPolicy.FILE and prepared.num_shards is not None:
            num_workers = self._splitter.topology.num_workers
            check_enough_shards(prepared.num_shards, num_workers, what=self._source.name)
        self._prepared = prepared
        digest = hashlib.blake2b(prepared.contents.encode(), digest_size=8).hexdigest()
        return {"files": f"{prepared.num_shards or 'some'} (names and sizes: {digest})"}

    def share(self) -> object:
        """What this worker found in its share of the files."""
        topology = self._splitter.topology
        found = self._stream.share(topology.worker_index, topology.num_workers)
        if found is None:
            return None
        share, self._notes = found
        return share

    def accept(self, shares: list[Any], tally: Tally) -> None:
        """Take what all workers found in their shares of the files."""
        if shares[0] is not None:
            assert self._prepared is not None, "facts() comes first"
            self._prepared = replace(self._prepared, stream=self._stream.with_shares(shares))
        tally.add(self._notes)
        self._notes = None

    def known(self, epoch: int) -> KnownSteps | None:
        """The steps of an epoch, where files tell how many records they have."""
        if self._prepared is None:
            return None
        lengths = self._stream.lengths(self._shard(epoch))
        if lengths is None:
            return None
        if len(lengths) == 1 and not self._splitter.shared:  # OFF: all workers play everything
            lengths *= self._splitter.topology.num_workers
        drop_last = self._source.request.drop_last
        return KnownSteps(splitter=self._splitter, lengths=lengths, drop_last=drop_last)

    def start(self, epoch: int) -> Iterator[LocalStep | Notes]:
        """Cut this worker's part of the stream."""
        shard = self._shard(epoch)
        dataset = RebatchDataset(
            self._stream,
            shard,
            splitter=self._splitter,
            drop_last=self._source.request.drop_last,
            known=self.known(epoch),
        )
        options = self._source.loader
        if options.num_workers > 1 and not self._stream.has_work:
            options = replace(options, num_workers=1)
        lent = self._source.request.collate_fn is not None
        finish = Finish(self._stream, shard, self._splitter, lent=lent)
        return run_stages(dataset, finish, options)

    def spec(self) -> Any:
        """Read the first record of all; None if there is none."""
        shard = Shard(seed=self._seed, sparse=True)
        chunk = self._stream.open(shard).take(1)
        if chunk is None:
            return None
        return spec_of((self._stream.finish(chunk, shard), chunk.ids))

    @property
    def _stream(self) -> Stream:
        assert self._prepared is not None, "facts() comes first"
        return self._prepared.stream

    def _shard(self, epoch: int) -> Shard:
        return _shard(self._policy, self._splitter, self._seed, epoch)


class ReadySteps(Steps):
    """Ready global batches in order."""

    def __init__(
        self, source: ReadySource, splitter: Splitter, *, policy: AutoShardPolicy, seed: int
    ) -> None:
        """Take a stream of batches; FILE deals out its shards."""
        self._source = source
        self._splitter = splitter
        self._policy = policy
        self._seed = seed

    def facts(self) -> dict[str, object]:
        """The shards."""
        shards = self._source.num_shards
        if self._policy is AutoShardPolicy.FILE:
            num_workers = self._splitter.topology.num_workers
            check_enough_shards(shards or 0, num_workers, what=self._source.name)
        return {"shards": shards}

    def start(self, epoch: int) -> Iterator[LocalStep]:
        """Cut this worker's part of the stream."""
        shard = _shard(self._policy, self._splitter, self._seed, epoch)
        dataset = RebatchReadyDataset(self._source.stream, shard, splitter=self._splitter)
        return run_stream(dataset, self._source.loader)


class PlayedSteps(Steps):
    """Replica batches that a ``dataset_fn`` made: nothing is sharded or cut."""

    def __init__(self, datasets: Sequence[Any], splitter: Splitter) -> None:
        """Take one dataset for the worker, or one for each of its replicas."""
        self._splitter = splitter
        self._streams = [
            ReadyStream(
                dataset,
                expected="a replica batch, because that is what dataset_fn's datasets yield",
                cure="Batch the examples in dataset_fn, get_per_replica_batch_size(...) at a time.",
            )
            for dataset in datasets
        ]

    def facts(self) -> dict[str, object]:
        """The number of datasets; what is in them is each worker's own affair."""
        return {"datasets per worker": len(self._streams)}

    def start(self, epoch: int) -> Iterator[LocalStep]:  # noqa: ARG002
        """Start the datasets; a loader process, if any, is their own affair."""
        return iter(PlayedDataset(self._streams, splitter=self._splitter))


def _shard(policy: AutoShardPolicy, splitter: Splitter, seed: int, epoch: int) -> Shard:
    topology = splitter.topology
    if policy is not AutoShardPolicy.FILE:
        return Shard(seed=seed, epoch=epoch, sparse=splitter.shared and topology.num_workers > 1)
    return Shard(
        seed=seed, epoch=epoch, num_shards=topology.num_workers, index=topology.worker_index
    )
