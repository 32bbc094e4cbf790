"""What sources become: one of three values, and what was asked for beside them.

:class:`IndexedSource` answers by index and knows its length; a :class:`StreamSource` is read in
order; a :class:`ReadySource` streams ready global batches. :func:`open_source` tells which it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from torch_distinput.data.batch.buffer_pool import Allocate, pageable
from torch_distinput.data.batch.collate import CollateFn
from torch_distinput.data.batch.tree import Batch
from torch_distinput.data.loader.options import LoaderOptions
from torch_distinput.data.sources.ready_batches import ReadyStream
from torch_distinput.data.sources.spot_check import describe_dataset, name_subsets
from torch_distinput.data.stream.protocols import Stream
from torch_distinput.data.user_sources.sequences.length import Length
from torch_distinput.data.user_sources.sequences.token_budget import (
    TokenBudget,
    refuse_array,
    size_of,
)
from torch_distinput.errors import ConfigurationError
from torch_distinput.meter import WorkClock
from torch_distinput.options import check_count, check_flag, check_function
from torch_distinput.plan.assignment.bounds import Size
from torch_distinput.plan.assignment.order import EpochOrder, ExampleOrder
from torch_distinput.plan.assignment.permutation import Indices
from torch_distinput.plan.progress.state_version_1 import ReadFlat

if TYPE_CHECKING:
    from torch_distinput.data.sources.sequences.known_lengths import KnownLengths
    from torch_distinput.plan.assignment.bucketing import Bucketing
    from torch_distinput.plan.assignment.mixed_order import MixedIndices


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What the caller asked for beside the source.

    ``allocate``: makes the host memory of batches that are gathered in this process.
    """

    global_batch_size: int | TokenBudget | None = None
    shuffle: bool = False
    drop_last: bool = False
    collate_fn: CollateFn | None = None
    num_workers: int = 0
    num_threads: int = 0
    allocate: Allocate = pageable

    def __post_init__(self) -> None:
        """Refuse sizes and flags that are none, and keep NumPy's as plain ones."""
        if self.global_batch_size is not None and self.budget is None:
            size = check_count("global_batch_size", self.global_batch_size, minimum=1)
            object.__setattr__(self, "global_batch_size", size)
        if self.collate_fn is not None:
            check_function("collate_fn", self.collate_fn, "a list of examples")
        for name in ("shuffle", "drop_last"):
            object.__setattr__(self, name, check_flag(name, getattr(self, name)))
        num_workers = check_count("num_workers", self.num_workers, minimum=0)
        object.__setattr__(self, "num_workers", num_workers)
        num_threads = check_count("num_threads", self.num_threads, minimum=0)
        object.__setattr__(self, "num_threads", num_threads)
        if num_workers and num_threads:
            raise make_both_error(num_workers, num_threads)

    @property
    def budget(self) -> TokenBudget | None:
        """What global batches are filled by, where that is not a number of examples."""
        return self.global_batch_size if isinstance(self.global_batch_size, TokenBudget) else None

    def loader_for(self, dataset: Any = None) -> LoaderOptions:
        """The processes or threads that read; ``dataset``: the user's, shown in each process."""
        return LoaderOptions(
            num_workers=self.num_workers, num_threads=self.num_threads, dataset=dataset
        )

    @property
    def has_one_kind(self) -> bool:
        """Whether batches are made of examples by our rules, and so of one structure and dtype."""
        if self.global_batch_size is None or self.collate_fn is None:
            return self.global_batch_size is not None
        from torch_distinput.data.sources.sequences.pad_collate import PadCollate  # noqa: PLC0415 - few collate

        return isinstance(self.collate_fn, PadCollate)

    @property
    def size(self) -> Size | None:
        """Of a full global batch; None for batches of sizes of their own."""
        size = self.global_batch_size
        return size_of(size) if isinstance(size, TokenBudget) else size


