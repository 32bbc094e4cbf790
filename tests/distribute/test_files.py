"""Datasets of files: units, known lengths, bad records, loader processes."""

from __future__ import annotations

import collections
import itertools
import logging
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.numbers_reader import BAD, Numbers, write_numbers
from tests.distribute.street import options, play, shown, write_files
from torch_distinput.testing import check_reader, simulate

clusters = st.tuples(st.integers(1, 4), st.integers(1, 2))
rules = st.sampled_from(["split", "even", "cycle"])
policies = st.sampled_from(["file", "data", "off"])
file_sizes = st.lists(st.integers(0, 12), min_size=1, max_size=6)
recipes = st.lists(
    st.sampled_from(["shuffle", "take", "repeat", "interleave", "filter", "map"]),
    max_size=3, unique=True,
)  # fmt: skip


def recipe(folder, names=(), **keywords):
    """A FileDataset of numbers with operations by name."""
    dataset = tdi.FileDataset(folder, **keywords)
    if "interleave" in names:
        dataset = dataset.interleave(2, 2)
    operations = {
        "shuffle": lambda d: d.shuffle(5),
        "take": lambda d: d.take(9),
        "repeat": lambda d: d.repeat(2),
        "filter": lambda d: d.filter(lambda x: int(x) % 3 > 0),
        "map": lambda d: d.map(lambda x: x + 100),
    }
    for name in names:
        dataset = operations[name](dataset) if name in operations else dataset
    return dataset


def numbered(sizes):
    """Files of these sizes; all records are different."""
    numbers = itertools.count()
    return [list(itertools.islice(numbers, size)) for size in sizes]


def examples(workers):
    """All delivered examples, as a multiset."""
    return collections.Counter(x for worker in workers for step in worker for b in step for x in b)


def test_the_reader_of_these_tests(tmp_path):
    """It keeps the promises it is to test."""
    write_numbers(tmp_path, [range(50)])
    for late in (False, True):
        reader = Numbers(counted=True, addressable=True, late=late)
        assert list(range(50)) == check_reader(reader, f"{tmp_path}/n0000.bin", num_records=50)


