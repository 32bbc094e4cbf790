"""Accelerate plays a distributed dataset: what is trained, what is saved, what is gathered."""

from __future__ import annotations

import itertools
from functools import partial
from itertools import chain

import pytest
import torch
from accelerate.utils import GradientAccumulationPlugin
from torch.utils.data import DataLoader, DistributedSampler

import torch_distinput as tdi
from tests.integrations.accelerators import (
    COUNT,
    GLOBAL_BATCH,
    accelerator_on,
    losses_of,
    make_model,
    rows,
    train_alone,
    weights_of,
)
from torch_distinput.integrations import versions
from torch_distinput.integrations.accelerate import prepare
from torch_distinput.integrations.claims import claim
from torch_distinput.testing import run_ranks


def pairs():
    """The examples as a stream, whose length is not known."""
    yield from zip(*rows(), strict=True)


SOURCES = {"known length": rows, "unknown length": lambda: pairs}


def distribute(strategy, kind="known length", *, global_batch_size=GLOBAL_BATCH, **arguments):
    source = SOURCES[kind]()
    return strategy.distribute_dataset(source, global_batch_size=global_batch_size, **arguments)


def train(accelerator, loader, *, epochs, stop_after=None, folder=None):
    """Train; what each optimizer step took on this rank, and the weights at the end.

    Saves, and stops, after ``stop_after`` micro-steps of an epoch. Goes on from a folder that is
    there.
    """
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.register_for_checkpointing(loader)
    if folder is not None and folder.exists():
        accelerator.load_state(folder)
    taken, group = [], []
    for _ in range(loader.epoch, epochs):
        for number, (numbers, targets) in enumerate(loader, 1):
            with accelerator.accumulate(model):
                losses = losses_of(model, numbers, targets)
                accelerator.backward(loader.average_loss(losses))
                optimizer.step()
                optimizer.zero_grad()
            group += numbers.int().tolist()
            if accelerator.sync_gradients:
                taken.append(group)
                group = []
            if number == stop_after:
                accelerator.save_state(folder)
                return taken, weights_of(accelerator.unwrap_model(model))
    return taken, weights_of(accelerator.unwrap_model(model))


def train_on(strategy, kind, accumulation, options=None, **arguments):
    with accelerator_on(strategy, gradient_accumulation_steps=accumulation) as accelerator:
        loader = prepare(distribute(strategy, kind, **(options or {})), accelerator)
        return train(accelerator, loader, **arguments)


def batches(order, sizes):
    """The order cut into groups of these sizes, the last one perhaps smaller."""
    order = iter(order)
    groups = (list(itertools.islice(order, size)) for size in sizes)
    return [group for group in groups if group]


def taken_together(results):
    """What each optimizer step took on all ranks."""
    return [sorted(chain(*parts)) for parts in zip(*(taken for taken, _ in results), strict=True)]


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize(("num_workers", "accumulation"), [(1, 2), (2, 1), (2, 2), (2, 5), (3, 4)])
def test_gradients_are_those_of_one_process(kind, accumulation, num_workers):
    """Also of the last steps, which are fewer than an accumulation and have fewer examples."""
    job = partial(train_on, kind=kind, accumulation=accumulation, epochs=2)
    results = run_ranks(job, num_workers)

    epoch = batches(range(COUNT), [GLOBAL_BATCH * accumulation] * COUNT)
    assert epoch * 2 == taken_together(results)
    for _, weights in results:
        assert train_alone(epoch * 2) == pytest.approx(weights, abs=1e-12)


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize(
    ("before", "after", "accumulation"), [(2, 2, 1), (2, 2, 2), (2, 3, 2), (2, 1, 1), (3, 2, 2)]
)
def test_an_epoch_goes_on_after_a_restart(kind, accumulation, before, after, tmp_path):
    """On the same number of processes and on another, with the weights of a run without a stop."""
    folder = tmp_path / "state"
    job = partial(train_on, kind=kind, accumulation=accumulation, epochs=2, folder=folder)
    first = taken_together(run_ranks(partial(job, stop_after=4), before))
    results = run_ranks(job, after)

    epoch = batches(range(COUNT), [GLOBAL_BATCH * accumulation] * COUNT)
    assert epoch * 2 == first + taken_together(results)
    for _, weights in results:
        assert train_alone(epoch * 2) == pytest.approx(weights, abs=1e-12)


@pytest.mark.parametrize("size", [1, 7])
def test_an_epoch_goes_on_with_another_global_batch(size, tmp_path):
    """Each example is trained once, and the second epoch is whole."""
    folder = tmp_path / "state"
    job = partial(train_on, kind="known length", epochs=2, folder=folder)
    first = taken_together(run_ranks(partial(job, accumulation=2, stop_after=4), 2))
    other = {"global_batch_size": size}
    rest = taken_together(run_ranks(partial(job, accumulation=3, options=other), 2))

    seen = list(chain(*first, *rest))
    assert sorted([*range(COUNT), *range(COUNT)]) == sorted(seen)
    assert list(range(COUNT)) == sorted(seen[:COUNT])


