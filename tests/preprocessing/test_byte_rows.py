"""Strings as spans of a memory, and as rows of one width."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_distinput import PackedStrings
from torch_distinput.preprocessing.strings.byte_rows import (
    MISSING,
    ByteRows,
    join_plain,
    join_texts,
    to_bytes,
    to_str,
)

texts = st.binary(max_size=40).map(to_str) | st.text("ab\0é", max_size=20)
columns = st.lists(st.none() | texts, max_size=8)


def padded(rows: ByteRows, width: int) -> list[tuple[bytes, bytes] | None]:
    """The strings, cut out of rows that hold nothing else."""
    data = rows.pad(width)
    assert data.shape == (len(rows.lengths), max(8, -(-width // 8) * 8))
    found = [row.tobytes() for row in data]
    return [
        None if length == MISSING and not row.strip(b"\0") else (row[:length], row[length:])
        for row, length in zip(found, rows.lengths.tolist(), strict=True)
    ]


def expected_rows(column: list[str | None], width: int) -> list[tuple[bytes, bytes] | None]:
    """Each string, and zeros up to whole words."""
    size = max(8, -(-width // 8) * 8)
    encoded = [None if text is None else to_bytes(text) for text in column]
    return [row if row is None else (row, bytes(size - len(row))) for row in encoded]


@given(columns, st.integers(0, 30))
def test_texts_are_padded(column, more):
    rows = join_texts(column)
    width = rows.longest() + more

    assert expected_rows(column, width) == padded(rows, width)


@pytest.mark.parametrize("column", [[None, "x" * 40, None], [None, *"abcdefghij", None]])
def test_a_none_has_no_bytes_of_its_neighbours(column):
    """In a few long rows, and in many short ones."""
    rows = join_texts(column)

    assert expected_rows(column, rows.longest()) == padded(rows, rows.longest())


def test_the_last_string_may_end_anywhere():
    for length in range(20):
        for width in range(length, 20):
            assert expected_rows(["x" * length], width) == padded(join_texts(["x" * length]), width)


@given(columns, st.data())
def test_a_part_of_packed_strings_is_padded(column, data):
    """Its neighbours in memory stay out of it."""
    start = data.draw(st.integers(0, len(column)))
    stop = data.draw(st.integers(start, len(column)))
    rows = ByteRows.of_packed(PackedStrings.from_list(column, str)[start:stop])
    normal = [None if text is None else to_str(to_bytes(text)) for text in column[start:stop]]

    assert expected_rows(normal, rows.longest()) == padded(rows, rows.longest())


def test_rows_of_a_given_memory_leave_it_as_it_was():
    memory = np.frombuffer(b"abcdefgh" * 4, np.uint8)
    rows = ByteRows(memory, np.array([0, 3, 31]), np.array([1, 20, 1]))

    assert [b"a", b"defghabcdefghabcdefg", b"h"] == [row for row, _ in padded(rows, 20)]
    assert b"abcdefgh" * 4 == memory.tobytes()


@pytest.mark.parametrize("texts", [[], ["a", None], ["a\0", "b"], ["\udcff"], ["a", b"b"], [1]])
def test_what_is_not_plain_is_looked_at_one_by_one(texts):
    assert None is join_plain(texts)


def test_rows_in_blocks_are_all_rows_once():
    column = ["x" * (7 * place % 300) for place in range(100)]
    blocks = list(join_texts(column).split_by_length())

    assert list(range(100)) == sorted(np.concatenate(blocks).tolist())
    assert len(blocks) > 2
