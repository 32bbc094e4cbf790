"""The headers of tar archives: ustar, GNU and pax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, final

import numpy as np

from torch_distinput.data.formats.framing import Scan, Scanner

_BLOCK = 512
_FILES = b"0\x007"  # 7: contiguous, a file like any other
_LINKS = b"12"
_WITHOUT_CONTENT = _LINKS + b"3456"  # also devices, directories, pipes: their size is no length
_ABOUT_THE_ARCHIVE = b"DV"  # the names in a folder of a backup, the name of a volume
_SPARSE = ord("S")
_LONG_NAME, _LONG_LINK, _PAX, _PAX_OF_SOLARIS, _PAX_GLOBAL = b"LKxXg"
_EXTENSIONS = (_LONG_NAME, _LONG_LINK, _PAX, _PAX_OF_SOLARIS, _PAX_GLOBAL)
_LARGEST_EXTENSION = 1 << 20
_HOLES = b"GNU.sparse."
"""How the pax form of a member with holes names what is about them."""
_DAMAGED = b""
"""Stands for a key that pax cannot have, of a header that cannot be read."""


class Members(NamedTuple):
    """Files of an archive, a list entry each; places are counted from the window's first byte."""

    ats: list[int]
    """Where the headers begin, also those that give a long name."""
    names: list[bytes]
    starts: list[int]
    stops: list[int]

    def add(self, *member: Any) -> None:
        """Take one."""
        columns: tuple[list[Any], ...] = self
        for column, value in zip(columns, member, strict=True):
            column.append(value)


@final
class Headers(Scanner):
    """What is found are the members that are files.

    Blocks of zeros are passed over, so that archives may be joined to one file.
    """

    header_bytes = _BLOCK
    what = "member"

    def __init__(self, optional: frozenset[bytes] = frozenset()) -> None:
        self._optional = optional
        """Extensions of which a link is refused: without it, none would be missed."""
        self.lost: list[bytes | None] = []
        """What could not be read since the last members: names, where they are known."""
        self.lost_before: list[bytes | None] = []
        """What could not be read right before them."""
        self.cuttable = True
        """Whether a member says all about itself: no header came that holds for all others."""
        self.ended = True
        """Whether nothing more is expected: the last block was one of zeros."""
        self.link: bytes | None = None
        """The name of a link that was passed over."""
        self._for_all: dict[bytes, bytes] = {}

    def scan(self, window: bytes, room: int) -> Scan:
        """Take whole runs of plain members, and the others one by one."""
        members = Members([], [], [], [])
        at = position = 0
        own: Mapping[bytes, bytes] = self._for_all
        needed, error, after, refused = 0, None, None, None
        while not needed and error is None:
            if not own:
                at = _take_plain(window, position, room, members)
                position, self.ended = at, self.ended and at == position
            if position + _BLOCK > len(window):
                needed = position + _BLOCK - at
                break
            header = window[position : position + _BLOCK]
            start = _behind_map(window, position + _BLOCK, header)
            kind, size = header[156], _size(header, own)
            self.ended = not any(header)
            if start > len(window):
                needed = start - at
            elif self.ended:
                position = at = start
                own = self._for_all
            elif size is None or (error := _damage(header, size)):
                error = error or "its checksum does not fit, or its size is not a number"
            elif kind in _EXTENSIONS and start + _pad(size) > len(window):
                needed = start + _pad(size) - at
            elif kind in _EXTENSIONS:
                own = self._extended(kind, window[start : start + size], own)
                position = start + _pad(size)
            elif error := self._refusal(kind, name := _name(header, own), own):
                refused, after = name, start + (0 if kind in _LINKS else _pad(size))
            elif kind in _FILES and start + size > room:
                needed = start + size - at
            else:
                if kind in _FILES:
                    members.add(at, _name(header, own), start, start + size)
                elif kind in _LINKS:
                    self.link = _name(header, own)
                position = at = start + (0 if kind in _WITHOUT_CONTENT else _pad(size))
                own = self._for_all
        found = self._note(members, error, refused)
        return Scan(found=found, following=at, needed=needed or _BLOCK, error=error, after=after)

    def find(self, window: bytes, base: int, room: int | None) -> int | None:
        """Find a header with the magic word and the right checksum."""
        del room
        place = 257
        while (place := window.find(b"ustar", place)) >= 0:
            start = place - 257
            whole = (base + start) % _BLOCK == 0 and start + _BLOCK <= len(window)
            if whole and _fits(window[start : start + _BLOCK]):
                return start
            place += 1
        return None

    def _note(
        self, members: Members, error: str | None, refused: bytes | None
    ) -> Members | None:
        """Take down what is lost, and between which members; return them if there are any."""
        if members.ats:
            self.lost_before, self.lost = self.lost, []
        if error:
            self.lost.append(refused)
        return members if members.ats else None

    def _refusal(self, kind: int, name: bytes, own: Mapping[bytes, bytes]) -> str | None:
        """Which member cannot be read, and why."""
        reason = None
        if _DAMAGED in own:
            reason = f"expected lines of 'length key=value' before it, got {own[_DAMAGED][:60]!r}"
        elif kind == _SPARSE or _HOLES in own:
            reason = (
                "expected its whole content, got what is left without its holes. Write the archive "
                "without --sparse"
            )
        elif kind not in _FILES + _WITHOUT_CONTENT + _ABOUT_THE_ARCHIVE:
            reason = (
                f"expected a file, a folder or a link, got a member of type {chr(kind)!r}. Write "
                "the archive with 'tar --format=posix', in one volume"
            )
        elif kind in _LINKS and (parts := split_name(name)) and parts[1] in self._optional:
            reason = (
                "expected its content, got a link. Write the archive with 'tar --dereference "
                "--hard-dereference'"
            )
        return reason and f"{show_name(name)}: {reason}"

    def _extended(
        self, kind: int, content: bytes, own: Mapping[bytes, bytes]
    ) -> Mapping[bytes, bytes]:
        """What is known about the next member."""
        if kind == _LONG_LINK:
            return own
        if kind == _LONG_NAME:
            return {**own, b"path": content.partition(b"\0")[0]}
        found = _pax(content)
        if found is None:
            return {**own, _DAMAGED: content}
        if kind == _PAX_GLOBAL and found:
            self.cuttable = False
            self._for_all.update(found)
        # An empty value takes back what was said before.
        return {key: value for key, value in {**own, **found}.items() if value}


