"""A long listing lies on each machine once, mapped by its processes, and not for ever."""

from __future__ import annotations

import dataclasses
import errno
import gc
import logging
import pickle
import subprocess
import sys
import tempfile

import numpy as np
import pytest

import torch_distinput as tdi
from torch_distinput.data.storage import file_locks, shared_listing
from torch_distinput.data.storage.file_listing import FileInfo, FileListing
from torch_distinput.data.storage.shared_listing import share_listing

FILES = [
    FileInfo(path=f"s3://b/{n % 3}/{n}.txt", size=n or None, version="7" * n, has_ranges=n % 2 > 0)
    for n in range(9)
]


@pytest.fixture(autouse=True)
def root(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(shared_listing, "_LEAST_BYTES", 0)
    return tmp_path


def kept(root):
    return sorted(path.name for path in root.glob("*/listing-*/"))


def test_it_gives_back_what_was_listed():
    shared = share_listing(FileListing(FILES))
    assert FILES == list(shared)
    assert FileListing(FILES).digest == shared.digest
    assert isinstance(shared.columns.sizes, np.memmap)


def test_no_files_are_no_problem():
    assert [] == list(share_listing(FileListing([])))


def test_who_lists_the_same_maps_the_same_files(root):
    first, second = (share_listing(FileListing(FILES)) for _ in range(2))
    assert 1 == len(kept(root))
    assert first.columns.names.filename == second.columns.names.filename


@pytest.mark.parametrize("change", [{"path": "s3://c/0.txt"}, {"size": 2}, {"version": "8"}])
def test_another_file_of_names_as_long_is_another_list(root, change):
    one = FileInfo(path="s3://b/0.txt", size=1, version="7")
    others = [one, dataclasses.replace(one, **change)]
    first, second = (share_listing(FileListing([info])) for info in others)
    assert 2 == len(kept(root))
    assert others == [first[0], second[0]]


def test_a_process_gets_its_place_and_not_its_content():
    shared = share_listing(FileListing(FILES * 1000))
    pickled = pickle.dumps(shared)
    assert len(pickled) < 1000
    assert list(shared) == list(pickle.loads(pickled))


def test_the_next_list_takes_the_place_of_one_that_nobody_maps(root):
    first = share_listing(FileListing(FILES))
    second = share_listing(FileListing(FILES[:5]))
    assert 2 == len(kept(root))
    del first
    gc.collect()
    third = share_listing(FileListing(FILES[:3]))
    assert 2 == len(kept(root))
    assert (FILES[:5], FILES[:3]) == (list(second), list(third))


CHILD = """
import sys, pickle
listing = pickle.loads(bytes.fromhex(sys.argv[1]))
print("mapped", flush=True)
input()
print(len(list(listing)))
"""


@pytest.mark.slow
def test_a_list_that_another_process_maps_stays(root):
    shared = share_listing(FileListing(FILES))
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, pickle.dumps(shared).hex()],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert "mapped\n" == process.stdout.readline()
        del shared
        gc.collect()
        kept_now = share_listing(FileListing(FILES[:5]))
        assert 2 == len(kept(root))
        out, _ = process.communicate("\n", timeout=60)
    assert "9\n" == out
    assert FILES[:5] == list(kept_now)


def test_what_a_process_left_that_died_while_it_wrote_is_removed(root):
    share_listing(FileListing(FILES))
    (folder,) = root.iterdir()
    (folder / "listing-abc.half").mkdir()
    (folder / "listing-abc.lock").touch()
    share_listing(FileListing(FILES[:5]))
    assert not (folder / "listing-abc.half").exists()


def test_a_list_that_is_removed_before_it_is_mapped_is_written_again(monkeypatch, root):
    calls = []
    kept_folder = shared_listing.kept_folder

    def removed_once(key, make):
        folder = kept_folder(key, make)
        calls.append(key)
        if len(calls) == 1:
            shared_listing._remove_unused(folder, folder / "sizes.npy")
        return folder

    monkeypatch.setattr(shared_listing, "kept_folder", removed_once)
    assert FILES == list(share_listing(FileListing(FILES)))
    assert 2 == len(calls)


def test_without_room_each_process_keeps_its_own_and_says_so(monkeypatch, caplog):
    def full(key, make):
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(shared_listing, "kept_folder", full)
    listing = FileListing(FILES)
    with caplog.at_level(logging.WARNING):
        assert share_listing(listing) is listing
    assert "list of 9 files" in caplog.text
    assert "no room" in caplog.text


def test_few_files_stay_in_each_process(monkeypatch, root):
    monkeypatch.setattr(shared_listing, "_LEAST_BYTES", 1 << 20)
    listing = FileListing(FILES)
    assert share_listing(listing) is listing
    assert [] == list(root.iterdir())


def test_a_dataset_reads_by_a_shared_list(tmp_path, root):
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.txt").write_text(f"{number}\n" * 3)
    strategy = tdi.OneDeviceStrategy("cpu")
    dataset = strategy.distribute_dataset(
        tdi.FileDataset(str(folder / "*.txt")), global_batch_size=2, num_workers=1
    )
    read = [row for batch in dataset for row in batch]
    assert [str(number) for number in range(4) for _ in range(3)] == read
    assert 1 == len(kept(root))


def test_without_locks_a_listing_stays_in_its_process_and_a_warning_says_so(
    root, monkeypatch, caplog
):
    monkeypatch.setattr(file_locks, "HAS_LOCKS", False)
    listing = FileListing(FILES)
    assert listing is share_listing(listing)
    assert "this system has no locks on files" in caplog.text
    assert [] == kept(root)
