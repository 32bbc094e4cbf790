"""A Trainer trains each example once, in the steps of one process, also after a restart."""

from __future__ import annotations

from functools import partial
from itertools import chain, islice

import pytest
import torch
from transformers import Trainer

import torch_distinput as tdi
from tests.integrations.accelerators import COUNT, train_alone, weights_of
from tests.integrations.trainers import SOURCES, collate, in_two_shards, trainer_on
from torch_distinput.integrations import versions
from torch_distinput.integrations.claims import claim
from torch_distinput.testing import run_ranks

TWO_SHARDS = {
    # processes, examples on each: before and after; updates left in the epoch and in the next one
    "too few": ((2, 2), (3, 1), 8 + 8),
    "enough": ((3, 1), (2, 2), 4 + 6),
}
STREAMS = {"torch stream", "datasets stream"}
EPOCH = list(range(COUNT))


def train(strategy, folder, kind, checkpoints=(None,), **arguments):
    """From each checkpoint: the examples of each micro-step on this rank, steps, and weights."""
    results = []
    for number in checkpoints:
        source = {**SOURCES, "two shards": in_two_shards}[kind](COUNT)
        with trainer_on(strategy, folder, source=source, **arguments) as trainer:
            trainer.train(None if number is None else f"{folder}/checkpoint-{number}")
            model = trainer.model
            results.append((model.seen, trainer.state.global_step, weights_of(model.linear)))
    return results


def train_ranks(num_workers, *args, **arguments):
    """The examples of all ranks in order, the steps and the weights, from each checkpoint."""
    job = partial(_train, args=args, arguments=arguments)
    of_ranks = run_ranks(job, num_workers, timeout=120)
    together = []
    for runs in zip(*of_ranks, strict=True):
        steps = zip(*(seen for seen, _, _ in runs), strict=True)
        (number,) = {number for _, number, _ in runs}
        in_order = [sorted(chain(*parts)) for parts in steps]
        together.append((list(chain(*in_order)), number, runs[0][2]))
    return together


def _train(strategy, args, arguments):
    return train(strategy, *args, **arguments)


def updates(size, count=COUNT):
    """The examples of each update of an epoch."""
    order = iter(range(count))
    return list(iter(lambda: list(islice(order, size)), []))


def how_long(kind, num_updates):
    """Two epochs, as Trainer wants it to be said."""
    return {"max_steps": 2 * num_updates} if kind in STREAMS else {"num_train_epochs": 2}


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("accumulation", [1, 4])
def test_every_example_is_trained_once_an_epoch(kind, accumulation, tmp_path):
    """The last update has fewer steps, and the last step fewer examples."""
    groups = updates(4 * accumulation)
    [(seen, steps, weights)] = train_ranks(
        2,
        tmp_path,
        kind,
        gradient_accumulation_steps=accumulation,
        **how_long(kind, len(groups)),
    )
    assert EPOCH * 2 == seen
    assert 2 * len(groups) == steps
    assert train_alone(groups * 2) == pytest.approx(weights, abs=1e-12)