def test_what_waits_for_the_optimizer_comes_again_after_a_restart(tmp_path):
    """A state between two steps that accumulate: their gradients are in no checkpoint."""
    folder = tmp_path / "state"
    job = partial(train_on, kind="known length", accumulation=2, epochs=1, folder=folder)
    first = taken_together(run_ranks(partial(job, stop_after=3), 2))
    results = run_ranks(job, 2)

    epoch = batches(range(COUNT), [GLOBAL_BATCH * 2] * COUNT)
    assert [epoch[0]] == first
    assert epoch[1:] == taken_together(results)
    assert train_alone(epoch) == pytest.approx(results[0][1], abs=1e-12)


def test_a_state_at_the_end_of_an_epoch_begins_the_next(tmp_path):
    folder = tmp_path / "state"
    job = partial(train_on, kind="unknown length", accumulation=1, epochs=2, folder=folder)
    first = taken_together(run_ranks(partial(job, stop_after=6), 2))
    rest = taken_together(run_ranks(job, 2))

    assert list(range(COUNT)) == list(chain(*first)) == list(chain(*rest))


def gather_padded(strategy, kind):
    """What comes of an epoch with its mask, as every rank has it."""
    with accelerator_on(strategy) as accelerator:
        options = tdi.InputOptions(partial_batch="pad")
        loader = prepare(distribute(strategy, kind, options=options), accelerator)
        found = []
        for (numbers, _), mask in loader:
            gathered, real = accelerator.gather_for_metrics((numbers, mask))
            found += gathered[real].int().tolist()
        return found


@pytest.mark.parametrize("kind", SOURCES)
def test_gather_for_metrics_cuts_no_example_off(kind):
    assert [list(range(COUNT))] * 3 == run_ranks(partial(gather_padded, kind=kind), 3)


def gather_uneven(strategy):
    with accelerator_on(strategy) as accelerator:
        loader = prepare(distribute(strategy), accelerator)
        return [strategy.gather(numbers).int().tolist() for numbers, _ in loader]


def test_gather_of_the_strategy_takes_uneven_batches():
    epoch = batches(range(COUNT), [GLOBAL_BATCH] * COUNT)
    assert [epoch] * 3 == run_ranks(gather_uneven, 3)


def pass_through_prepare(strategy):
    with accelerator_on(strategy) as accelerator:
        loader = prepare(distribute(strategy), accelerator)
        _model, again = accelerator.prepare(make_model(), loader)
        assert again is loader
        assert not accelerator._dataloaders
        return [numbers.int().tolist() for numbers, _ in again]


def test_prepare_of_the_accelerator_leaves_a_loader_as_it_is():
    """Nothing is dealt out a second time."""
    steps = zip(*run_ranks(pass_through_prepare, 2), strict=True)
    assert list(range(COUNT)) == [number for parts in steps for part in parts for number in part]


def distribute_again(loader):
    return tdi.OneDeviceStrategy("cpu").distribute_dataset(loader, global_batch_size=2)


