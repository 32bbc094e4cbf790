"""What torchtitan's loops get from our dataloader: every row once, whatever the degree."""

from __future__ import annotations

import dataclasses
import itertools
import json
import warnings
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.utils.data import IterableDataset
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.loss import IGNORE_INDEX

import torch_distinput as tdi
from torch_distinput.integrations import torchtitan, versions
from torch_distinput.integrations.torchtitan import DistributedDataLoader
from torch_distinput.testing import run_ranks

COUNT, LENGTH = 41, 3
BUDGET = tdi.TokenBudget(64, length=len)
ROWS = {"local_batch_size": 2, "seq_len": LENGTH, "snapshot_every_n_steps": 6}
TOKENS = {"num_tokens_per_batch": 2 * LENGTH, "max_context_length": LENGTH}


def read_columns(tokenizer, seq_len, count=COUNT):
    """Rows that are told apart by their tokens, from 1: padding may be zeros."""
    del tokenizer
    rows = torch.arange(1, count + 1)[:, None].expand(count, seq_len)
    return {"input": rows, "labels": rows}


def read_pairs(tokenizer, seq_len):
    """A list, as torchtitan's own datasets give their rows."""
    columns = read_columns(tokenizer, seq_len)
    return [({"input": row}, row) for row in columns["labels"]]


def read_files(folder, tokenizer, seq_len):
    """Files that are dealt out, of lengths that are not known."""
    del tokenizer
    files = sorted(folder.glob("*.txt"))
    return tdi.FileDataset(list(map(str, files))).map(partial(parse, seq_len))


def parse(seq_len, line):
    row = torch.full((seq_len,), int(line))
    return {"input": row, "labels": row}


def config_of(**settings):
    fields = {"source_fn": read_columns, "global_batch_size": 12, "infinite": False, **settings}
    return DistributedDataLoader.Config(**fields)


def build(config, shape, dp_world_size=None):
    """As torchtitan does on each rank; those of one data-parallel rank lie beside each other."""
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if dist.is_initialized() else 0
    size = dp_world_size or world_size
    place = rank // (world_size // size)
    return config.build(dp_world_size=size, dp_rank=place, tokenizer=None, **shape)


def trained(micro_batches):
    """The rows whose labels count, and how many micro-batches they came in."""
    batches = list(micro_batches)
    rows = [labels.reshape(-1, LENGTH)[:, 0].tolist() for _, labels in batches]
    return [row for batch in rows for row in batch if row != IGNORE_INDEX], len(batches)


def play(config, shape, _):
    return trained(build(config, shape))


