"""Lines of text."""

from __future__ import annotations

import errno
import gzip
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_distinput.data.formats import text
from torch_distinput.data.formats.text import Text
from torch_distinput.data.storage.input_file import InputFile
from torch_distinput.testing import check_reader

LINES = [f"line {i} äöü" + "x" * (i % 50) for i in range(1000)]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("end", ["", "\n"])
def test_keeps_the_promises(tmp_path, monkeypatch, suffix, end):
    """Also where blocks and parts end inside of lines and characters."""
    content = ("\n".join(LINES) + end).encode()
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)
    for part_bytes, chunk_bytes in ((4 << 20, 1 << 20), (1000, 1 << 20), (5003, 77)):
        monkeypatch.setattr(text, "_PART_BYTES", part_bytes)
        monkeypatch.setattr(text, "CHUNK_BYTES", chunk_bytes)
        monkeypatch.setattr(text, "_DECODED_BYTES", chunk_bytes)
        assert LINES == check_reader(Text(), str(path), num_records=len(LINES))


@given(
    st.lists(st.sampled_from([b"\n", b"{", b"[", b"x", b"x" * 7, b"x" * 400]), max_size=60),
    st.sampled_from([64, 128, 1 << 18]),
)
def test_places_of_a_byte(parts, piece_bytes):
    """Alone in a word of eight bytes or with others, also across pieces."""
    block = b"".join(parts)
    content = np.frombuffer(block, np.uint8)
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(text, "_PIECE_BYTES", piece_bytes)
        found = text.find_byte(content, ord("\n"))
        brackets = text.find_byte(content, ord("["), mask=0xFF ^ ord("[") ^ ord("{"))
    assert [place for place, byte in enumerate(block) if byte in b"\n"] == found.tolist()
    assert [place for place, byte in enumerate(block) if byte in b"[{"] == brackets.tolist()


TEXTS = st.sampled_from([b"", b"\r", "\u2028ä".encode(), b"x" * 30, b"a\rb", b"\xff", "𝄞".encode()])


@given(
    st.lists(st.tuples(TEXTS, st.sampled_from([b"\n", b"\r\n"])), max_size=12),
    st.booleans(),
    st.sampled_from([1, 2, 3, 16, 64]),
    st.sampled_from([64, 65, 4 << 20]),
    st.booleans(),
)
def test_lines_are_the_same_however_the_file_is_cut(lines, is_open, num_bytes, part_bytes, packed):
    """Blocks that end within a character or a line end; bad lines; an open last one."""
    content = b"".join(line + end for line, end in lines)
    content = content.removesuffix(b"\n") if is_open else content
    bad = []
    file = InputFile(
        path="a.txt", size=len(content), version="", local_path=None,
        open=lambda: io.BytesIO(content), bad=lambda where, _: bad.append(where),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(text, "_PART_BYTES", part_bytes)
        for name in ("CHUNK_BYTES", "_DECODED_BYTES"):
            patches.setattr(text, name, num_bytes)
        reader = Text(packed=packed)
        found = [list(rows) for part in reader.parts(file) for rows in reader.read(file, part)]
    whole = content.split(b"\n")
    whole = [line.removesuffix(b"\r") for line in (whole if whole[-1] else whole[:-1])]
    good = [line.decode() for line in whole if line != b"\xff"]
    assert good == [line for rows in found for line in rows]
    assert whole.count(b"\xff") == len(bad)


@pytest.mark.parametrize("packed", [False, True])
def test_a_read_that_is_interrupted_is_not_the_end(monkeypatch, packed):
    for name in ("CHUNK_BYTES", "_DECODED_BYTES"):
        monkeypatch.setattr(text, name, 4)

    class Interrupted(io.BytesIO):
        def read(self, size=-1):
            if self.tell():
                raise InterruptedError(errno.EINTR, "interrupted")
            return super().read(size)

    file = InputFile(
        path="a.txt", size=None, version="", local_path=None,
        open=lambda: Interrupted(b"one\ntwo\nthree\n"), bad=lambda *_: None,
    )  # fmt: skip
    reader = Text(packed=packed)
    with pytest.raises(OSError, match="interrupted"):
        list(reader.read(file, reader.parts(file)[0]))
