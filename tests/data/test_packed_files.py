"""Files with packed strings: the records, order, ids, states and errors are those of lists."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import torch_distinput as tdi
from tests.conftest import LONG
from tests.distribute.street import options
from tests.formats import FORMATS
from torch_distinput.data.batch.tree import flatten
from torch_distinput.data.formats import text
from torch_distinput.testing import check_reader, simulate

PACKED = sorted(FORMATS.keys() - {"npy", "npz"})
SIZES = (20, 0, 3, 41, 1, 9)
NUM_RECIPES, NUM_DAMAGED = (40, 60) if LONG else (4, 10)
POLICIES = list(itertools.product(["file", "data"], [False, True]))
SOME_POLICIES = POLICIES if LONG else [("file", False), ("data", True)]
"""How files are dealt out, and whether they are split. Each of the two in the ordinary run."""


def write(folder, form, sizes=SIZES):
    """Files of these sizes with running numbers."""
    numbers = itertools.count()
    for place, size in enumerate(sizes):
        content = form.write(list(itertools.islice(numbers, size)))
        (folder / f"{place}.{form.suffix}").write_bytes(content)
    return f"{folder}/*.{form.suffix}"


def plain(tree):
    """Packed strings as lists, tensors as lists too."""
    if isinstance(tree, dict):
        return {name: plain(column) for name, column in tree.items()}
    if isinstance(tree, tdi.PackedStrings):
        return tree.to_list()
    return tree.tolist() if hasattr(tree, "tolist") else tree


def play(make, workers=1, *, state=None, steps=None, replicas=1):
    """Per worker the steps, their ids and the state after them, as plain values.

    But for the places to read again from: under DATA those of the worker that voted first.
    """
    played, states = zip(
        *_play(make, workers, state=state, steps=steps, replicas=replicas), strict=True
    )
    return played, [{**json.loads(said), "streams": None} for said in states]


def state_after(make, workers, steps):
    return _play(make, workers, steps=steps)[0][1]


def _play(make, workers, *, state=None, steps=None, replicas=1):

    def work(strategy):
        dataset = make(strategy)
        if state is not None:
            dataset.load_state_dict(json.loads(state))
        played = []
        with iter(dataset) as iterator:
            for batch in itertools.islice(iterator, steps):
                parts = strategy.local_results(iterator.last_step.ids)
                results = map(plain, strategy.local_results(batch))
                played.append((list(results), [ids.tolist() for ids in parts]))
            return played, json.dumps(dataset.state_dict())

    return simulate(work, num_workers=workers, replicas_per_worker=replicas)


def both(paths, form, size=5, recipe=lambda files: files, *, policy="file", **keywords):
    """Functions that distribute the files as lists and packed."""
    settings = {key: keywords.pop(key) for key in ("split_files", "on_error") if key in keywords}

    def make(strings):
        files = recipe(
            tdi.FileDataset(paths, reader=form.reader, strings=strings, **settings)
        )
        chosen = options(auto_shard_policy=policy)
        return lambda strategy: strategy.distribute_dataset(
            files, global_batch_size=size, options=chosen, **keywords
        )

    return make("list"), make("packed")


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "split_files"), SOME_POLICIES)
@pytest.mark.parametrize("name", PACKED)
def test_steps_ids_and_states_are_those_of_lists(tmp_path, name, policy, split_files):
    """Also behind a resume, from a state of the other, with other workers."""
    form = FORMATS[name]
    paths = write(tmp_path, form)
    lists, packed = both(paths, form, policy=policy, split_files=split_files, shuffle=True, seed=3)
    expected = play(lists, 3, replicas=2)
    assert expected == play(packed, 3, replicas=2)
    assert play(lists, 3, steps=3) == play(packed, 3, steps=3)
    state = state_after(lists, 3, 3)
    assert play(lists, 2, state=state) == play(packed, 2, state=state)


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("name", PACKED)
def test_loader_processes(tmp_path, name, num_workers):
    form = FORMATS[name]
    lists, packed = both(write(tmp_path, form), form, num_workers=num_workers)
    assert play(lists) == play(packed)


recipes = st.lists(
    st.sampled_from([
        lambda files: files.filter(lambda record: "9" not in str(record)),
        lambda files: files.shuffle(7),
        lambda files: files.take(30),
        lambda files: files.repeat(2),
    ]),
    max_size=3,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKED)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=NUM_RECIPES)
@given(chosen=recipes, cycle=st.booleans(), mapped=st.booleans(), workers=st.integers(1, 3),
       steps=st.integers(0, 6), policy=st.sampled_from(["file", "data"]))  # fmt: skip
def test_recipes(tmp_path_factory, name, chosen, cycle, mapped, workers, steps, policy):
    """A map or filter sees the same records."""
    form = FORMATS[name]
    folder = tmp_path_factory.getbasetemp() / f"recipes {name}"
    folder.mkdir(exist_ok=True)
    paths = write(folder, form)

    def recipe(files):
        files = files.interleave(2, 2) if cycle else files
        for operation in chosen:
            files = operation(files)
        return files.map(str) if mapped else files

    lists, packed = both(paths, form, recipe=recipe, policy=policy)
    assert play(lists, workers, steps=steps) == play(packed, workers, steps=steps)
    state = state_after(packed, workers, steps)
    assert play(lists, workers, state=state) == play(packed, workers, state=state)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=2 * NUM_RECIPES)
@given(buffer_size=st.integers(1, 60), mapped=st.booleans(), workers=st.integers(1, 3),
       others=st.integers(1, 3), steps=st.integers(0, 6),
       policy=st.sampled_from(["file", "data"]))  # fmt: skip
def test_long_rows_on_other_workers(
    tmp_path_factory, buffer_size, mapped, workers, others, steps, policy
):
    """Rows that a shuffle copies one by one: each once, as in lists, also behind a resume."""
    folder = tmp_path_factory.getbasetemp() / "long rows"
    folder.mkdir(exist_ok=True)
    numbers = itertools.count()
    for place, size in enumerate(SIZES):
        lines = (f"{next(numbers)} {'ä' * 40}\n" for _ in range(size))
        (folder / f"{place}.txt").write_text("".join(lines))
    total = next(numbers)

    def recipe(files):
        files = files.shuffle(buffer_size)
        return files.map(str) if mapped else files

    paths = f"{folder}/*.txt"
    lists, packed = both(paths, FORMATS["text"], recipe=recipe, policy=policy)
    before = play(packed, workers, steps=steps)
    assert play(lists, workers, steps=steps) == before
    state = state_after(packed, workers, steps)
    after = play(packed, others, state=state)
    assert play(lists, others, state=state) == after
    found = [row for run in (before, after) for rank in run[0] for parts, _ in rank
             for part in parts for row in part]  # fmt: skip
    assert list(range(total)) == sorted(int(row.split()[0]) for row in found)


@pytest.mark.parametrize("name", PACKED)
def test_what_is_text_is_packed(tmp_path, name):
    form = FORMATS[name]
    _, packed = both(write(tmp_path, form), form, 64)
    (leaves, _), *_ = (flatten(step) for step in packed(tdi.OneDeviceStrategy("cpu")))
    assert tdi.PackedStrings in set(map(type, leaves))
    assert not {list} & set(map(type, leaves))


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKED)
def test_keeps_the_promises(tmp_path, name):
    """The conformance test, and the records of lists."""
    form = FORMATS[name]
    path = tmp_path / f"a.{form.suffix}"
    path.write_bytes(form.write(list(range(300))))
    packed = check_reader(form.reader.with_packed_strings(), str(path), num_records=300)
    assert list(map(plain, check_reader(form.reader, str(path), num_records=300))) == list(
        map(plain, packed)
    )


def outcome(make):
    """All that is read and skipped, or the error."""
    try:
        with iter(make(tdi.OneDeviceStrategy("cpu"))) as steps:
            read = [(plain(step), steps.last_step.ids.tolist()) for step in steps]
            return read, steps.stats().skipped
    except tdi.SourceError as error:
        return str(error)


def damaged(content, random):
    """Flipped bits, or cut off."""
    if random.integers(4) == 0:
        return content[: int(random.integers(len(content)))]
    out = bytearray(content)
    for place in random.integers(len(content), size=random.integers(1, 5)).tolist():
        out[place] ^= 1 << int(random.integers(8))
    return bytes(out)


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKED)
def test_bad_records_are_those_of_lists(tmp_path, name):
    """In the same words, and the same rows are left."""
    form = FORMATS[name]
    content, random = form.write(list(range(60))), np.random.default_rng(0)
    path = tmp_path / f"a.{form.suffix}"
    different = 0
    for number in range(NUM_DAMAGED):
        path.write_bytes(damaged(content, random))
        for on_error in ("raise", "skip"):
            lists, packed = map(outcome, both(str(path), form, 8, on_error=on_error))
            assert lists == packed, f"mutation {number}"
            different += isinstance(lists, str)
    assert different > 2


@pytest.mark.parametrize("reader", ["npy", "npz"])
def test_formats_without_strings(reader):
    with pytest.raises(tdi.ConfigurationError, match=r"strings='packed', got Np[yz]\. Leave"):
        tdi.FileDataset("x", reader=reader, strings="packed")


def test_another_word():
    with pytest.raises(ValueError, match="'list' or 'packed', got 'arrow'"):
        tdi.FileDataset("x", strings="arrow")


lines = st.lists(
    st.sampled_from([b"a", b"\n", b"\r", b"\r\n", "é".encode(), b"\xff", b"\xef\xbb\xbf", b" "]),
    max_size=14,
).map(b"".join)


@pytest.mark.slow
@given(content=lines, on_error=st.sampled_from(["raise", "skip"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_lines_end_where_they_end_in_lists(tmp_path_factory, content, on_error):
    path = tmp_path_factory.getbasetemp() / "lines.txt"
    path.write_bytes(content)
    lists, packed = map(outcome, both(str(path), FORMATS["text"], 4, on_error=on_error))
    assert lists == packed


@pytest.mark.parametrize("place", [0, 7, (1 << 18) - 1, 1 << 18, (1 << 18) + 9, (1 << 19) + 1])
def test_line_ends_at_the_borders_of_pieces(place):
    block = bytearray(b"x" * ((1 << 19) + 5))
    for at in (place, place + 1):
        block[at] = 0x0A
    assert bytes(block).decode().split("\n") == text._pack(bytes(block)).to_list()
