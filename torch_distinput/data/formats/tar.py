"""Tar archives in WebDataset's layout: the files of one record lie one after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch_distinput.data.formats import sidecar_index
from torch_distinput.data.formats.framing import walk
from torch_distinput.data.formats.reader import Part, Reader
from torch_distinput.data.formats.tar_headers import Headers, Members, split_name
from torch_distinput.data.formats.tar_records import (
    KEY,
    Files,
    RecordLayout,
    columns_of_first_record,
    join_files,
    mark_damage,
    named_files,
    pack_chunk,
    record_chunks,
    say_passed_over,
    slice_files,
    start_of_last_record,
)
from torch_distinput.data.storage.input_file import InputFile
from torch_distinput.errors import ConfigurationError

_LARGE_MEMBER = 1 << 12


@dataclass(frozen=True, slots=True)
class Tar(Reader):
    """Records of several files each (``webdataset.WebDataset``): a batch is a dict of lists.

    Files that follow each other with the same key, the path up to the first dot of its last
    component, are one record: ``{"__key__": list[str], "jpg": list[bytes], "cls": list[bytes]}``.
    What follows that dot, in lower case, is the name of the column. Files without such a name
    (``README``, ``.hidden``) are passed over, as are directories and links; that is logged once.
    Sparse files (``tar --sparse``) and members of other types are bad.

    Unless ``columns`` or ``optional`` say otherwise, all records of an archive need the files of
    its first one: one that lacks a file, or has another, is bad. After a damaged header reading
    goes on at the next good one.

    Attributes:
        index: where to keep the places of the records, so that the next run need not walk over
            all headers to find them: ``"memory"``, not at all; ``"beside"``, next to each archive
            as ``<file>.index.npz``; or the path or URL of a folder.
        packed: columns are packed strings; see :class:`FileDataset`.
        columns: the files that each record needs, in this order, as in ``["jpg", "cls"]``; others
            are left out. None: those of the first record.
        optional: further files, which a record may lack: its row in their column is None then. A
            record beside which something is damaged may have had them, and is bad; so is one of
            which such a file is a link.
    """

    index: str = "memory"
    packed: bool = False
    columns: Sequence[str] | None = None
    optional: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Refuse an index that is no place, and names that no file has."""
        sidecar_index.check_index(self.index)
        columns = None if self.columns is None else _names("columns", self.columns)
        optional = _names("optional", self.optional) if self.optional else ()
        both = {*(columns or ())} & {*optional}
        if both:
            msg = f"Expected {sorted(both)} in columns= or in optional=, got both. Choose one."
            raise ConfigurationError(msg)
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "optional", optional)

    def with_packed_strings(self) -> Tar:
        """The same, handing text over packed."""
        return replace(self, packed=True)

    @property
    def counted(self) -> bool:  # type: ignore[override]  # read-only, as the class is frozen
        """With a kept index."""
        return self.index != "memory"

    def parts(self, file: InputFile) -> Sequence[Part]:
        """Cut between keys, 4 MiB each at most."""
        # No cut comes right behind a link that stands for one of these.
        kind = " ".join(["tar", *sorted(self.optional)])
        find_cuts = partial(_cuts, headers=self._headers())
        return sidecar_index.index_parts(file, self.index, kind, find_cuts)

    def read(self, file: InputFile, part: Part) -> Iterator[dict[str, Any]]:
        """Yield columns."""
        chunks = self._read(file, part)
        yield from map(pack_chunk, chunks) if self.packed else chunks

    def _headers(self) -> Headers:
        return Headers(frozenset(name.encode() for name in self.optional))

    def _layout(self, first: list[bytes]) -> RecordLayout:
        """What records consist of, where the first one has these files."""
        optional = [name.encode() for name in self.optional]
        named = first if self.columns is None else [name.encode() for name in self.columns]
        required = [name for name in dict.fromkeys(named) if name not in optional]
        return RecordLayout([*required, *optional], frozenset(optional), self.columns is not None)

    def _read(self, file: InputFile, part: Part) -> Iterator[dict[str, list[Any]]]:
        layout = self._layout([]) if self.columns else None
        if part.start and layout is None:
            layout = self._layout(_columns_of_first(file))
        headers = self._headers()
        was_told = False

        def report(where: str, reason: object) -> None:
            nonlocal was_told
            was_told = True
            file.bad(where, reason)

        pending, lost = Files([], [], []), list[bytes | None]()
        with file.open() as opened:
            walked = walk(opened, headers, start=part.start, stop=part.stop, report=report)
            for window, _, members in walked:
                was_told = False  # that was before these members
                contents = _contents(window, members, packed=self.packed)
                files = join_files(pending, named_files(file, members.names, contents))
                lost += headers.lost_before
                if self.optional and lost and len(files.keys) > len(pending.keys):
                    files, lost = mark_damage(files, len(pending.keys), lost), []
                complete = start_of_last_record(files)
                pending = slice_files(files, complete, None)
                files = slice_files(files, 0, complete)
                if layout is None and files.keys:
                    layout = self._layout(columns_of_first_record(files))
                if layout is not None:
                    yield from record_chunks(file, layout, files)
        layout = layout or self._layout(columns_of_first_record(pending))
        is_cut_off = part.stop in (None, file.size) and not headers.ended
        lost += [*headers.lost, None] if is_cut_off else headers.lost
        if self.optional and lost:
            pending = mark_damage(pending, len(pending.keys), lost)
        yield from record_chunks(file, layout, pending)
        if headers.link is not None:
            say_passed_over(file.path, "links", headers.link)
        if is_cut_off and not was_told:
            reason = "expected the blocks of zeros with which archives end: it was cut off"
            file.bad("the end", reason)


