"""Records of other types than those before them: named, and left out one by one."""

from __future__ import annotations

import json
import re
from itertools import islice

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

import torch_distinput as tdi
from torch_distinput.data.batch.fingerprint import fingerprint
from torch_distinput.data.formats import text
from torch_distinput.testing import simulate

PADDING = "p" * 2000


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(text, "CHUNK_BYTES", 1 << 14)


def play(path, records, reader="jsonl", **arguments):
    lines = [json.dumps({"pad": PADDING, **record}) + "\n" for record in records]
    path.write_text("".join(lines))
    files = tdi.FileDataset(str(path), reader=reader, **arguments)
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(files, global_batch_size=4)
    with iter(dataset) as iterator:
        found = [i for batch in iterator for i in batch["i"].tolist()]
        return found, iterator.stats().skipped


def test_the_record_and_the_type_to_write_are_named(tmp_path):
    records = [{"i": i, "x": 0.5 if i == 33 else 1} for i in range(40)]
    said = r"a.jsonl, record 33: expected torch.int64 .*record\['x'\].*got torch.float64"
    with pytest.raises(tdi.SourceError, match=said) as caught:
        play(tmp_path / "a.jsonl", records)
    assert "columns={'x': torch.float64}, with the other columns" in str(caught.value)
    assert '{"pad": "ppp' in str(caught.value)


