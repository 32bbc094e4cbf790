"""Files: listing, the text reader, the methods of FileDataset, and the building blocks."""

from __future__ import annotations

import glob
import itertools
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import torch_distinput as tdi
from tests.distribute.street import play, write_files
from torch_distinput.data.storage.filesystem import list_files


def records(dataset, **keywords):
    """All records of a recipe on one worker."""
    (steps,) = play(dataset, 4, **keywords)
    return [x for step in steps for batch in step for x in batch]


class TestListing:
    """Paths and globs."""

    def test_order(self, tmp_path):
        """Paths as given, globs sorted."""
        for name in ("b.txt", "a.txt", "c.csv"):
            (tmp_path / name).write_text(name)
        found = list_files([str(tmp_path / "c.csv"), str(tmp_path / "*.txt")], {})
        assert ["c.csv", "a.txt", "b.txt"] == [info.path.rpartition("/")[2] for info in found]
        assert [5, 5, 5] == [info.size for info in found]

    @pytest.mark.parametrize(
        "pattern", ["data/*/a.txt", "*/*/a.txt", "data/**/a.txt", "**/*.txt", "data/v?/a*"]
    )
    @pytest.mark.parametrize("start", ["file://", "simplecache::file://", "filecache::file://"])
    def test_links_to_folders(self, tmp_path, pattern, start):
        """Entered as by Python's own globs; but there must be an end to what is below them."""
        (tmp_path / "real" / "v2").mkdir(parents=True)
        (tmp_path / "data" / "v1").mkdir(parents=True)
        (tmp_path / "data" / "v2").symlink_to("../real/v2")
        (tmp_path / "data" / "b.txt").symlink_to("v1/a.txt")
        for folder in ("real/v2", "data/v1"):
            (tmp_path / folder / "a.txt").write_text(folder)
        python = partial(glob.glob, pattern, root_dir=tmp_path)  # pathlib's enters no links
        expected = sorted(python(recursive=True))
        (tmp_path / "real" / "v2" / "up").symlink_to("../..")
        (tmp_path / "data" / "v1" / "self").symlink_to(".")
        if "**" not in pattern:
            expected = sorted(python())
        found = list_files([f"{start}{tmp_path}/{pattern}"], {})
        assert expected == [info.path.removeprefix(f"{start}{tmp_path}/") for info in found]

    def test_refused(self, tmp_path):
        """Nothing found, or a folder."""
        with pytest.raises(FileNotFoundError, match="No file matches"):
            list_files([str(tmp_path / "*.txt")], {})
        with pytest.raises(IsADirectoryError, match="Append"):
            list_files([str(tmp_path)], {})
        with pytest.raises(ValueError, match="reader must be one of 'text'"):
            tdi.FileDataset("x", reader="word")

    def test_any_file_system(self):
        """Whatever fsspec opens."""
        import fsspec

        memory = fsspec.filesystem("memory")
        memory.pipe({"/numbers/a.txt": b"1\n2\n", "/numbers/b.txt": b"3\n"})
        files = tdi.FileDataset("memory://numbers/*.txt").map(int)
        assert [1, 2, 3] == records(files)


class TestText:
    """Lines."""

    @pytest.mark.parametrize(
        ("content", "lines"),
        [
            (b"", []),
            (b"a", ["a"]),
            (b"a\n", ["a"]),
            (b"a\r\nb\n\nc", ["a", "b", "", "c"]),
            (b"\n", [""]),
            ("ä\u2028b\x0bc\n".encode(), ["ä\u2028b\x0bc"]),  # only \n ends a line
        ],
    )
    def test_line_ends(self, tmp_path, content, lines):
        """As in TextLineDataset."""
        (tmp_path / "a").write_bytes(content)
        assert lines == records(tdi.FileDataset(tmp_path / "a"))