@pytest.mark.parametrize("kind", ["datasets", "torch stream"])
@pytest.mark.parametrize(
    ("accumulation", "checkpoints"), [(1, [2, 6, 9, 12]), (2, [1, 3, 6]), (3, [1, 2, 4])]
)
def test_a_checkpoint_is_resumed(kind, accumulation, checkpoints, tmp_path):
    """Within an epoch, at its end, at that of all; on as many processes, and on another number."""
    groups = updates(4 * accumulation) * 2
    arguments = {"gradient_accumulation_steps": accumulation} | how_long(kind, len(groups) // 2)
    saved = arguments | {"save_strategy": "steps", "save_steps": 1}
    train_ranks(2, tmp_path, kind, **saved)
    for num_workers in (2, 1):
        arguments["per_device_train_batch_size"] = 4 // num_workers
        results = train_ranks(num_workers, tmp_path, kind, checkpoints, **arguments)
        for number, (seen, steps, weights) in zip(checkpoints, results, strict=True):
            assert list(chain(*groups[number:])) == seen
            assert len(groups) == steps
            assert train_alone(groups) == pytest.approx(weights, abs=1e-12)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_a_stream_of_one_shard_is_resumed(before, after, tmp_path):
    """One process has its shard dealt out, two read it whole: an epoch ends as it began."""
    groups = updates(4) * 2
    kind, until = "datasets stream", {"max_steps": len(groups)}
    saved = {"save_strategy": "steps", "save_steps": 1, **until}
    train_ranks(before, tmp_path, kind, per_device_train_batch_size=4 // before, **saved)
    checkpoints, per_device = [2, 6, 9], {"per_device_train_batch_size": 4 // after}
    results = train_ranks(after, tmp_path, kind, checkpoints, **per_device, **until)
    for number, (seen, steps, weights) in zip(checkpoints, results, strict=True):
        assert list(chain(*groups[number:])) == seen
        assert len(groups) == steps
        assert train_alone(groups) == pytest.approx(weights, abs=1e-12)


@pytest.mark.parametrize("case", TWO_SHARDS)
def test_shards_that_are_too_few_for_a_restart_or_enough_again(case, tmp_path):
    """What is dealt out to two processes is read whole by three, from the next epoch on."""
    (num_before, size_before), (num_after, size_after), num_left = TWO_SHARDS[case]
    saved = {"max_steps": 2, "save_strategy": "steps", "save_steps": 2}
    per_device = {"per_device_train_batch_size": size_before}
    [(first, _, _)] = train_ranks(num_before, tmp_path, "two shards", **per_device, **saved)
    arguments = {"per_device_train_batch_size": size_after, "max_steps": 2 + num_left}
    [(seen, _, _)] = train_ranks(num_after, tmp_path, "two shards", [2], **arguments)
    rest, following = seen[: COUNT - len(first)], seen[COUNT - len(first) :]
    assert EPOCH == sorted(first + rest) == sorted(following)
    assert (case == "too few") == (following == EPOCH)
    assert (case == "enough") == (first + rest == EPOCH)


@pytest.mark.parametrize(("num_workers", "size", "accumulation"), [(3, 1, 1), (2, 5, 2), (1, 1, 3)])
def test_a_checkpoint_is_resumed_in_other_batches(num_workers, size, accumulation, tmp_path):
    """In the first epoch and in the second: no example is lost, and none comes twice."""
    saved = {"num_train_epochs": 3, "gradient_accumulation_steps": 2}
    train_ranks(2, tmp_path, "datasets", save_strategy="steps", save_steps=1, **saved)
    checkpoints = [1, 3, 4, 8]  # of 3 updates in each epoch, of 8, 8 and 6 examples
    results = train_ranks(
        num_workers,
        tmp_path,
        "datasets",
        checkpoints,
        num_train_epochs=3,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=accumulation,
    )
    per_update = num_workers * size * accumulation
    for number, (seen, steps, _) in zip(checkpoints, results, strict=True):
        done = 22 * (number // 3) + 8 * (number % 3)
        assert (EPOCH * 3)[done:] == seen
        in_epoch = -(-(-done % COUNT) // per_update)
        whole = (3 * COUNT - done) // COUNT
        assert number + in_epoch + whole * -(-COUNT // per_update) == steps


class TestMistakes:
    """Each is an error that says what to do."""

    @pytest.fixture
    def strategy(self):
        return tdi.OneDeviceStrategy("cpu")

    @pytest.fixture
    def saved(self, strategy, tmp_path):
        """A folder with checkpoint-2."""
        arguments = {"save_strategy": "steps", "save_steps": 2, "max_steps": 2}
        with trainer_on(strategy, tmp_path, source=SOURCES["list"](COUNT), **arguments) as trainer:
            trainer.train()
        return tmp_path

    @pytest.fixture
    def trainer(self, strategy, tmp_path):
        source = SOURCES["list"](COUNT)
        with trainer_on(strategy, tmp_path, source=source, num_train_epochs=1) as trainer:
            yield trainer

    def test_a_checkpoint_of_another_trainer(self, saved, trainer):
        (saved / "checkpoint-2/torch_distinput.json").unlink()
        with pytest.raises(ValueError, match="ignore_data_skip=True"):
            trainer.train(resume_from_checkpoint=True)

    @pytest.mark.parametrize(("name", "kind"), [("model.bin", "a file"), ("none", "nothing there")])
    def test_a_checkpoint_that_is_no_folder(self, name, kind, trainer, tmp_path):
        (tmp_path / "model.bin").touch()
        with pytest.raises(ValueError, match=f"{name}: {kind}. Pass a folder"):
            trainer.train(resume_from_checkpoint=str(tmp_path / name))

    def test_a_state_of_something_else(self, saved, trainer):
        (saved / "checkpoint-2/torch_distinput.json").write_text('{"_num_yielded": 3}')
        with pytest.raises(ValueError, match="got something else there"):
            trainer.train(resume_from_checkpoint=True)

    def test_data_that_is_asked_to_begin_anew_does(self, saved, trainer):
        trainer.args.ignore_data_skip = True
        trainer.train(resume_from_checkpoint=True)
        assert EPOCH[:18] == list(chain(*trainer.model.seen))  # 9 of 11 updates are left

    def test_the_last_checkpoint_is_found(self, saved, trainer):
        trainer.train(resume_from_checkpoint=True)
        assert EPOCH[4:] == list(chain(*trainer.model.seen))

    def test_a_dataloader_is_not_a_dataset(self, trainer):
        trainer.train_dataset = torch.utils.data.DataLoader(EPOCH)
        with pytest.raises(TypeError, match="Pass its dataset"):
            trainer.get_train_dataloader()

    def test_a_dataset_that_another_integration_plays(self, trainer, strategy):
        dataset = strategy.distribute_dataset(
            SOURCES["list"](COUNT), global_batch_size=2, collate_fn=collate
        )
        claim(dataset, "Lightning")
        trainer.train_dataset = dataset
        with pytest.raises(tdi.UsageError, match="Distribute the source twice"):
            trainer.get_train_dataloader()

    @pytest.mark.parametrize("size", [5, tdi.TokenBudget(5, length=lambda _: 1)])
    def test_a_dataset_that_is_distributed_already_is_played_as_it_is(
        self, size, trainer, strategy
    ):
        trainer.train_dataset = strategy.distribute_dataset(
            SOURCES["list"](COUNT), global_batch_size=size, collate_fn=collate
        )
        trainer.train()
        assert [EPOCH[0:5], EPOCH[5:10], EPOCH[10:15], EPOCH[15:20], [20, 21]] == trainer.model.seen

    def test_a_loader_of_ours_gives_batches_outside_of_train(self, trainer):
        batches = list(trainer.get_train_dataloader())
        assert EPOCH == [int(number) for batch in batches for number in batch["numbers"]]


def test_a_version_that_was_not_tested_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(versions, "_told", set())
    monkeypatch.setattr(versions.metadata, "version", lambda _: "6.0")
    told = pytest.warns(UserWarning, match=r"got transformers 6\.0")
    with told, trainer_on(tdi.OneDeviceStrategy("cpu"), tmp_path, source=EPOCH):
        pass


@pytest.mark.parametrize("name", ["_run_epoch", "_get_dataloader"])
def test_a_trainer_that_would_not_ask_is_refused(name, tmp_path, monkeypatch):
    """A version that has given another name to what the mixin overrides."""
    monkeypatch.delattr(Trainer, name)
    told = pytest.raises(tdi.ConfigurationError, match=f"to have {name} in its Trainer")
    with told, trainer_on(tdi.OneDeviceStrategy("cpu"), tmp_path, source=EPOCH):
        pass


def means_of_processes(strategy, folder):
    arguments = {"average_tokens_across_devices": False}
    match = "average_tokens_across_devices=True"
    with (
        trainer_on(strategy, folder, source=SOURCES["list"](COUNT), **arguments) as trainer,
        pytest.raises(tdi.ConfigurationError, match=match),
    ):
        trainer.train()


def test_means_of_processes_are_refused(tmp_path):
    run_ranks(partial(means_of_processes, folder=tmp_path), 2, timeout=120)


def shuffled(strategy, folder):
    """The first epoch, and the second from a checkpoint in its middle."""
    seen = []
    arguments = {"train_sampling_strategy": "random", "data_seed": 5, "num_train_epochs": 2}
    saving = {"save_strategy": "steps", "save_steps": 8}
    for checkpoint in (None, f"{folder}/checkpoint-8"):
        source = SOURCES["datasets"](COUNT)
        with trainer_on(strategy, folder, source=source, **arguments, **saving) as trainer:
            trainer.train(checkpoint)
            seen.append(trainer.model.seen)
    return seen


def test_a_shuffled_epoch_goes_on_in_its_order(tmp_path):
    whole, resumed = zip(*run_ranks(partial(shuffled, folder=tmp_path), 2), strict=True)
    for one, rest in zip(whole, resumed, strict=True):
        assert one[8:] == rest
    first, second = (
        [number for seen in whole for part in seen[epoch] for number in part]
        for epoch in (slice(0, 6), slice(6, 12))
    )
    assert EPOCH == sorted(first) == sorted(second)
    assert first != second


class Doubled:
    """A dataset made into another; what it has not is that of what it wraps."""

    def __init__(self, wrapped):
        self.wrapped = wrapped

    def __len__(self):
        return len(self.wrapped)

    def __getitem__(self, index):
        return {name: 2 * value for name, value in self.wrapped[index].items()}

    def __getattr__(self, name):
        return getattr(self.wrapped, name)


def doubled(strategy, folder):
    source = Doubled(SOURCES["datasets"](COUNT))
    with trainer_on(strategy, folder, source=source, num_train_epochs=1) as trainer:
        trainer.train()
        return trainer.model.seen


def test_a_wrapper_of_a_dataset_is_trained_on_and_not_what_it_wraps(tmp_path):
    """Its methods are those of datasets, by which Trainer takes columns away."""
    (seen,) = run_ranks(partial(doubled, folder=tmp_path), 1, timeout=120)
    assert [2 * number for number in EPOCH] == [number for step in seen for number in step]