@pytest.mark.parametrize("read", [read_columns, read_pairs])
@pytest.mark.parametrize("shape", [ROWS, TOKENS])
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_every_row_once_in_whole_optimizer_steps(num_ranks, shape, read):
    """41 rows, 12 to a step: with 2 ranks 11 micro-batches of 2 rows, and one that is ignored."""
    ranks = run_ranks(partial(play, config_of(source_fn=read, shuffle=True), shape), num_ranks)
    assert list(range(1, COUNT + 1)) == sorted(row for rows, _ in ranks for row in rows)
    assert {4 * (6 // num_ranks)} == {count for _, count in ranks}


def shapes(shape, _):
    inputs, labels = list(build(config_of(), shape))[-1]
    return {name: tuple(value.shape) for name, value in inputs.items()}, tuple(labels.shape)


def test_rows_for_torchtitan_0_3_and_tokens_after_it():
    """The last micro-batch too, which is all padding; tokens come with their positions."""
    assert [({"input": (2, 3)}, (2, 3))] * 2 == run_ranks(partial(shapes, ROWS), 2)
    flat = ({"positions": (6,), "input": (6,)}, (6,))
    assert [flat] * 2 == run_ranks(partial(shapes, TOKENS), 2)


def test_rows_of_tokens_keep_their_order_and_positions():
    inputs, labels = next(iter(build(config_of(), TOKENS)))
    assert [1, 1, 1, 2, 2, 2] == inputs["input"].tolist() == labels.tolist()
    assert [0, 1, 2, 0, 1, 2] == inputs["positions"].tolist()


def test_what_is_ignored_is_what_torchtitan_ignores():
    assert IGNORE_INDEX == torchtitan.IGNORE_INDEX


def leg(config, shape, folder, number, num_steps, _):
    """Go on from a checkpoint, play some optimizer steps, and leave another one behind."""
    loader = build(config, shape)
    if number:
        dcp.load({"dataloader": loader}, checkpoint_id=folder / str(number - 1))
    group_size = 12 // (2 * dist.get_world_size())
    iterator = iter(loader)
    rows, _ = trained(
        itertools.islice(iterator, None if num_steps is None else num_steps * group_size)
    )
    dcp.save({"dataloader": loader}, checkpoint_id=folder / str(number))
    return rows


@pytest.mark.parametrize("is_files", [False, True])
def test_another_degree_goes_on(is_files, tmp_path):
    """Two ranks, then three, then one, through torch's distributed checkpoints."""
    for number, start in enumerate(range(0, COUNT, 9)):
        lines = range(start + 1, min(start + 10, COUNT + 1))
        (tmp_path / f"{number}.txt").write_text("".join(f"{line}\n" for line in lines))
    read = partial(read_files, tmp_path) if is_files else read_columns
    config = config_of(source_fn=read, shuffle=not is_files)
    found = []
    for number, (num_ranks, num_steps) in enumerate([(2, 1), (3, 1), (1, None)]):
        ranks = run_ranks(partial(leg, config, ROWS, tmp_path, number, num_steps), num_ranks)
        found.append(sorted(row for rows in ranks for row in rows))
    assert all(found)
    assert list(range(1, COUNT + 1)) == sorted(row for rows in found for row in rows)


class OwnPart(IterableDataset):
    def __init__(self, rank, size):
        self.rank, self.size = rank, size

    def __iter__(self):
        return iter(range(self.rank, COUNT, self.size))


def test_what_torchtitan_refuses():
    """Its ranks end at different steps, and its states are of one degree."""
    loaders = [ParallelAwareDataloader(OwnPart(rank, 2), rank, 2, batch_size=2) for rank in (0, 1)]
    assert [11, 10] == [sum(1 for _ in loader) for loader in loaders]
    another = ParallelAwareDataloader(OwnPart(0, 3), 0, 3, batch_size=2)
    with pytest.raises(AssertionError, match="resharding is not supported"):
        another.load_state_dict(loaders[0].state_dict())


def play_beside(dp_world_size, _):
    return trained(build(config_of(source_fn=read_pairs), ROWS, dp_world_size))[0]


def test_ranks_of_one_place_get_the_same():
    """As those of tensor, context and pipeline parallelism."""
    ranks = run_ranks(partial(play_beside, 2), 4)
    assert ranks[:2] == [ranks[0]] * 2
    assert ranks[2:] == [ranks[2]] * 2
    assert list(range(1, COUNT + 1)) == sorted(ranks[0] + ranks[2])
    assert [list(range(1, COUNT + 1))] * 2 == run_ranks(partial(play_beside, 1), 2)


def repeat(_):
    """Two epochs of 5 rows, a checkpoint at the end of the first, and what follows it."""
    config = config_of(source_fn=partial(read_columns, count=5), shuffle=True, infinite=None)
    config.global_batch_size = None
    loader = build(config, ROWS)
    iterator = iter(loader)
    first, _ = trained(itertools.islice(iterator, 2))
    state = loader.state_dict()
    second, _ = trained(itertools.islice(iterator, 2))
    loader.close()
    again = build(config, ROWS)
    again.load_state_dict(state)
    return first, second, trained(itertools.islice(again, 2))[0]


def test_data_repeats_unless_it_is_to_end():
    """Epoch by epoch, each row once in each; also behind the end of one that was saved."""
    ranks = run_ranks(repeat, 2)
    for epoch in (0, 1):
        assert [1, 2, 3, 4, 5] == sorted(row for rank in ranks for row in rank[epoch])
    assert [rank[1] for rank in ranks] == [rank[2] for rank in ranks]


@pytest.mark.parametrize("before", [1, 2])
def test_steps_of_data_that_repeats_do_not_depend_on_the_degree(before, tmp_path):
    """Each ends with its epoch: 12, 12, 12 and 5 rows."""
    config = config_of(infinite=True)
    for number, (num_ranks, num_steps) in enumerate([(before, 3), (3 - before, 6)]):
        ranks = run_ranks(partial(leg, config, ROWS, tmp_path, number, num_steps), num_ranks)
        found = [row for rows in ranks for row in rows]
        expected = [*range(1, 37)] if not number else [*range(37, 42), *range(1, 42), *range(1, 13)]
        assert sorted(expected) == sorted(found)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.bool, torch.int8])
def test_labels_without_a_sign_can_be_ignored(dtype):
    def read(*_):
        rows = torch.ones(3, LENGTH, dtype=torch.int64)
        return {"input": rows, "labels": rows.to(dtype)}

    batches = list(build(config_of(source_fn=read, global_batch_size=4), ROWS))
    labels = torch.stack([labels for _, labels in batches])
    assert {torch.int8 if dtype.is_signed else torch.int64} == {labels.dtype}
    assert [[1, 1], [1, IGNORE_INDEX]] == labels[:, :, 0].tolist()


def validate(shape, field, _):
    """A Validator copies its config, builds a loader for each validation, and may leave it."""
    own = config_of(source_fn=partial(read_columns, count=5), infinite=None, global_batch_size=-1)
    bounded, whole = (dataclasses.replace(own, **{field: value}) for value in (True, False))
    found, strategies = [], []
    for config, count in ((bounded, 1), (bounded, 1), (whole, None)):
        found.append(trained(itertools.islice(build(config, shape), count))[0])
        strategies += own._strategies.values()
    return found, len(set(strategies))