def _contents(window: bytes, members: Members, *, packed: bool) -> list[Any]:
    whole: Any = window
    if packed and len(window) > _LARGE_MEMBER * len(members.starts):
        whole = memoryview(window)  # large contents are copied once, to be joined
    spans = zip(members.starts, members.stops, strict=True)
    return [whole[start:stop] for start, stop in spans]


def _names(argument: str, given: Sequence[str]) -> tuple[str, ...]:
    """Check names of files."""
    names = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else ()
    good = all(isinstance(n, str) and n.strip(".") == n.lower() == n != "" for n in names)
    good = good and "/" not in "".join(names) and KEY not in names
    if not names or not good or len({*names}) < len(names):
        msg = (
            f"{argument} must be different extensions in lower case, as in ['jpg', 'cls'], got "
            f"{given!r}."
        )
        raise ConfigurationError(msg)
    return names


def _columns_of_first(file: InputFile) -> list[bytes]:
    """What the first record of the archive consists of; reads little more than its headers."""
    first = None
    columns: list[bytes] = []
    for _, name, _ in _members(file, Headers()):
        split = split_name(name)
        if split is None:
            continue
        if first not in (None, split[0]):
            break
        first = split[0]
        columns.append(split[1])
    return columns


def _cuts(file: InputFile, headers: Headers) -> sidecar_index.Cuts:
    cuts: list[tuple[int, int]] = []
    key, enough = None, sidecar_index.cut_bytes(file)
    start = count = 0
    is_beside_damage = False  # which the reader must see, to judge the record behind it
    for at, name, is_behind_damage in _members(file, headers):
        is_beside_damage |= is_behind_damage
        split = split_name(name)
        if split is None or split[0] == key:
            continue
        if count and at - start >= enough and headers.cuttable and not is_beside_damage:
            cuts.append((start, count))
            start, count = at, 0
        key, is_beside_damage = split[0], False
        count += 1
    if not count and (file.size or 0) % 512 | (not headers.ended):
        msg = f"expected an archive, got {file.size} bytes in which no member begins"
        raise ValueError(msg)
    return [*cuts, (start, count)] if file.size else []


def _members(file: InputFile, headers: Headers) -> Iterator[tuple[int, bytes, bool]]:
    """Yield the places and names of files, and whether damage is before them; reads no contents."""
    with file.open() as opened:
        walked = walk(opened, headers, start=0, stop=file.size, report=None)
        for _, base, members in walked:
            for at, name in zip(members.ats, members.names, strict=True):
                yield base + at, name, bool(headers.lost_before) and at == members.ats[0]