def test_lists_of_another_length_are_told_apart(tmp_path):
    records = [{"i": i, "x": [1] * (2 + i // 20)} for i in range(40)]
    wanted = "columns={'x': (torch.int64, ...)}"
    with pytest.raises(tdi.SourceError, match=rf"record \d+: .*{re.escape(wanted)}"):
        play(tmp_path / "a.jsonl", records)


@pytest.mark.parametrize("strings", ["list", "packed"])
def test_only_they_are_left_out_and_counted(tmp_path, strings):
    records = [
        {"i": i, "x": 0.5 if i in {33, 37} else 1} | ({"t": "some"} if i % 4 == 0 else {})
        for i in range(60)
    ]
    path = tmp_path / "a.jsonl"
    found, skipped = play(path, records, strings=strings, on_error="skip")
    assert found == [i for i in range(60) if i not in {33, 37}]
    assert skipped == {str(path): 2}


def test_a_chunk_without_a_column_is_left_out_as_a_whole(tmp_path):
    records = [{"i": i} | ({"t": "some"} if i < 20 else {}) for i in range(40)]
    found, skipped = play(tmp_path / "a.jsonl", records, on_error="skip")
    assert found == list(range(27))  # nine lines a chunk
    assert sum(skipped.values()) == 2


@pytest.mark.parametrize("others", [[], [{"i": 99}], [{"i": 99, "x": None}], [{"i": 99, "x": "a"}]])
def test_those_that_fit_stay_beside_odd_ones_of_several_kinds(tmp_path, others):
    """Also where most of a chunk are odd: what was first says what fits."""
    records = [{"i": i, "x": 1} for i in range(20)]
    records += [{"i": i, "x": 0.5 if i % 5 < 3 else 1} for i in range(20, 60)]
    records[43:43] = others
    found, skipped = play(tmp_path / "a.jsonl", records, on_error="skip")
    assert found == [i for i in range(60) if i < 20 or i % 5 >= 3]
    assert sum(skipped.values()) == 24 + len(others)


def test_a_column_that_one_record_lacks(tmp_path):
    """The advice for text is not given for a number."""
    records = [{"i": i} if i == 33 else {"i": i, "x": 0.5} for i in range(40)]
    columns = {"i": torch.int64, "x": torch.float32}
    said = "record 33: Expected column 'x', but it is not there; there are ['pad', 'i']. Write"
    with pytest.raises(tdi.SourceError, match=re.escape(said)) as caught:
        play(tmp_path / "a.jsonl", records, reader=tdi.readers.JSONL(columns))
    assert "str" not in str(caught.value)
    with pytest.raises(tdi.SourceError, match=re.escape("{'x': str}")):
        play(tmp_path / "a.jsonl", records, reader=tdi.readers.JSONL(list(columns)))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("split", [False, True])
def test_the_name_of_a_record_in_a_part(tmp_path, split, workers):
    """Its line can be found: by its number, or from the byte on that the error names."""
    lines = [b'{"a": %d}' % i for i in range(3000)]
    lines[2000] = b"torn"
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(lines))
    files = tdi.FileDataset(str(path), reader="jsonl", split_files=split)
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
        files, global_batch_size=64, num_workers=workers
    )
    with pytest.raises(tdi.SourceError, match=r"a\.jsonl, record .*torn") as caught:
        list(dataset)
    name = r"record (\d+)(?: of the part from byte (\d+) on)?: "
    number, byte = re.search(name, str(caught.value)).groups()
    assert split == (byte is not None)
    following = path.read_bytes()[int(byte) - 1 :].split(b"\n")[1:] if split else lines
    assert following[int(number)] == b"torn"


@pytest.mark.parametrize("policy", ["file", "data"])
@pytest.mark.parametrize("types", [("string", "binary"), ("string", "null"), ("null", "binary")])
def test_text_on_one_worker_and_bytes_on_another(tmp_path, types, policy):
    """An error, as on one worker; a column of which there is nothing fits either."""
    values = {"string": "x", "binary": b"x", "null": None}
    for number, kind in enumerate(types):
        wide = pa.binary() if "binary" in types else pa.string()
        column = pa.array([values[kind]] * 2, wide if kind == "null" else kind)
        parquet.write_table(pa.table({"x": column}), tmp_path / f"{number}.parquet")

    def work(strategy):
        dataset = strategy.distribute_dataset(
            tdi.FileDataset(f"{tmp_path}/*.parquet", reader="parquet"),
            global_batch_size=4,
            options=tdi.InputOptions(auto_shard_policy=policy),
        )
        return [value for batch in dataset for value in batch["x"]]

    if types == ("string", "binary"):
        with pytest.raises((tdi.MismatchError, tdi.SourceError), match="str.*bytes"):
            simulate(work, num_workers=2)
    else:
        found = [value for own in simulate(work, num_workers=2) for value in own]
        assert [values[kind] for kind in types for _ in range(2)] == found


def test_whole_numbers_that_floats_do_not_hold(tmp_path):
    """Beside a float they would be rounded; alone they are not."""
    records = [{"i": i, "x": 2**53 + 1} for i in range(4)]
    play(tmp_path / "a.jsonl", records)
    with pytest.raises(tdi.SourceError, match="'x' that fit torch.float64, got 9007199254740993"):
        play(tmp_path / "b.jsonl", [*records[:3], {"i": 3, "x": 0.5}])
    play(tmp_path / "c.jsonl", [{"i": 0, "x": 2**53}, {"i": 1, "x": 0.5}])


@pytest.mark.parametrize("made", [None, {}, ()])
def test_a_map_that_returns_nothing(tmp_path, made):
    """As one whose return statement was forgotten."""
    (tmp_path / "a.txt").write_text("1\n2\n")
    files = tdi.FileDataset(str(tmp_path / "a.txt")).map(lambda _: made)
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(files, global_batch_size=2)
    with pytest.raises(tdi.SourceError, match=r"got .* as example 0. Return the example"):
        next(iter(dataset))


@pytest.mark.parametrize("policy", ["data", "file"])
@pytest.mark.parametrize("size", [0, 1, 3, 6, 7, 20])
def test_bad_records_are_none_of_those_to_take(tmp_path, size, policy):
    """Whatever reader finds them bad, and when; and from each position."""
    lines = [json.dumps({"id": number}) if number % 3 else "garbage" for number in range(18)]
    (tmp_path / "a.jsonl").write_text("".join(f"{line}\n" for line in lines))
    files = tdi.FileDataset(tmp_path / "a.jsonl", reader="jsonl", on_error="skip").take(size)
    good = [number for number in range(18) if number % 3]
    options = tdi.InputOptions(auto_shard_policy=policy)

    def make(strategy):
        return strategy.distribute_dataset(files, global_batch_size=4, options=options)

    steps = list(make(tdi.OneDeviceStrategy("cpu")))
    assert good[:size] == [number for step in steps for number in step["id"].tolist()]
    for number in range(len(steps) + 1):
        left = make(tdi.OneDeviceStrategy("cpu"))
        for _ in zip(range(number), left, strict=False):
            pass
        again = make(tdi.OneDeviceStrategy("cpu"))
        again.load_state_dict(left.state_dict())
        rest = [row for step in again for row in step["id"].tolist()]
        assert good[:size][4 * number :] == rest


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize(
    "recipe",
    [
        lambda files: files.take(40).shuffle(9),
        lambda files: files.shuffle(9).take(40),
        lambda files: files.take(30).repeat(2).shuffle(7).filter(lambda row: row["id"] > 5),
        lambda files: files.take(40).map(lambda row, rng: row["id"] + 100 * int(rng.integers(9))),
    ],
)
def test_from_raise_to_skip(tmp_path, recipe, num_workers):
    """The order is the same, and a state of the one goes on with the other."""
    lines = "".join(f"{json.dumps({'id': number})}\n" for number in range(50))
    (tmp_path / "a.jsonl").write_text(lines)
    options = tdi.InputOptions(auto_shard_policy="data")

    def played(on_error, state=None, num_steps=None):
        files = recipe(tdi.FileDataset(tmp_path / "a.jsonl", reader="jsonl", on_error=on_error))

        def work(strategy):
            dataset = strategy.distribute_dataset(
                files, global_batch_size=4, seed=3, options=options
            )
            if state is not None:
                dataset.load_state_dict(state)
            steps = [fingerprint(step) for step in islice(dataset, num_steps)]
            return steps, dataset.state_dict()

        results = simulate(work, num_workers=num_workers)
        return [steps for steps, _ in results], results[0][1]

    whole, _ = played("raise")
    assert whole == played("skip")[0]
    head, state = played("raise", num_steps=3)
    tail, _ = played("skip", state)
    assert whole == [one + two for one, two in zip(head, tail, strict=True)]


@pytest.mark.parametrize(
    "recipe", [lambda files: files.take(12).shuffle(3), lambda files: files.shuffle(5).take(12)]
)
def test_what_was_taken_is_good(tmp_path, recipe):
    """Whole numbers and fractions are joined in a chunk; by themselves they would not be alike."""
    rows = [{"x": number if number % 2 else number + 0.5} for number in range(40)]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    files = recipe(tdi.FileDataset(tmp_path / "a.jsonl", reader="jsonl", on_error="skip"))
    with iter(tdi.OneDeviceStrategy("cpu").distribute_dataset(files, global_batch_size=4)) as steps:
        assert 12 == sum(len(step["x"]) for step in steps)
        assert {} == steps.stats().skipped