@pytest.mark.parametrize(("shape", "field"), [(ROWS, "infinite"), (TOKENS, "repeat")])
def test_a_validator_builds_it_again_and_again(shape, field):
    """From its first row, with one strategy for all of them."""
    ranks = run_ranks(partial(validate, shape, field), 2)
    assert [([[1, 2], [1, 2], [1, 2, 5]], 1), ([[3, 4]] * 3, 1)] == ranks


def test_the_name_of_the_version_comes_first():
    """Where a user has set the other one."""
    count = sum(1 for _ in build(config_of(repeat=True, infinite=False), ROWS))
    assert 24 == count
    endless = build(config_of(repeat=True, infinite=False), TOKENS)
    assert 50 == sum(1 for _ in itertools.islice(endless, 50))


@pytest.mark.parametrize(
    ("settings", "shape", "message"),
    [
        ({"global_batch_size": None}, ROWS, "global_batch_size for data that ends, got None"),
        ({"global_batch_size": 13}, ROWS, "to be a multiple of 2, .* got 13 on 1 ranks"),
        ({"global_batch_size": BUDGET}, ROWS, r"a multiple of 2, .* got TokenBudget\(64"),
        ({"dataset": "c4"}, ROWS, "source_fn alone .* got {'dataset': 'c4'} beside it"),
        ({}, {"seq_len": 3}, r"got \['seq_len', 'tokenizer'\]"),
        ({}, {**TOKENS, "num_tokens_per_batch": 7}, "whole rows, got 7 tokens for rows of 3"),
    ],
)
def test_a_config_that_cannot_work_is_refused(settings, shape, message):
    with pytest.raises(tdi.ConfigurationError, match=message):
        build(config_of(**settings), shape)


def test_minus_one_needs_a_model_that_is_whole_on_each_rank(monkeypatch):
    """The number of micro-batches in a step is not known under pipeline parallelism."""
    build(config_of(global_batch_size=-1), ROWS)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(tdi.ConfigurationError, match="got -1 on 4 ranks"):
        build(config_of(global_batch_size=-1), ROWS)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (torch.arange(4), "got inputs Tensor and labels NoneType"),
        ({"input": torch.arange(4)}, r"got inputs \['input'\] and labels NoneType"),
        ({"tokens": torch.arange(4), "labels": torch.arange(4)}, r"got inputs \['tokens'\]"),
        ({"input": torch.arange(4), "labels": torch.rand(4)}, "labels torch.float32"),
    ],
)
def test_other_examples_are_refused(source, message):
    loader = build(config_of(source_fn=lambda *_: source), ROWS)
    with pytest.raises(tdi.ConfigurationError, match=message):
        next(iter(loader))


def test_rows_of_another_length_make_no_tokens():
    config = config_of(source_fn=lambda *_: read_columns(None, 5))
    with pytest.raises(tdi.ConfigurationError, match=r"max_context_length=3 .* shape \(2, 5\)"):
        next(iter(build(config, TOKENS)))


def test_data_without_examples_does_not_repeat_for_ever():
    config = config_of(source_fn=lambda *_: read_columns(None, 3, 0), infinite=True)
    with pytest.raises(tdi.ConfigurationError, match="epoch 1 of .* has no example"):
        next(iter(build(config, ROWS)))


def test_a_checkpoint_inside_an_optimizer_step_is_refused():
    """The dataloader was told of other steps than the Trainer makes."""
    loader = build(config_of(), ROWS)
    iterator = iter(loader)
    loader.state_dict()
    next(iterator)
    with pytest.raises(tdi.UsageError, match="steps of 6 micro-batches, got one after 1"):
        loader.state_dict()


def test_a_state_of_another_dataloader_is_refused():
    own = ParallelAwareDataloader(OwnPart(0, 1), 0, 1, batch_size=2).state_dict()
    loader = build(config_of(), ROWS)
    message = r"\['dp_rank_0', 'world_size'\].*exclude_from_loading"
    with pytest.raises(tdi.ConfigurationError, match=message):
        loader.load_state_dict(own)
    loader.load_state_dict({})  # torchtitan's own take it for a beginning


def test_a_dataset_that_is_distributed_already_is_no_source():
    """By another integration, or by hand."""
    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset([1, 2], global_batch_size=1)
    with pytest.raises(TypeError, match="distributed already"):
        build(config_of(source_fn=lambda *_: dataset), ROWS)


def test_the_state_is_one_text():
    """What a checkpoint asks for does not depend on how far the epoch was."""
    (name, text), *others = build(config_of(), ROWS).state_dict().items()
    assert ("torch_distinput", [], 0) == (name, others, json.loads(text)["epoch"])


def test_another_version_is_named_once(monkeypatch):
    monkeypatch.setattr(versions, "_told", set())
    monkeypatch.setattr(versions.metadata, "version", lambda package: "0.9.0")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("ignore")  # of what is collected meanwhile
        warnings.simplefilter("always", UserWarning)
        for _ in range(2):
            build(config_of(), ROWS)
    (warning,) = told
    assert "Expected torchtitan 0.3, " in str(warning.message)
    assert __file__ == warning.filename
