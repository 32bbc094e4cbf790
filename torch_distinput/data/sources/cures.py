"""What to do about a source that cannot do what was asked for, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_distinput.data.sources.source import Request
from torch_distinput.data.storage.compression import decompressor
from torch_distinput.data.user_sources.stages import has_buffer
from torch_distinput.errors import ConfigurationError

if TYPE_CHECKING:
    from torch_distinput.data.files.dataset import FileDataset


def make_no_order_error(request: Request, loader: Any) -> ConfigurationError:
    """The error for a loader whose batches a budget would cut again."""
    msg = (
        f"Expected a DataLoader that leaves batches to {request.budget!r}, got one with batches of "
        f"its own (a {type(loader).__name__} with batch_size={loader.batch_size}). Build it with "
        "batch_size=None, and the order of its sampler is cut by the budget; or pass its dataset."
    )
    return ConfigurationError(msg)


def way_to_more_files(dataset: FileDataset) -> str:
    """How to get more files to deal out; ``{}``: how many."""
    from torch_distinput.data.formats.reader import Reader  # noqa: PLC0415 - it is imported with FileDataset

    is_whole = type(dataset.reader).parts is Reader.parts
    if is_whole or all(map(decompressor, dataset.patterns)):  # split_files=True would cut nothing
        return "write {} or more files"
    return (
        "FileDataset(..., split_files=True), which deals out parts of files that are not "
        "compressed; or write {} or more files"
    )


def way_to_more_shards(source: Any) -> str:
    """How to get more shards to deal out; ``{}``: how many."""
    if type(source).__module__.partition(".")[0] == "datasets":
        return (
            "make it with to_iterable_dataset(num_shards={0}), of as many data files, or with "
            "from_generator and a list of {0} items or more in gen_kwargs"
        )
    return "give it num_shards of {} or more"


def make_no_shuffle_error(source: Any, name: str) -> ConfigurationError:
    """The error for a stream that is in an order of its own."""
    cure = (
        "Shuffle the stream itself by a seed that is the same on all ranks, as "
        "FileDataset.shuffle(buffer_size) does."
    )
    if has_buffer(source):
        cure = (
            "It is shuffled in a buffer already: leave its shuffle() out, and shuffle=True orders "
            "its shards by seed and epoch; or leave shuffle=True out."
        )
    msg = f"shuffle=True needs a source with an index, files or shards, got the stream {name}"
    return ConfigurationError(f"{msg}. {cure}")