def _damage(header: bytes, size: int) -> str | None:
    """What is wrong with a header by itself."""
    if not _fits(header):
        return "the checksum of the header does not fit"
    too_large = header[156] in _EXTENSIONS and size > _LARGEST_EXTENSION
    return f"its name has {size} bytes" if too_large else None


def _behind_map(window: bytes, start: int, header: bytes) -> int:
    """Where content begins: GNU's map of one with holes may have blocks of its own before it."""
    more = header[156] == _SPARSE and header[482]
    while more:
        more = start + _BLOCK <= len(window) and window[start + 504]
        start += _BLOCK
    return start


def _pad(size: int) -> int:
    return (size + _BLOCK - 1) & -_BLOCK


def _take_plain(window: bytes, position: int, room: int, members: Members) -> int:
    """Take the files with nothing but a header of the plain kind; return what follows them."""
    ats, stops = [], []
    last = min(len(window), room) - _BLOCK
    try:
        while position <= last and window[position + 156] in _FILES:
            size = int(window[position + 124 : position + 135], 8)
            stop = position + _BLOCK + size
            if stop > room or size < 0 or window[position + 135] not in b"\0 ":
                break
            ats.append(position)
            stops.append(stop)
            position += _BLOCK + ((size + 511) & -_BLOCK)
    except ValueError:  # not plain
        pass
    if not ats:
        return position
    headers = [window[at : at + _BLOCK] for at in ats]
    wrong = _first_wrong(headers)
    if wrong is not None:
        position = ats[wrong]
        del ats[wrong:], stops[wrong:], headers[wrong:]
    members.ats.extend(ats)
    members.names.extend([_name(header, {}) for header in headers])
    members.starts.extend([at + _BLOCK for at in ats])
    members.stops.extend(stops)
    return position


def _name(header: bytes, own: Mapping[bytes, bytes]) -> bytes:
    if b"path" in own:
        return own[b"path"]
    name = header[:100].partition(b"\0")[0]
    if header[345] and header.startswith(b"ustar\0", 257):
        return header[345:500].partition(b"\0")[0] + b"/" + name
    return name


def split_name(name: bytes) -> tuple[bytes, bytes] | None:
    """Key and column of a file; None if its name has no such parts."""
    base = name.rfind(b"/") + 1
    dot = name.find(b".", base)
    return (name[:dot], name[dot + 1 :].lower()) if base < dot < len(name) - 1 else None


def show_name(name: bytes) -> str:
    """Return a name of an archive as text; its bytes may be no UTF-8."""
    return name.decode(errors="backslashreplace")


def _size(header: bytes, own: Mapping[bytes, bytes]) -> int | None:
    """None if it is no size."""
    field = header[124:136]
    try:
        if b"size" in own and header[156] in _FILES:
            size = int(own[b"size"])
        elif field[0] == 0x80:  # too large for octal digits
            size = int.from_bytes(field[1:], "big")
        else:
            size = int(field.rstrip(b"\0 ") or b"0", 8)
    except ValueError:
        return None
    return size if size >= 0 else None


def _pax(content: bytes) -> dict[bytes, bytes] | None:
    """Read lines of ``length key=value``, where the length counts the line's own bytes too.

    Only the keys that matter here; None if there is something else than such lines.
    """
    found = {}
    while content.rstrip(b"\0"):
        digits = content.partition(b" ")[0]
        length = int(digits) if digits.isdigit() and len(digits) < 8 else 0
        key, sign, value = content[len(digits) + 1 : length - 1].partition(b"=")
        if not (sign and key and length <= len(content) and content[length - 1] == ord("\n")):
            return None
        if key in (b"path", b"size"):
            found[key] = value
        elif key.startswith(_HOLES):
            found[_HOLES] = b"1"
        content = content[length:]
    return found


def _fits(header: bytes) -> bool:
    return _first_wrong([header]) is None


def _first_wrong(headers: list[bytes]) -> int | None:
    """The number of the first header whose checksum does not fit."""
    table = np.frombuffer(b"".join(headers), np.uint8).reshape(-1, _BLOCK)
    field = table[:, 148:156]
    stored = np.zeros(len(table), np.int64)
    for digits in field.T.astype(np.int64):
        stored = np.where((digits >= 48) & (digits < 56), stored * 8 + digits - 48, stored)
    # The sum takes its own field for spaces.
    total = table.sum(axis=1, dtype=np.int64) - field.sum(axis=1, dtype=np.int64) + 256
    for number in np.flatnonzero(stored != total).tolist():
        signed = np.delete(table[number].view(np.int8), slice(148, 156))
        if int(signed.sum(dtype=np.int64)) + 256 != stored[number]:  # as some old programs add
            return int(number)
    return None
