"""FileDataset: files, a reader, and what is done to their records, as a recipe.

Every method returns a new recipe; nothing is listed or read before the data is iterated. Under
FILE all that follows the reader acts on the worker's own stream; under DATA the recipe defines one
global stream, and the cut into replica batches comes last.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal

from torch_distinput.data.files import operations as file_ops
from torch_distinput.data.files.operations import Operation
from torch_distinput.data.formats import find_format, find_reader
from torch_distinput.data.formats.reader import Reader
from torch_distinput.data.storage import filesystem
from torch_distinput.data.storage.file_listing import FileInfo, FileListing
from torch_distinput.data.stream.bad_records import OnError
from torch_distinput.errors import ConfigurationError
from torch_distinput.options import check_count, check_function


@dataclasses.dataclass(frozen=True, init=False)
class FileDataset:
    """Records of files, read in the order of the list (``tf.data.TextLineDataset`` and kin).

    Args:
        paths_or_globs: a path, URL or glob, or a sequence of them. Paths stay in the order given;
            the matches of a glob are sorted. Any URL that fsspec opens. ``"@list.txt"`` names a
            file with a path in each line. Names that end with .gz, .bz2, .xz or .zst are
            decompressed.
        reader: ``"text"``, ``"jsonl"``, ``"csv"``, ``"tfrecord"``, ``"parquet"``, ``"arrow"``,
            ``"tar"``, ``"npy"``, ``"npz"``; or a :class:`Reader` with arguments, which
            ``torch_distinput.readers`` holds, or of your own making.
        strings: ``"list"``: text and binary are lists of ``str`` and ``bytes``. ``"packed"``: they
            are :class:`PackedStrings`, of the same records, without an object for each. A map or
            filter sees each as ``str`` or ``bytes`` all the same.
        storage_options: passed to the fsspec file system.
        shuffle_files: permute the list by (seed, epoch) before it is dealt out, so that the files
            of a worker change from epoch to epoch (TensorFlow's do not).
        split_files: deal out the parts that files can be cut into, such as row groups and ranges
            of lines, instead of whole files; also where there are fewer files than workers.
        on_error: what happens to records that cannot be read or decoded. ``"raise"``; ``"skip"``:
            they are left out and counted in ``DistributedIterator.stats().skipped``; or a function
            of the SourceError, called where files are read (perhaps in a loader process), that
            returns True to skip and False to raise.
    """

    patterns: tuple[str, ...]
    reader: Reader
    storage_options: Mapping[str, Any] = dataclasses.field(repr=False)  # it may hold secrets
    shuffle_files: bool
    split_files: bool
    on_error: OnError
    operations: tuple[Operation, ...]
    cycle: tuple[int, int] | None

    def __init__(
        self,
        paths_or_globs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        reader: str | Reader = "text",
        strings: Literal["list", "packed"] = "list",
        storage_options: Mapping[str, Any] | None = None,
        shuffle_files: bool = False,
        split_files: bool = False,
        on_error: OnError = "raise",
    ) -> None:
        """See the class."""
        single = isinstance(paths_or_globs, (str, os.PathLike))
        if isinstance(paths_or_globs, AbstractSet):
            msg = (
                "FileDataset needs paths in an order of their own, alike on all ranks, got a "
                f"{type(paths_or_globs).__name__}. Pass sorted(paths)."
            )
            raise TypeError(msg)
        given = [paths_or_globs] if single else list(paths_or_globs)  # type: ignore[arg-type]
        if not given:
            msg = "FileDataset needs a path or a glob, got none."
            raise ValueError(msg)
        if on_error not in ("raise", "skip") and not callable(on_error):
            msg = f"on_error must be 'raise', 'skip' or a function of the error, got {on_error!r}."
            raise ValueError(msg)
        if strings not in ("list", "packed"):
            msg = f"strings must be 'list' or 'packed', got {strings!r}."
            raise ValueError(msg)
        found = find_reader(reader)
        set_field = object.__setattr__  # the dataclass is frozen
        set_field(self, "patterns", tuple(os.fspath(item) for item in given))  # type: ignore[arg-type]
        set_field(self, "reader", found if strings == "list" else found.with_packed_strings())
        set_field(self, "storage_options", dict(storage_options or {}))
        set_field(self, "shuffle_files", shuffle_files)
        set_field(self, "split_files", split_files)
        set_field(self, "on_error", on_error)
        set_field(self, "operations", ())
        set_field(self, "cycle", None)

    def map(self, fn: Callable[..., Any]) -> FileDataset:
        """Replace each record by ``fn(record)``.

        FILE: maps the worker's own records. DATA: the maps at the end of the chain run for a
        worker's own examples only; one before a filter or a shuffle runs for all, on every worker.

        Args:
            fn: from a record to an example of any structure. A record is what the reader yields: a
                ``str`` or ``bytes``, or a dict with a value for each column; rows of tensors are
                tensors. If ``fn`` has a parameter ``rng``, it gets a ``numpy.random.Generator``
                keyed by seed, epoch and record, so that augmentation does not depend on who reads
                what. What it raises becomes a :class:`SourceError`, whatever ``on_error`` says.

        Raises:
            TypeError: if it is no function of a record.
        """
        _check_record_function(fn)
        return self._with(file_ops.Map(fn))

    def filter(self, fn: Callable[..., bool]) -> FileDataset:
        """Keep the records for which ``fn(record)`` is true.

        FILE: of the worker's own records. DATA: of all records, on every worker.

        Args:
            fn: from a record, or what a map before it has made of it, to whether it is kept. It may
                have a parameter ``rng``, as that of a map: ``lambda record, rng: rng.random() <
                0.1``. Another generator says otherwise when records are read again after a
                restart, where some are then lost and others repeated in silence.

        Raises:
            TypeError: if it is no function of a record.
        """
        _check_record_function(fn)
        return self._with(file_ops.Filter(fn))

    def shuffle(self, buffer_size: int) -> FileDataset:
        """Permute consecutive windows of ``buffer_size`` records, keyed by (seed, epoch, window).

        Records mix within their window only (TensorFlow's sliding buffer lets some drift further);
        mixing beyond it comes from ``shuffle_files`` and :meth:`interleave`. Records are held as
        they lie in the file; they are decoded afterwards.

        FILE: windows of the worker's own stream. DATA: of the one stream, alike on every worker.

        Args:
            buffer_size: records of a window, at least 1; as many are held in memory.

        Raises:
            ValueError: if it is below 1; TypeError if it is no whole number.
        """
        return self._with(file_ops.Shuffle(check_count("buffer_size", buffer_size, minimum=1)))

    def take(self, n: int) -> FileDataset:
        """Keep the first ``n`` records.

        FILE: of each worker's stream. DATA: of all.

        Args:
            n: at least 0. Where there are fewer records, all of them are kept.

        Raises:
            ValueError: if it is below 0; TypeError if it is no whole number.
        """
        return self._with(file_ops.Take(check_count("n", n, minimum=0)))

    def repeat(self, n: int | None = None) -> FileDataset:
        """Play what comes before ``n`` times, or without end, within one epoch.

        Shuffles before it differ from time to time, and so do maps and filters with ``rng``.

        FILE: the worker's own stream. DATA: the one stream.

        Args:
            n: how often in all, at least 0. None: without end; ``take`` after it ends the epoch.

        Raises:
            ValueError: if it is below 0; TypeError if it is no whole number.
        """
        times = None if n is None else check_count("n", n, minimum=0)
        return self._with(file_ops.Repeat(times, passes_differ=_passes_differ(self)))

    def interleave(self, cycle_length: int, block_length: int = 1) -> FileDataset:
        """Read ``cycle_length`` files in turn, ``block_length`` records from each.

        Acts on the list of files, so it comes before every other method. With ``split_files`` it
        reads parts of files in turn.

        FILE: among the worker's own files. DATA: among all.

        Args:
            cycle_length: files that are open at once, at least 1. One that ends makes room for the
                next one of the list.
            block_length: records from one file before the next one has its turn, at least 1.

        Raises:
            ConfigurationError: after another method of the chain.
            ValueError: if a number is below 1; TypeError if it is no whole number.
        """
        if self.operations:
            msg = (
                "interleave() mixes files, so it must come first, got a recipe that already has "
                f"{', '.join(type(op).__name__.lower() for op in self.operations)}. Move it up."
            )
            raise ConfigurationError(msg)
        check_count("cycle_length", cycle_length, minimum=1)
        check_count("block_length", block_length, minimum=1)
        return self._replace(cycle=(cycle_length, block_length))

    def list_files(self) -> tuple[FileInfo, ...]:
        """Resolve the paths and globs now, in the order that record ids count them.

        Raises:
            FileNotFoundError: for a path that does not exist or a glob that matches nothing.
        """
        return tuple(find_files(self))

    def _with(self, operation: Operation) -> FileDataset:
        return self._replace(operations=(*self.operations, operation))

    def _replace(self, **changes: Any) -> FileDataset:
        copy = object.__new__(FileDataset)
        for field in dataclasses.fields(self):
            value = changes.get(field.name, getattr(self, field.name))
            object.__setattr__(copy, field.name, value)
        return copy


def find_files(dataset: FileDataset) -> FileListing:
    """The files of a recipe, as :meth:`FileDataset.list_files` finds them, in little room."""
    return filesystem.list_files(dataset.patterns, dataset.storage_options)


def _check_record_function(fn: Any) -> None:
    """Refuse what cannot be called with a record, and with a generator if it has a ``rng``.

    Raises:
        TypeError: it says what was expected.
    """
    check_function("fn", fn, "a record")
    keywords = {"rng": None} if file_ops.wants_rng(fn) else {}
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some builtins have no signature
        return
    try:
        signature.bind(None, **keywords)
    except TypeError as error:
        msg = (
            "Expected fn(record), or fn(record, rng) with a generator for a parameter of that "
            f"name, got fn{signature}: {error}. Rename the parameter, or bind it by "
            "functools.partial."
        )
        raise TypeError(msg) from error


def find_format_read_as_text(dataset: FileDataset) -> str | None:
    """The reader that the name of a file asks for, where its lines are delivered as they are.

    Who maps the lines knows what they are.
    """
    if type(dataset.reader).__name__ != "Text" or dataset.operations:
        return None
    for pattern in dataset.patterns:
        if (name := find_format(pattern)) is not None:
            return name
    return None


def draw_numbers(dataset: FileDataset) -> bool:
    """Whether a function of the recipe takes ``rng``: its numbers follow from that of the file."""
    functions = (file_ops.Map, file_ops.Filter)
    return any(each.wants_rng for each in dataset.operations if isinstance(each, functions))


def _passes_differ(dataset: FileDataset) -> bool:
    """Whether a pass of the recipe may keep no record though another keeps some.

    A filter that draws may; so may any after ``shuffle(...).take(n)``, whose records change.
    """
    operations = iter(dataset.operations)
    in_turn = (file_ops.Shuffle, file_ops.Take, file_ops.Filter)
    is_cut_anew = all(any(isinstance(each, kind) for each in operations) for kind in in_turn)
    return is_cut_anew or draw_numbers(dataset)


def with_shuffled_files(dataset: FileDataset) -> FileDataset:
    """Return the recipe with ``shuffle_files=True``."""
    return dataset._replace(shuffle_files=True)


def with_listed_files(dataset: FileDataset) -> FileDataset:
    """Return the recipe with ``shuffle_files=False``: partition n is file n of the listing."""
    return dataset._replace(shuffle_files=False)


def with_split_files(dataset: FileDataset) -> FileDataset:
    """Return the recipe with ``split_files=True``."""
    return dataset._replace(split_files=True)