class TestOneProcess:
    @pytest.fixture
    def strategy(self):
        return tdi.OneDeviceStrategy("cpu")

    @pytest.fixture
    def accelerator(self, strategy):
        with accelerator_on(strategy) as accelerator:
            yield accelerator

    @pytest.fixture
    def loader(self, strategy, accelerator):
        return prepare(distribute(strategy), accelerator)

    def test_the_last_step_is_told_while_it_is_in_use(self, loader, accelerator):
        state = accelerator.gradient_state
        told = [(state.end_of_dataloader, state.remainder) for _ in loader]
        assert [(False, 0)] * 5 + [(True, 0)] == told
        assert not state.in_dataloader

    def test_a_loop_that_is_left_is_forgotten(self, loader, accelerator):
        for _ in loader:
            assert loader is accelerator.gradient_state.active_dataloader
            break
        assert not accelerator.gradient_state.in_dataloader

    def test_an_iterator_that_is_never_asked_plays_no_epoch(self, loader):
        iter(loader)
        assert [4, 4, 4, 4, 4, 2] == [len(numbers) for numbers, _ in loader]
        assert 1 == loader.epoch

    def test_the_state_is_that_of_the_step_in_use(self, loader, strategy, accelerator):
        states = [loader.state_dict() for _ in loader]
        dataset = distribute(strategy)
        assert [step.state_dict() for step in dataset.steps()] == states

    def test_examples_that_come_again_are_told_once(self, strategy, caplog):
        with accelerator_on(strategy, gradient_accumulation_steps=3) as accelerator:
            loader = prepare(distribute(strategy), accelerator)
            for _ in loader:
                with accelerator.accumulate():
                    loader.state_dict()
        (told,) = [record for record in caplog.records if "between two updates" in record.message]
        assert (4,) == told.args

    def test_a_length_counts_the_steps_of_the_epoch_to_come(self, loader):
        assert 6 == len(loader)
        assert loader

    def test_the_step_in_use_is_there_inside_the_loop(self, loader):
        with pytest.raises(tdi.UsageError, match="no batch was yielded yet"):
            _ = loader.step
        assert [0, 1, 2, 3, 4, 5] == [loader.step.index for _ in loader]

    def test_nothing_but_a_distributed_dataset_is_prepared(self, accelerator):
        with pytest.raises(TypeError, match="got a DataLoader"):
            prepare(DataLoader([1]), accelerator)

    def test_a_sampler_of_torch_that_deals_out_is_refused(self, strategy):
        sampler = DistributedSampler(range(9), num_replicas=2, rank=0)
        source = DataLoader(range(9), sampler=sampler)
        with pytest.raises(ValueError, match="DistributedSampler"):
            strategy.distribute_dataset(source)

    @pytest.mark.parametrize("wrap", [DataLoader, distribute_again])
    def test_a_loader_is_not_distributed_again(self, loader, wrap):
        errors = (tdi.UsageError, tdi.SourceError)
        with pytest.raises(errors, match="Expected a DistributedLoader to be iterated"):
            list(wrap(loader))

    def test_nothing_is_skipped_by_the_accelerator(self, loader, accelerator):
        with pytest.raises(AttributeError, match="Leave skip_first_batches out"):
            accelerator.skip_first_batches(loader, 2)

    def test_a_state_of_another_loader_is_refused(self, loader):
        foreign = {"_sampler_iter_state": None, "_num_yielded": 3, "_iterator_finished": False}
        with pytest.raises(ValueError, match="state"):
            loader.load_state_dict(foreign)

    def test_a_dataset_is_played_by_one_integration(self, strategy, accelerator):
        dataset = distribute(strategy)
        claim(dataset, "Lightning")
        with pytest.raises(tdi.UsageError, match="Distribute the source twice"):
            prepare(dataset, accelerator)

    def test_an_epoch_that_no_checkpoint_would_know_is_refused(self, loader, accelerator, tmp_path):
        """Not one that has ended, nor one of evaluation."""
        for _ in loader:
            with pytest.raises(tdi.UsageError, match="register_for_checkpointing") as refused:
                accelerator.save_state(tmp_path)
            assert "iterate it under torch.no_grad()" in str(refused.value)
        accelerator.save_state(tmp_path / "ended")
        with torch.no_grad():
            next(iter(loader))
            accelerator.save_state(tmp_path / "evaluated")

    def test_several_devices_of_one_process_are_refused(self, accelerator):
        mirrored = tdi.MirroredStrategy(["cpu", "cpu"])
        with pytest.raises(tdi.ConfigurationError, match="one device on each process"):
            prepare(distribute(mirrored), accelerator)

    def test_accumulation_across_epochs_is_refused(self, strategy):
        plugin = GradientAccumulationPlugin(num_steps=2, sync_with_dataloader=False)
        with (
            accelerator_on(strategy, gradient_accumulation_plugin=plugin) as accelerator,
            pytest.raises(tdi.ConfigurationError, match="sync_with_dataloader=True"),
        ):
            prepare(distribute(strategy), accelerator)

    def test_an_accelerator_that_would_not_ask_is_refused(self, strategy, accelerator, monkeypatch):
        """A version that finds out otherwise which step is the last one."""
        monkeypatch.delattr(type(accelerator.gradient_state), "end_of_dataloader")
        with pytest.raises(tdi.ConfigurationError, match="to have end_of_dataloader in its Grad"):
            prepare(distribute(strategy), accelerator)

    def test_a_version_that_was_not_tested_is_named(self, strategy, accelerator, monkeypatch):
        monkeypatch.setattr(versions, "_told", set())
        monkeypatch.setattr("importlib.metadata.version", lambda _: "9.0")
        with pytest.warns(UserWarning, match=r"got accelerate 9\.0"):
            prepare(distribute(strategy), accelerator)


def log_averages(strategy):
    """The mean of each batch, of 2 steps that accumulate."""
    with accelerator_on(strategy, gradient_accumulation_steps=2) as accelerator:
        loader, found = prepare(distribute(strategy), accelerator), []
        for numbers, _ in loader:
            found.append(accelerator.reduce(loader.average(numbers), "mean").item())
        return found


def test_an_average_is_that_of_the_global_batch_of_its_step():
    """The last one has 2 examples on 3 processes, one of which has none."""
    assert [[1.5, 5.5, 9.5, 13.5, 17.5, 20.5]] * 3 == run_ranks(log_averages, 3)


def prepare_alone(strategy):
    """A strategy of this process alone, which is one of several."""
    with accelerator_on(strategy) as accelerator:
        alone = tdi.OneDeviceStrategy("cpu")
        with pytest.raises(tdi.ConfigurationError, match="got number 0 of 1"):
            prepare(distribute(alone), accelerator)


def test_a_strategy_of_other_processes_is_refused():
    run_ranks(prepare_alone, 2)
