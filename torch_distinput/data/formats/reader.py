"""What a file format is: a Reader, which cuts a file into parts and reads one.

A reader is a recipe: picklable, without a state. It sees a file only through :class:`InputFile`,
so it works the same on every storage and under every compression. Your own is one method::

    class Fixed(Reader):
        \"\"\"Records of 16 bytes.\"\"\"

        def read(self, file: InputFile, part: Part) -> Iterator[list[bytes]]:
            with file.open() as opened:
                while block := opened.read(CHUNK_BYTES):
                    yield [block[i : i + 16] for i in range(0, len(block), 16)]

``torch_distinput.testing.check_reader`` finds out whether it keeps what is promised here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch_distinput.data.batch.tree import Batch
from torch_distinput.data.storage.input_file import InputFile
from torch_distinput.errors import ConfigurationError

CHUNK_BYTES = 1 << 20
"""About as much of a file as a reader holds at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A part of a file that can be read without the rest (a *work unit*).

    Attributes:
        start: where it begins, in the reader's own measure: bytes, rows, row groups.
        stop: where it ends; None: at the end of the file.
        first_record: the number of its first record within the file; where that is not known, a
            number at or above it that the records of the part before do not reach, such as its
            byte offset.
        num_records: how many records it has; None where that is not known before it is read.
    """

    start: int = 0
    stop: int | None = None
    first_record: int = 0
    num_records: int | None = None


class Reader(ABC):
    """How the files of one format are cut, read and decoded. Picklable."""

    counted: bool = False
    """:meth:`parts` is worth asking before anything is read: it finds numbers of records in a
    header, a footer or a kept index. Where all files have them, the workers need no votes."""

    addressable: bool = False
    """``start`` and ``stop`` of a part count records, so that a part may begin at any of them."""

    measure: str = "place"
    """What they count, for messages: a byte, a record batch."""

    mapped: bool = False
    """What :meth:`read` yields may be bytes of a mapped file. For a shuffle it is copied at once:
    the file may change while rows are held, after it was compared with the listing."""

    def parts(self, file: InputFile) -> Sequence[Part]:
        """Cut a file into parts that together are all of it, in order; none if it is empty.

        Neighbours can be read as one part, from the start of the first to the stop of the last.
        A few megabytes each where the format allows, more where it does not. Without this method
        a file is one part.
        """
        del file
        return (Part(),)

    @abstractmethod
    def read(self, file: InputFile, part: Part) -> Iterator[Batch]:
        """Yield the records of a part in order, in chunks of about :data:`CHUNK_BYTES`.

        A chunk is a batch tree: lists, tensors and arrays with one row per record. What is costly
        to make of a record belongs in :meth:`decode`.
        """

    def decode(self, records: Batch) -> Batch:
        """Turn records as :meth:`read` yields them into a batch with the same number of rows.

        Called once per chunk or batch, for records that are delivered, perhaps in another process
        and in another order. Raise for records that are bad: which ones is found out by calling
        again with fewer.
        """
        return records

    def with_packed_strings(self) -> Reader:
        """Return a reader of the same records that hands strings over as ``PackedStrings``.

        Asked for by ``FileDataset(..., strings="packed")``. Records and their order, parts and
        errors are those of this reader.

        Raises:
            ConfigurationError: a ValueError; the format has no strings, or no such reader.
        """
        msg = (
            f"Expected a reader that can pack strings for strings='packed', got "
            f"{type(self).__name__}. Leave strings= out, or read another format."
        )
        raise ConfigurationError(msg)