class TestMethods:
    """Each returns a new recipe."""

    @pytest.fixture
    def files(self, tmp_path):
        """Three files with 0..4, 5..7, 8..11."""
        return tdi.FileDataset(write_files(tmp_path, [range(5), range(5, 8), range(8, 12)]))

    def test_map_filter_take_repeat(self, files):
        """In the order written."""
        numbers = files.map(int)
        assert list(range(12)) == records(numbers)
        assert [0, 2, 4] == records(numbers.filter(lambda x: x % 2 == 0).take(3))
        assert [0, 1, 0, 1] == records(numbers.take(2).repeat(2))
        assert [0, 1, 2] == records(numbers.repeat().take(3))
        assert [0, 10, 20] == records(numbers.take(3).map(lambda x: x * 10))
        assert [] == records(numbers.take(0))
        assert [] == records(numbers.take(0).repeat())

    def test_a_recipe_is_not_changed(self, files):
        """Nothing is shared between recipes."""
        assert files.map(int) is not files
        assert [str(k) for k in range(12)] == records(files)

    def test_shuffle_permutes_windows(self, files):
        """By seed, epoch and window; records stay in their window."""
        shuffled = files.map(int).shuffle(4)
        (steps,) = play(shuffled, 4, epochs=2, seed=1)
        order = [x for step in steps for batch in step for x in batch]
        first, second = order[:12], order[12:]
        assert first != second
        for epoch in (first, second):
            assert list(range(12)) == sorted(epoch)
            assert [k // 4 for k in range(12)] == [x // 4 for x in epoch]
        assert first == records(shuffled, seed=1)
        assert first != records(shuffled, seed=2)

    def test_repetitions_are_shuffled_anew(self, files):
        """Each pass of a repeat has windows of its own."""
        twice = records(files.map(int).shuffle(12).repeat(2))
        assert twice[:12] != twice[12:]

    @pytest.mark.parametrize(
        ("cycle", "block", "expected"),
        [
            (1, 1, list(range(12))),
            (2, 1, [0, 5, 1, 6, 2, 7, 3, 4, 8, 9, 10, 11]),
            (3, 2, [0, 1, 5, 6, 8, 9, 2, 3, 7, 10, 11, 4]),
            (5, 1, [0, 5, 8, 1, 6, 9, 2, 7, 10, 3, 11, 4]),
        ],
    )
    def test_interleave(self, files, cycle, block, expected):
        """A file that ends gives its place to the next."""
        assert expected == records(files.interleave(cycle, block).map(int))

    def test_interleave_comes_first(self, files):
        """It mixes files, not records."""
        with pytest.raises(ValueError, match="must come first, got a recipe that already has map"):
            files.map(int).interleave(2)

    def test_shuffled_files_change_hands(self, tmp_path):
        """The list is permuted by (seed, epoch) and then dealt."""
        files = tdi.FileDataset(write_files(tmp_path, [[k] for k in range(8)])).map(int)
        by_flag = tdi.FileDataset(files.patterns, shuffle_files=True).map(int)
        workers = play(files, 2, 2, epochs=2, shuffle=True)
        assert workers == play(by_flag, 2, 2, epochs=2)
        held = [
            {x for step in worker[part] for b in step for x in b}
            for worker in workers
            for part in (slice(4), slice(4, 8))
        ]
        assert held[0] | held[2] == set(range(8)) == held[1] | held[3]
        assert held[0] != held[1]

    def test_random_maps_do_not_depend_on_who_reads(self, files):
        """``rng=`` is keyed by seed, epoch and record."""

        def noisy(record, rng):
            return int(record) * 1000 + int(rng.integers(1000))

        augmented = files.map(noisy)
        played = []
        for cluster, policy in itertools.product(((1, 1), (2, 1), (3, 2)), ("file", "data")):
            workers = play(
                augmented, 4, *cluster, options=tdi.InputOptions(auto_shard_policy=policy)
            )
            played.append(sorted(x for w in workers for s in w for b in s for x in b))
        assert all(played[0] == other for other in played)
        (steps,) = play(augmented, 4, epochs=2)
        flat = [x for step in steps for batch in step for x in batch]
        assert flat[:12] != flat[12:]

    def test_random_filters_do_not_depend_on_who_reads(self, files):
        kept = files.map(int).filter(lambda _, rng: rng.random() < 0.5)
        found = [play(kept, 4, *cluster, epochs=2) for cluster in ((1, 1), (2, 1), (3, 2))]
        flat = [sorted(x for w in ws for s in w for b in s for x in b) for ws in found]
        assert 0 < len(flat[0]) < 24
        assert all(flat[0] == other for other in flat)

    def test_random_maps_are_independent_of_each_other(self, files):
        """Each operation draws from a key of its own, in each repetition."""

        def draw(_, rng):
            return int(rng.integers(10**9))

        once, twice = files.map(draw), files.map(str).map(draw)
        recipes = (once, twice, once.filter(bool), twice.filter(bool))
        drawn = {records(recipe)[0] for recipe in recipes}
        assert 2 == len(drawn)
        nested = records(files.shuffle(12).repeat(2).repeat(2))
        assert 4 == len({tuple(nested[start : start + 12]) for start in range(0, 48, 12)})

    def test_repeating_what_a_filter_emptied_ends(self, files):
        """There is nothing to repeat."""
        assert [] == records(files.filter(lambda line: False).repeat())
        drawn = files.filter(lambda line, rng: rng.random() < 0.01).repeat(200)
        assert len(records(drawn)) > 20  # most passes keep nothing
        cut = files.map(int).shuffle(12).take(1)
        expected = records(cut.repeat(20).filter(lambda number: number < 3))
        assert expected == records(cut.filter(lambda number: number < 3).repeat(20))
        assert 1 < len(expected) < 20

    def test_final_maps_run_for_own_examples_only(self, files):
        """Under DATA the others' records are cut away first."""
        mapped = []

        def note(record):
            mapped.append(record)
            return int(record)

        play(files.map(note), 4, 3, options=tdi.InputOptions(auto_shard_policy="data"))
        assert [str(k) for k in range(12)] == sorted(mapped, key=int)

    @pytest.mark.parametrize(
        "call",
        [("shuffle", 0), ("shuffle", "4"), ("take", -1), ("repeat", -1), ("map", 1), ("filter", 1)],
    )
    def test_refused_arguments(self, files, call):
        """Whole numbers in range, and functions."""
        with pytest.raises((ValueError, TypeError), match="must be"):
            getattr(files, call[0])(call[1])


class TestBuildingBlocks:
    """For plain DataLoaders."""

    @pytest.mark.parametrize("processes", [0, 2])
    def test_file_shards(self, tmp_path, processes):
        """Shards, and loader processes within a shard, read every file once."""
        pattern = write_files(tmp_path, [range(5), range(5, 8), range(8, 12)])
        seen = []
        for index in range(2):
            shard = tdi.FileShardDataset(tdi.FileDataset(pattern).map(int), 2, index)
            shard.set_epoch(1)
            seen += DataLoader(shard, batch_size=None, num_workers=processes)
        assert list(range(12)) == sorted(seen)
        assert ["0", "1", "2", "3", "4", "8", "9", "10", "11"] == list(
            tdi.FileShardDataset(pattern, 2, 0)
        )

    @pytest.mark.parametrize("processes", [0, 2])
    def test_data_shards(self, processes):
        """Example i goes to shard i modulo the number of shards."""
        shards = [tdi.DataShardDataset(range(11), 3, index) for index in range(3)]
        assert [1, 4, 7, 10] == list(shards[1])
        seen = [
            int(x)
            for shard in shards
            for x in DataLoader(shard, batch_size=None, num_workers=processes)
        ]
        assert list(range(11)) == sorted(seen)

    def test_a_shard_does_not_depend_on_its_processes(self):
        """Workers may have different numbers of loader processes."""
        for processes in (0, 2, 3):
            shard = tdi.DataShardDataset(range(11), 2, 1)
            loader = DataLoader(shard, batch_size=None, num_workers=processes)
            assert [1, 3, 5, 7, 9] == sorted(int(x) for x in loader)

    def test_shards_are_checked(self):
        """An index outside."""
        with pytest.raises(ValueError, match="index must be below num_shards 2, got 2"):
            tdi.DataShardDataset(range(3), 2, 2)

    @pytest.mark.parametrize("rebatch", ["split", "even", "cycle"])
    def test_rebatch_sampler(self, rebatch):
        """Every index once over all workers; a plain loader takes the lists one by one."""
        from torch.utils.data import BatchSampler

        batches = BatchSampler(range(11), 4, drop_last=False)
        seen = []
        for worker in range(2):
            topology = tdi.Topology(num_workers=2, replicas_per_worker=2, worker_index=worker)
            sampler = tdi.RebatchSampler(batches, topology, rebatch=rebatch)
            steps = list(sampler)
            assert len(sampler) == len(steps) == 3
            assert all(2 == len(step) for step in steps)
            seen += [index for step in steps for part in step for index in part]
        assert list(range(11)) == sorted(seen)

    def test_rebatch_sampler_in_a_loader(self):
        """With a collate function that accepts no examples."""
        topology = tdi.Topology(num_workers=3, worker_index=2)
        sampler = tdi.RebatchSampler([[0, 1, 2, 3], [4, 5]], topology)
        lists = [part for step in sampler for part in step]
        collate = tdi.collate(tdi.TensorSpec((None,), torch.int64))
        loader = DataLoader(list(range(6)), batch_sampler=lists, collate_fn=collate)
        assert [[], []] == [batch.tolist() for batch in loader]

    def test_cycle_needs_a_size(self):
        """A list of batches has none."""
        with pytest.raises(ValueError, match="needs the size of a full batch"):
            tdi.RebatchSampler([[0, 1]], tdi.Topology(), rebatch="cycle")

    def test_cycle_refuses_larger_batches(self):
        """Its sizes are those of a full batch; the rest would be lost."""

        class Growing(list):
            batch_size = 2

        sampler = tdi.RebatchSampler(Growing([[0, 1, 2]]), tdi.Topology(), rebatch="cycle")
        with pytest.raises(ValueError, match="at most batch_sampler.batch_size = 2"):
            list(sampler)


def test_shards_of_split_files(tmp_path, caplog):
    """The building block deals out parts too, skips what is bad, and says so."""
    (tmp_path / "a.jsonl").write_text("".join(f'{{"x": {i}}}\n' for i in range(900)) + "bad\n")
    files = tdi.FileDataset(
        tmp_path / "a.jsonl", reader="jsonl", split_files=True, on_error="skip"
    )
    shards = [list(tdi.FileShardDataset(files, 3, index)) for index in range(3)]
    assert all(shards)
    assert sorted(int(record["x"]) for shard in shards for record in shard) == list(range(900))
    assert caplog.text.count("skips bad records") == 1


def test_times_of_other_units_do_not_join(tmp_path):
    """In the finer unit far dates would be others."""
    np.save(tmp_path / "0.npy", np.array(["9999-12-31", "2020-01-01"], "M8[s]"))
    np.save(tmp_path / "1.npy", np.array(["2021-01-01"], "M8[ns]"))
    expected = r"expected datetime64\[s\] of shape .*0\.npy, got datetime64\[ns\]"
    with pytest.raises(tdi.SourceError, match=expected):
        play(tdi.FileDataset(tmp_path / "*.npy", reader="npy"), 4)


def test_text_and_bytes_do_not_join(tmp_path):
    """Packed or not."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for number, value in enumerate(("a", b"a")):
        pq.write_table(pa.table({"s": [value]}), tmp_path / f"{number}.parquet")
    for strings in ("list", "packed"):
        files = tdi.FileDataset(tmp_path / "*.parquet", reader="parquet", strings=strings)
        with pytest.raises(tdi.SourceError, match=r"expected .*str.* at record\['s'\] .*bytes"):
            play(files, 4)