def make_both_error(num_workers: int, num_threads: int) -> ConfigurationError:
    """The error for loader processes and threads at once."""
    msg = (
        f"Expected loader processes or threads, got num_workers={num_workers} and "
        f"num_threads={num_threads}. Use num_threads where the work releases the interpreter lock "
        "(decoding images, reading over a network), else num_workers."
    )
    return ConfigurationError(msg)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedSource:
    """Examples by index; their number is known on all ranks, or a sampler says which there are.

    Attributes:
        inner_sources: what was mixed or packed.
        mixture: how the indices of several sources are mixed, of which an epoch has
            ``num_examples``.
        facts: what of a mixture, or of buckets, decides the order.
        bucketing: how the order is sorted by length.
        padded_lengths: of each index, where rows are padded to the longest of their step.
        packed_contents: ``(indices, 3)``: documents, tokens and places of each, where they are rows
            that documents were packed into.
        clock: counts the time of collating, where that is measured.
    """

    name: str
    fetch: Callable[[Indices], Batch]
    num_examples: int | None
    request: Request
    loader: LoaderOptions
    sampler: Iterable[Any] | None = None
    inner_sources: tuple[IndexedSource, ...] = ()
    mixture: MixedIndices | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    bucketing: Bucketing | None = None
    padded_lengths: Indices | None = None
    packed_contents: Indices | None = None
    clock: WorkClock | None = None

    has_shards = False

    @property
    def kind(self) -> str:
        """What it is, for a state: a place in a mixture is none in as many other examples."""
        kind = "a mixture by index"
        if self.mixture is None:
            is_packed = self.packed_contents is not None
            kind = "examples by index, packed" if is_packed else "examples by index"
        return kind if self.bucketing is None else f"{kind}, in buckets"

    def make_order(self, seed: int, epoch: int, num_examples: int | None = None) -> ExampleOrder:
        """Our order of an epoch, for sources without a sampler.

        ``num_examples``: another number, of which only the length of the order is asked.
        """
        order: ExampleOrder
        if self.mixture is not None:
            order = self.mixture.make_order(seed, epoch)
        else:
            count = self.num_examples if num_examples is None else num_examples
            assert count is not None, "only a sampler does without"
            shuffle = self.request.shuffle
            order = EpochOrder(num_examples=count, shuffle=shuffle, seed=seed, epoch=epoch)
        if self.bucketing is None:
            return order
        return self.bucketing.apply(order, seed=seed, epoch=epoch)

    @property
    def counted_mixture(self) -> MixedIndices | None:
        """The mixture, if any beginning of its order tells how many examples of each source it has.

        Not where buckets have changed the order.
        """
        return self.mixture if self.bucketing is None else None

    def find_lengths(self, length: Length, *, name: str = "length") -> KnownLengths:
        """What measures all indices; ``name``: of the argument that tells how."""
        from torch_distinput.data.sources.sequences.known_lengths import KnownLengths  # noqa: PLC0415 - few need it

        return KnownLengths(length, self.fetch, self.num_indices, self.dataset, name=name)

    @property
    def num_indices(self) -> int | None:
        """Indices that it answers for: of a mixture also those that an epoch leaves out."""
        return self.num_examples if self.mixture is None else self.mixture.num_indices

    @property
    def dataset(self) -> Any:
        """The user's dataset; None where it was taken apart into columns."""
        return self.loader.dataset

    def describe_order(self) -> dict[str, Any]:
        """What decides which examples come in which order, but for shuffles and samplers."""
        part = name_subsets(self.dataset)
        return {**self.facts, **part, "number of examples": self.num_examples}

    def describe_dataset(self) -> dict[str, str]:
        """The user's dataset, and which part of another one it is, for ranks to compare."""
        if self.dataset is None:
            return {}
        return {"dataset and part of it": describe_dataset(self.dataset)}

    def check_length(self, epoch: int) -> None:
        """Refuse a dataset that has grown or shrunk; it was told the epoch.

        Not where a sampler says which examples there are.

        Raises:
            ConfigurationError: a ValueError; its length is not the one that is played.
        """
        for source in self.inner_sources:
            source.check_length(epoch)
        known, dataset = self.num_examples, self.dataset
        if self.inner_sources or known is None or self.sampler is not None or dataset is None:
            return
        if (found := len(dataset)) != known:
            msg = (
                f"Expected {known} examples in {type(dataset).__name__}, as when it was "
                f"distributed, got {found} at the beginning of epoch {epoch}: its order is made "
                "for one length. Distribute it again, or let it have one length in all epochs."
            )
            raise ConfigurationError(msg)

    @property
    def owns_batches(self) -> bool:
        """Whether batches are made here; a collate_fn may make all in one buffer."""
        is_ahead = self.loader.num_workers > 0 or self.loader.num_threads > 0
        return is_ahead or getattr(self.fetch, "makes_batches", False)

    @property
    def copies_batches(self) -> bool:
        """Whether a batch must be copied where it is made: it is kept while others are made."""
        return self.loader.num_threads > 0 and self.request.collate_fn is not None


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A stream that is ready to be opened.

    Attributes:
        stream: the stream.
        num_shards: files or shards that can be dealt out; None where files are split into parts
            first: then there may be more workers than parts, and some get nothing.
        digest: equal on all ranks when they found the same files.
    """

    stream: Stream
    num_shards: int | None
    digest: str


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class StreamSource:
    """Examples in order.

    Attributes:
        prepare: lists files: late, so that a listing that fails on one rank is told to all.
        read_version_1: takes the places apart that states of version 1 hold.
        more_shards: how to make a source with more files or shards; ``{}``: how many.
        made_of: the user's source; None for files.
        by_shard: prepares the same source, read shard by shard; None where that is not the same.
        windows: what is made of windows of it, in words; empty where nothing is.
        step_padding: pads rows to the longest of a worker's part of a step, to be filled up to the
            longest of the step; None where they are not.
    """

    name: str
    prepare: Callable[[], Prepared]
    has_shards: bool
    request: Request
    read_version_1: ReadFlat
    more_shards: str
    loader: LoaderOptions
    made_of: Any = None
    by_shard: Callable[[], Prepared] | None = None
    windows: str = ""
    step_padding: Any = None

    def __post_init__(self) -> None:
        """Refuse lengths that cannot be looked up."""
        if self.request.budget is not None:
            refuse_array(self.request.budget, self.name)

    @property
    def kind(self) -> str:
        """What it is, for a state: other sources of the same kind may continue it."""
        kind = "files or shards" if self.has_shards else "a stream"
        return f"{kind}, {self.windows}" if self.windows else kind


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ReadySource:
    """Global batches in order.

    Attributes:
        more_shards: how to make a source with more shards, where it has some; ``{}``: how many.
    """

    name: str
    stream: ReadyStream
    num_shards: int | None
    request: Request
    more_shards: str = ""
    loader: LoaderOptions = field(default_factory=LoaderOptions)

    kind = "ready batches"

    @property
    def has_shards(self) -> bool:
        """Whether the batches come in shards that can be dealt out."""
        return self.num_shards is not None


Source = IndexedSource | StreamSource | ReadySource