@pytest.mark.slow
@settings(max_examples=1000 if LONG else 20)  # tests/plan enumerates both ways to find the steps
@given(
    file_sizes, st.integers(1, 9), clusters, rules, policies,
    st.booleans(), st.booleans(), st.booleans(), st.booleans(), recipes,
)  # fmt: skip
def test_known_lengths_change_nothing(
    sizes, size, cluster, rebatch, policy, split, shuffle, drop_last, late, names
):
    """Steps that are planned are the steps that would have been voted on."""
    if policy == "file" and not split and len(sizes) < cluster[0]:
        sizes = sizes * cluster[0]
    keywords = {
        "options": options(auto_shard_policy=policy, rebatch=rebatch),
        "shuffle": shuffle, "drop_last": drop_last, "seed": 3, "epochs": 2,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        glob = write_numbers(Path(folder), numbered(sizes))
        readers = [Numbers(late=late), Numbers(counted=True, addressable=True, late=late)]
        played = [
            play(recipe(glob, names, reader=reader, split_files=split), size, *cluster, **keywords)
            for reader in readers
        ]
    assert played[0] == played[1]


@pytest.mark.slow
@given(file_sizes, st.integers(1, 9), clusters, st.booleans(), st.booleans(), st.booleans())
def test_exactly_once(sizes, size, cluster, counted, shuffle, by_data):
    """C1 for files that are split, also fewer than there are workers."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = tdi.FileDataset(
            write_numbers(Path(folder), numbered(sizes)),
            reader=Numbers(counted=counted), split_files=True,
        )  # fmt: skip
        policy = options(auto_shard_policy="data" if by_data else "auto")
        workers = play(dataset, size, *cluster, options=policy, shuffle=shuffle)
    assert dict.fromkeys(range(sum(sizes)), 1) == examples(workers)
    assert len({len(worker) for worker in workers}) == 1


class TestLengths:
    """len() and votes."""

    def test_length(self, tmp_path):
        """Known before the first step where the files tell, else a TypeError that says why."""
        glob = write_numbers(tmp_path, numbered([5, 0, 9]))

        def work(strategy):
            found = []
            for reader in (Numbers(counted=True), Numbers()):
                dataset = strategy.distribute_dataset(
                    tdi.FileDataset(glob, reader=reader), global_batch_size=4
                )
                iterator = iter(dataset)
                try:
                    found.append(len(dataset))
                except TypeError as error:
                    found.append(str(error))
                found.append(len(list(iterator)))
            return found

        for steps, same_steps, error, voted in simulate(work, num_workers=2):
            assert steps == same_steps == voted
            assert "no length before it is read" in error

    def test_known_lengths_need_no_channel(self, tmp_path):
        """Nothing is asked of the other workers while steps are played."""
        glob = write_numbers(tmp_path, numbered([5, 0, 9, 3]))

        def work(strategy, reader):
            dataset = strategy.distribute_dataset(
                tdi.FileDataset(glob, reader=reader), global_batch_size=4
            )
            list(dataset)
            return dataset._agreement_channel._channel is None

        for reader, known in ((Numbers(counted=True), True), (Numbers(), False)):
            assert simulate(lambda s, r=reader: work(s, r), num_workers=2) == [known] * 2

    def test_a_changed_file(self, tmp_path):
        """A file that is written anew between the survey and the reading is refused."""
        glob = write_numbers(tmp_path, numbered([8, 8]))
        dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
            tdi.FileDataset(glob, reader=Numbers(counted=True)), global_batch_size=4
        )
        list(dataset)
        write_numbers(tmp_path, numbered([8, 5]))
        with pytest.raises(tdi.SourceError, match="n0000.bin.*has changed since it was listed"):
            list(dataset)


class TestBadRecords:
    """on_error."""

    FILES: tuple = ([0, 1, 2, BAD, 4, 5], [10, BAD, BAD, 13], [], [20, 21, 22])

    @pytest.mark.parametrize("policy", ["file", "data"])
    @pytest.mark.parametrize("workers", [1, 2])
    def test_skipped_records(self, tmp_path, caplog, policy, workers):
        """Left out one by one where they are decoded later; counted, and logged once per file."""
        glob = write_numbers(tmp_path, self.FILES)

        def work(strategy):
            dataset = strategy.distribute_dataset(
                tdi.FileDataset(glob, reader=Numbers(late=True, counted=True), on_error="skip"),
                global_batch_size=4, options=options(auto_shard_policy=policy),
            )  # fmt: skip
            with iter(dataset) as iterator:
                steps = [shown(strategy, step) for step in iterator]
                return steps, iterator.stats().skipped

        with caplog.at_level(logging.WARNING, "torch_distinput"):
            results = simulate(work, num_workers=workers)
        assert {0, 1, 2, 4, 5, 10, 13, 20, 21, 22} == set(examples(steps for steps, _ in results))
        counted = collections.Counter()
        for _, skipped in results:
            counted |= collections.Counter({Path(path).name: n for path, n in skipped.items()})
        assert {"n0000.bin": 1, "n0001.bin": 2} == counted
        assert "skips bad records of" in caplog.text
        assert "n0000.bin: record 3: the largest number" in caplog.text

    def test_the_rest_of_a_part(self, tmp_path):
        """Where a reader raises while it reads, the rest of the part is left out."""
        glob = write_numbers(tmp_path, self.FILES)
        reader = Numbers(records_per_chunk=1, records_per_part=100)
        (steps,) = play(tdi.FileDataset(glob, reader=reader, on_error="skip"), 4)
        assert [0, 1, 2, 10, 20, 21, 22] == sorted(examples([steps]))

    def test_raised(self, tmp_path):
        """With file and record; the other ranks hear of it."""
        glob = write_numbers(tmp_path, self.FILES)
        for late in (True, False):
            with pytest.raises(tdi.SourceError, match="n0000.bin.*record [23].*the largest number"):
                play(tdi.FileDataset(glob, reader=Numbers(late=late)), 4)

    def test_a_function_decides(self, tmp_path):
        """It sees the error, and may count."""
        glob = write_numbers(tmp_path, self.FILES)
        seen = []

        def decide(error):
            seen.append(str(error))
            return "n0000" in str(error)

        dataset = tdi.FileDataset(glob, reader=Numbers(late=True), on_error=decide)
        with pytest.raises(tdi.SourceError, match="n0001.bin, record 1"):
            play(dataset, 4)
        assert len(seen) == 2

    def test_refused(self):
        """Neither a word we know nor a function."""
        with pytest.raises(ValueError, match="on_error must be"):
            tdi.FileDataset("x", on_error="ignore")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("context", "num_workers"), [("fork", 1), ("fork", 3), ("forkserver", 2), ("spawn", 1)]
)
def test_loader_processes(tmp_path, context, num_workers):
    """C3: the same steps as in this process, whoever reads, decodes and maps."""
    import torch.multiprocessing as mp

    glob = write_numbers(tmp_path, numbered([40, 3, 0, 25]))
    dataset = tdi.FileDataset(glob, reader=Numbers(late=True), split_files=True).interleave(2, 3)
    dataset = dataset.shuffle(7).map(plus_noise)
    (expected,) = play(dataset, 8, shuffle=True)
    before = mp.get_start_method()
    mp.set_start_method(context, force=True)
    try:
        (steps,) = play(dataset, 8, shuffle=True, num_workers=num_workers)
    finally:
        mp.set_start_method(before, force=True)
    assert expected == steps


def plus_noise(number, rng):
    """An augmentation."""
    return float(number) + rng.random()


def test_text_that_is_split(tmp_path):
    """One file for three workers."""
    glob = write_files(tmp_path, [range(5000)])
    workers = play(tdi.FileDataset(glob, split_files=True).map(int), 64, 3)
    assert dict.fromkeys(range(5000), 1) == examples(workers)
    assert all(any(step != [[]] for step in worker) for worker in workers)


def test_a_collate_fn_gets_records(tmp_path):
    """Rows of columns, one dict each."""
    (tmp_path / "a.csv").write_text("x,name\n1,a\n2,b\n3,c\n")
    (steps,) = play(
        tdi.FileDataset(tmp_path / "a.csv", reader="csv"), 2,
        collate_fn=lambda rows: [f"{row['name']}{int(row['x'])}" for row in rows],
    )  # fmt: skip
    assert [[["a1", "b2"]], [["c3"]]] == steps


def test_keys_in_any_order(tmp_path):
    """Columns are joined by name, whoever wrote the lines."""
    lines = ['{"a": 1, "b": 2}', '{"b": 20, "a": 10}', '{"a": 3, "c": 4}']
    for number, line in enumerate(lines):
        (tmp_path / f"{number}.jsonl").write_text(line + "\n")

    def work(strategy, names, on_error):
        files = tdi.FileDataset(
            [tmp_path / name for name in names], reader="jsonl", on_error=on_error
        )
        dataset = strategy.distribute_dataset(files, global_batch_size=4)
        with iter(dataset) as iterator:
            steps = [{name: column.tolist() for name, column in step.items()} for step in iterator]
            return steps, list(iterator.stats().skipped.values())

    strategy = tdi.OneDeviceStrategy("cpu")
    both = [{"a": [1, 10], "b": [2, 20]}]
    assert work(strategy, ["0.jsonl", "1.jsonl"], "raise") == (both, [])
    assert work(strategy, ["0.jsonl", "1.jsonl", "2.jsonl"], "skip") == (both, [1])
    with pytest.raises(tdi.SourceError, match="2.jsonl.*expected the columns .*'b'.*got .*'c'"):
        work(strategy, ["0.jsonl", "2.jsonl"], "raise")


@pytest.mark.slow
@given(
    st.lists(st.lists(st.sampled_from([1, 2, BAD]), max_size=8), min_size=1, max_size=4),
    st.integers(1, 6), st.integers(2, 3), rules, st.booleans(),
)  # fmt: skip
def test_skipping_under_data_is_the_same_for_any_number_of_workers(
    files, size, workers, rebatch, late
):
    """Counted units are no reason to pass over records of which some are bad."""
    reader = Numbers(counted=True, addressable=True, late=late, records_per_chunk=1)
    numbers = itertools.count()
    files = [[value if value == BAD else next(numbers) for value in file] for file in files]
    policy = options(auto_shard_policy="data", rebatch=rebatch)
    with tempfile.TemporaryDirectory() as folder:
        recipe = tdi.FileDataset(
            write_numbers(Path(folder), files), reader=reader, on_error="skip"
        )
        alone = play(recipe, size, 1, options=policy)
        several = play(recipe, size, workers, options=policy)
    assert examples(alone) == examples(several)
    assert max(examples(several).values(), default=1) == 1


@pytest.mark.slow
def test_ids_do_not_depend_on_loader_processes(tmp_path):
    """Nor does what is keyed by them."""
    glob = write_numbers(tmp_path, numbered([9, 0, 14]))

    def work(strategy, num_workers, reader):
        dataset = strategy.distribute_dataset(
            tdi.FileDataset(glob, reader=reader), global_batch_size=4, num_workers=num_workers
        )
        iterator = iter(dataset)
        return [iterator.last_step.ids.tolist() for _ in iterator]

    strategy = tdi.OneDeviceStrategy("cpu")
    for reader in (Numbers(), Numbers(late=True), Numbers(counted=True)):
        assert work(strategy, 0, reader) == work(strategy, 1, reader) == work(strategy, 2, reader)


@pytest.mark.parametrize("num_workers", [0, 1, 2, 4])
def test_an_error_comes_after_the_steps_before_it(tmp_path, num_workers):
    """Also where one process reads and others finish."""
    glob = write_numbers(tmp_path, [[*range(40), BAD]])
    reader = Numbers(records_per_chunk=4, records_per_part=100)
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
        tdi.FileDataset(glob, reader=reader).map(int), global_batch_size=4, num_workers=num_workers
    )
    seen = 0
    with pytest.raises(tdi.SourceError, match="n0000.bin, after record 40"):
        for step in dataset:
            seen += len(step)
    assert seen == 40


def test_files_of_different_kinds_on_different_workers(tmp_path):
    """All workers hear of it before the first step."""
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    (tmp_path / "b.csv").write_text("x\n1.5\n2\n")
    with pytest.raises(tdi.MismatchError, match="int64.* on worker 0 and .*float64.* on worker 1"):
        play(tdi.FileDataset(tmp_path / "*.csv", reader="csv"), 4, 2)
