"""Lines of text."""

from __future__ import annotations

import gzip

import pytest

from torch_distinput.data.formats import text
from torch_distinput.data.formats.text import Text
from torch_distinput.testing import check_reader

LINES = [f"line {i} äöü" + "x" * (i % 50) for i in range(3000)]


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
        assert LINES == check_reader(Text(), str(path), num_records=len(LINES))
