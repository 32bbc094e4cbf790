"""Compressed files: read to the end, or to where they are damaged."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
from functools import partial
from itertools import accumulate

import fsspec
import numpy as np
import pytest
import torch
from backports import zstd

import torch_distinput as tdi
from tests.distribute.street import play
from tests.storages import NAMES, Local, open_storage
from tests.tfrecords import frame
from torch_distinput import readers
from torch_distinput.data.storage.compression import decompressor


@pytest.fixture(params=NAMES)
def storage(request, tmp_path, monkeypatch):
    """Each kind."""
    opened = open_storage(request.param, tmp_path, monkeypatch)
    yield opened
    opened.close()


def records(*args, **keywords):
    """All records on one worker."""
    (steps,) = play(tdi.FileDataset(*args, **keywords), 10_000)
    return [x for step in steps for batch in step for x in batch]


WRITTEN = {
    "txt": lambda text: text.encode() + b"\n",
    "jsonl": lambda text: b'{"a": "%s"}\n' % text.encode(),
    "csv": lambda text: text.encode() + b"\n",
    "tfrecord": lambda text: frame(text.encode()),
}
READ = {
    "csv": {"reader": readers.CSV(header=False, columns={"a": str})},
    "jsonl": {"reader": "jsonl"},
    "tfrecord": {"reader": "tfrecord"},
}


def _num_bytes(url):
    """How much of a file that was cut off can be decompressed."""
    count = 0
    with pytest.raises(EOFError), fsspec.open(url, compression="infer").open() as opened:
        while piece := opened.read1(1 << 12):
            count += len(piece)
    return count


def _text(record):
    return record.decode() if isinstance(record, bytes) else record


COMPRESS = {
    "gz": partial(gzip.compress, compresslevel=1),  # fast: how small they become is no matter
    "bz2": bz2.compress,
    "xz": partial(lzma.compress, preset=0),
    "zst": zstd.compress,
}


@pytest.mark.parametrize(("suffix", "compress"), COMPRESS.items(), ids=COMPRESS)
class TestCompression:
    """By the end of the name."""

    def test_read(self, storage, suffix, compress):
        """Several members, one after another, are one file; it is not cut."""
        halves = [b"".join(b"%d\n" % i for i in range(k * 500, k * 500 + 500)) for k in range(2)]
        url = storage.put(f"a.txt.{suffix}", b"".join(map(compress, halves)))
        assert [str(i) for i in range(1000)] == records(url, split_files=True)

    def test_truncated(self, tmp_path, suffix, compress):
        """An error, or a counted one; never a silent end."""
        content = compress(b"".join(b"%d\n" % (i * i) for i in range(5000)))
        url = Local(tmp_path).put(f"a.txt.{suffix}", content[:-20])
        with pytest.raises(tdi.SourceError, match="ended before the end-of-stream"):
            records(url)
        dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
            tdi.FileDataset(url, on_error="skip"), global_batch_size=4
        )
        with iter(dataset) as iterator:
            list(iterator)
            assert [1] == list(iterator.stats().skipped.values())

    @pytest.mark.slow
    @pytest.mark.parametrize("strings", ["list", "packed"])
    @pytest.mark.parametrize("kind", WRITTEN)
    def test_what_comes_before_damage(self, tmp_path, suffix, compress, kind, strings):
        """All records that can be decompressed are delivered, and what follows them is counted."""
        rng = random.Random(0)
        texts = [f"{i} {rng.getrandbits(250):x}" for i in range(15_000)]
        written = [WRITTEN[kind](text) for text in texts]
        whole = compress(b"".join(written))
        url = Local(tmp_path).put(f"a.{kind}.{suffix}", whole[: len(whole) * 97 // 100])
        num_bytes = _num_bytes(url)
        num_sound = sum(end <= num_bytes for end in accumulate(map(len, written)))
        assert 10_000 < num_sound < len(texts)
        dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
            tdi.FileDataset(url, **READ.get(kind, {}), on_error="skip", strings=strings),
            global_batch_size=512,
        )
        with iter(dataset) as iterator:
            batches = [batch["a"] if kind in "jsonl.csv" else batch for batch in iterator]
            found = [text for batch in batches for text in map(_text, batch)]
            assert texts[:num_sound] == found
            assert [1] == list(iterator.stats().skipped.values())

    @pytest.mark.slow
    def test_rows_before_damage(self, tmp_path, suffix, compress):
        """As many rows of an array as can be decompressed, whose reads are large."""
        content, array = io.BytesIO(), np.random.default_rng(0).integers(1 << 30, size=(90_000, 3))
        np.save(content, array)
        whole = compress(content.getvalue())
        url = Local(tmp_path).put(f"a.npy.{suffix}", whole[: len(whole) * 97 // 100])
        num_sound = (_num_bytes(url) - 128) // array[0].nbytes  # behind the header
        assert 50_000 < num_sound < len(array)
        dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
            tdi.FileDataset(url, reader="npy", on_error="skip"), global_batch_size=512
        )
        with iter(dataset) as iterator:
            assert np.array_equal(array[:num_sound], torch.cat(list(iterator)).numpy())
            assert [1] == list(iterator.stats().skipped.values())

    def test_a_later_member_that_is_damaged(self, tmp_path, suffix, compress):
        """It and all that follows are no garbage behind the data."""
        first, second = compress(b"1\n2\n"), bytearray(compress(b"3\n"))
        second[1] ^= 1
        url = Local(tmp_path).put(f"a.txt.{suffix}", first + second)
        with pytest.raises(tdi.SourceError, match=rf"a\.txt\.{suffix}"):
            records(url)


def test_zeros_between_xz_streams(tmp_path):
    """Padding, if they are a multiple of four."""
    halves = lzma.compress(b"1\n"), lzma.compress(b"2\n")
    for count in (4, 9996):
        url = Local(tmp_path).put("a.txt.xz", (b"\0" * count).join([*halves, b""]))
        assert ["1", "2"] == records(url)
    url = Local(tmp_path).put("b.txt.xz", (b"\0" * 6).join(halves))
    with pytest.raises(tdi.SourceError, match="multiples of 4, got 6"):
        records(url)


@pytest.mark.parametrize("end", ["gz", "bz2", "xz", "zst"])
def test_a_file_of_no_bytes_is_truncated(tmp_path, end):
    (tmp_path / f"a.txt.{end}").touch()
    with pytest.raises(tdi.SourceError, match="ended before"):
        play(tdi.FileDataset(str(tmp_path / f"a.txt.{end}")), 4)


@pytest.mark.parametrize(
    ("url", "is_compressed"),
    [
        ("zip://a.txt.gz::https://host/all.zip", True),
        ("tar://a.txt::/data/all.tar.gz", False),
        ("simplecache::https://host/a.txt.gz?X-Signature=abc", True),
        ("https://host/a.txt?next=a.GZ", True),
        ("s3://bucket/a.gz?b", False),
        ("simplecache::s3://bucket/a.txt", False),
        ("/data/a.txt.zst", True),
    ],
)
def test_which_name_tells(url, is_compressed):
    """That of the member, not of its archive; of a link without its signature."""
    assert is_compressed == (decompressor(url) is not None)
