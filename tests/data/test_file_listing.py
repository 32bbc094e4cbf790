"""A listing gives back what was put in, and holds little for it."""

from __future__ import annotations

import hashlib
import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_distinput.data.storage import filesystem
from torch_distinput.data.storage.file_listing import FileInfo, FileListing

TEXTS = st.text(st.characters(codec=None), max_size=6) | st.sampled_from(["a/b", "s3://c/d", "/"])
FILES = st.builds(
    FileInfo,
    path=TEXTS,
    size=st.none() | st.integers(0, 1 << 50),
    version=TEXTS,
    has_ranges=st.booleans(),
)


@pytest.mark.slow
@given(st.lists(FILES, max_size=12))
def test_files_come_back_in_order(files):
    listing = FileListing(iter(files))
    assert files == list(listing)
    assert files == [listing[number] for number in range(len(files))]
    assert files == list(pickle.loads(pickle.dumps(listing)))


@given(st.lists(FILES, max_size=12), st.slices(12))
def test_a_slice_is_that_of_a_list(files, some):
    assert tuple(files[some]) == FileListing(files)[some]


def test_an_index_counts_from_the_end_and_ends():
    files = [FileInfo(path=f"folder/{number}", size=number) for number in range(3)]
    listing = FileListing(files)
    assert files[-1] == listing[-1]
    for index in (3, -4):
        with pytest.raises(IndexError):
            listing[index]


@given(st.lists(FILES, max_size=5))
def test_the_digest_is_that_of_names_and_sizes(files):
    """Saved states hold it."""
    pairs = [(os.path.basename(info.path), info.size) for info in files]  # noqa: PTH119
    text = repr(pairs)
    expected = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    assert expected == FileListing(files).digest


def test_many_files_are_taken_out_in_blocks():
    files = [FileInfo(path=f"a/{number}", size=number, version="7") for number in range(10_000)]
    listing = FileListing(files)
    assert files == list(listing)
    assert FileListing(files[::-1]).digest != listing.digest


def test_a_file_takes_less_than_a_hundred_bytes():
    """So ten million of them take less than a gigabyte."""
    files = (
        FileInfo(
            path=f"s3://bucket/a/long/way/down/part-{number:08d}-of-10000000.parquet",
            size=number,
            version="d41d8cd98f00b204e9800998ecf8427e",
        )
        for number in range(1000)
    )
    assert FileListing(files).num_bytes < 1000 * 100


def test_web_servers_without_entity_tags_tell_a_time():
    """Else a file of the same size would be taken for the one before."""
    info = {"size": 3, "Last-Modified": "Mon, 23 Nov 2026 20:00:00 GMT"}
    assert info["Last-Modified"] == filesystem._info("http://host/a.txt", info).version
