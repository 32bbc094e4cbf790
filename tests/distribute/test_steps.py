"""Steps as values: their facts, their loss and their state, whatever was delivered since."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
import torch

import torch_distinput as tdi
from tests.distribute.numbers_reader import Numbers, write_numbers
from tests.distribute.street import stream_of
from torch_distinput.testing import simulate

NUMBERS = torch.arange(23)


def make(strategy, source=NUMBERS, size=5, **options):
    """Distribute numbers."""
    options = tdi.InputOptions(**options)
    return strategy.distribute_dataset(source, global_batch_size=size, options=options)


@pytest.fixture(params=["by index", "a stream", "files of known lengths", "files dealt out"])
def source(request, tmp_path):
    """The same numbers, in each of the ways in which progress is counted."""
    if request.param == "by index":
        return NUMBERS
    if request.param == "a stream":
        return stream_of(range(23))
    pattern = write_numbers(tmp_path, [range(9), range(9, 11), range(11, 23)])
    return tdi.FileDataset(pattern, reader=Numbers(counted="known" in request.param))


def rows_of(batch):
    return torch.as_tensor(batch).tolist()


@pytest.mark.parametrize("num_workers", [1, 2])
def test_each_step_keeps_the_state_after_it(source, num_workers):
    """All are asked when the epoch is over: each goes on with the steps behind it."""

    def work(strategy):
        dataset = make(strategy, source)
        steps = list(dataset.steps())
        states = [json.loads(json.dumps(step.state_dict())) for step in steps]
        batches = [rows_of(step.batch) for step in steps]
        for number, state in enumerate(states):
            resumed = make(strategy, source)
            resumed.load_state_dict(state)
            assert batches[number + 1 :] == [rows_of(step.batch) for step in resumed.steps()]
        assert states[-1] == dataset.state_dict()
        return states

    states = simulate(work, num_workers=num_workers)
    assert all(states[0] == of_worker for of_worker in states)


def test_a_step_knows_what_last_step_told():
    dataset = make(tdi.MirroredStrategy(["cpu"] * 2))
    iterator = iter(make(tdi.MirroredStrategy(["cpu"] * 2)))
    for step, batch in zip(list(dataset.steps()), iterator, strict=True):
        info = iterator.last_step
        assert [rows_of(part) for part in batch] == [rows_of(part) for part in step.batch]
        assert (info.index, info.num_examples) == (step.index, step.num_examples)
        assert info.local_counts == step.local_counts
        assert [ids.tolist() for ids in info.ids] == [ids.tolist() for ids in step.ids]
        assert (info.padded_rows, info.is_empty) == (step.padded_rows, step.is_empty)


def test_nothing_begins_before_the_first_step_is_asked_for():
    dataset = make(tdi.OneDeviceStrategy("cpu"))
    steps = dataset.steps()
    assert 0 == dataset.epoch
    next(steps)
    assert 1 == dataset.epoch


def test_a_replica_function_takes_a_step():
    """It has its own part of the batch, and averages by the whole."""
    strategy = tdi.MirroredStrategy(["cpu"] * 2)
    step = next(make(strategy, NUMBERS.float(), 6).steps())
    found = strategy.run(
        lambda own: (own.batch.tolist(), own.ids.tolist(), own.average(own.batch).item()),
        args=(step,),
    )
    assert [[0, 1, 2], [3, 4, 5]] == [*found[0]] == [*found[1]]
    assert 2.5 == sum(found[2])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda step: pickle.loads(pickle.dumps(step))])
def test_a_copy_of_a_step_knows_its_state(source, copied):
    """Without the dataset: it stays where it is."""
    steps = list(make(tdi.OneDeviceStrategy("cpu"), source).steps())
    found = copied(steps[1])
    assert rows_of(steps[1].batch) == rows_of(found.batch)
    assert (steps[1].state_dict(), steps[1].info.index) == (found.state_dict(), found.index)


def test_closing_the_steps_closes_the_iterator():
    dataset = make(tdi.OneDeviceStrategy("cpu"))
    steps = dataset.steps()
    next(steps)
    iterator = dataset._running()
    steps.close()
    with pytest.raises(tdi.UsageError, match="closed by close"):
        next(iterator)


class TestAverage:
    """The mean of the global batch of this step, not of the one delivered last."""

    @pytest.mark.parametrize("partial_batch", ["zero_rows", "pad"])
    @pytest.mark.parametrize(("workers", "replicas"), [(1, 1), (3, 1), (2, 2)])
    def test_over_all_replicas_it_is_the_mean(self, workers, replicas, partial_batch):
        """Asked for after the epoch, in another order than that of delivery."""

        def work(strategy):
            losses = {}
            steps = list(make(strategy, NUMBERS.float(), 7, partial_batch=partial_batch).steps())
            for step in reversed(steps):

                def loss_of(batch, step=step):
                    rows = batch if partial_batch == "zero_rows" else batch[0]
                    return step.average(rows)

                losses[step.index] = strategy.reduce(
                    "sum", strategy.run(loss_of, args=(step.batch,))
                ).item()
            return losses

        means = {n: part.mean().item() for n, part in enumerate(NUMBERS.float().split(7))}
        for losses in simulate(work, num_workers=workers, replicas_per_worker=replicas):
            assert means == pytest.approx(losses)

    def test_a_loss_of_another_step_is_refused(self):
        steps = list(make(tdi.OneDeviceStrategy("cpu"), NUMBERS.float()).steps())
        with pytest.raises(ValueError, match="each of the 3 rows of .* step 4, got 5"):
            steps[-1].average(steps[0].batch)

    def test_a_loss_that_is_averaged_already_is_refused(self):
        step = next(make(tdi.OneDeviceStrategy("cpu"), NUMBERS.float()).steps())
        with pytest.raises(ValueError, match="one loss per example"):
            step.average(step.batch.mean())

    def test_several_replicas_outside_of_run_are_refused(self):
        step = next(make(tdi.MirroredStrategy(["cpu"] * 2), NUMBERS.float()).steps())
        with pytest.raises(tdi.UsageError, match=r"inside Strategy\.run"):
            step.average(step.batch[0])

    def test_beside_a_padded_dataset_it_is_its_own_step(self):
        """Where compute_average_loss cannot know which rows are examples."""
        strategy = tdi.OneDeviceStrategy("cpu")
        step = next(make(strategy, torch.ones(4), 4).steps())
        list(make(strategy, torch.ones(2), 4, partial_batch="pad"))
        assert 1.0 == step.average(step.batch).item()


class TestAccumulate:
    """Groups of steps, whose gradients add up to those of one large batch."""

    @pytest.mark.parametrize("num_steps", [1, 2, 3, 9])
    def test_gradients_are_those_of_one_batch(self, num_steps):
        def work(strategy):
            weight, gradients = torch.ones((), requires_grad=True), []
            steps = make(strategy, NUMBERS.float(), 4).steps()
            for group in tdi.accumulate(steps, num_steps):
                for step in group:
                    step.average(weight * step.batch**2).backward()
                gradients.append(strategy.reduce("sum", weight.grad).item())
                weight.grad = None
            return gradients

        means = [(part**2).mean().item() for part in NUMBERS.float().split(4 * num_steps)]
        assert [pytest.approx(means)] * 2 == simulate(work, num_workers=2)

    def test_a_group_has_the_total_and_the_state_of_its_last_step(self):
        dataset = make(tdi.OneDeviceStrategy("cpu"))
        groups = list(tdi.accumulate(dataset.steps(), 2))
        assert [(0, 1), (2, 3), (4,)] == [tuple(step.index for step in group) for group in groups]
        assert [10, 10, 3] == [group.num_examples for group in groups]
        dataset.load_state_dict(groups[0].state_dict())
        assert [10, 15, 20] == [int(step[0]) for step in dataset]

    def test_a_number_of_steps_is_at_least_one(self):
        """Refused where it is called, not at the first group."""
        with pytest.raises(ValueError, match="num_steps must be at least 1, got 0"):
            tdi.accumulate(iter(()), 0)

    def test_an_error_is_no_end(self):
        """Asked again, the groups say it again, as the steps do."""

        def numbers():
            yield from range(7)
            raise ValueError

        dataset = make(tdi.OneDeviceStrategy("cpu"), numbers, 1)
        groups = tdi.accumulate(dataset.steps(), 3)
        assert [0, 1, 2] == [step.index for step in next(groups)]
        assert [3, 4, 5] == [step.index for step in next(groups)]
        for _ in range(2):
            with pytest.raises(tdi.SourceError, match="step 7: The source raised ValueError"):
                next(groups)

    def test_steps_before_an_interruption_stay_in_their_group(self):
        class Interrupted:
            def __init__(self, steps):
                self.steps, self.asked = steps, 0

            def __iter__(self):
                return self

            def __next__(self):
                self.asked += 1
                if self.asked == 3:
                    raise KeyboardInterrupt
                return next(self.steps)

        dataset = make(tdi.OneDeviceStrategy("cpu"), NUMBERS[:7], 1)
        groups = tdi.accumulate(Interrupted(dataset.steps()), 4)
        with pytest.raises(KeyboardInterrupt):
            next(groups)
        assert [[0, 1, 2, 3], [4, 5, 6]] == [[step.index for step in group] for group in groups]

    @pytest.mark.parametrize("wrong", [iter, lambda d: tdi.accumulate(d.steps(), 2)])
    def test_what_is_no_step_is_refused(self, wrong):
        groups = tdi.accumulate(wrong(make(tdi.OneDeviceStrategy("cpu"))), 2)
        with pytest.raises(TypeError, match=r"got (Tensor|StepGroup)\. Pass accumulate\(dataset"):
            next(groups)


    @pytest.mark.parametrize("wrong", [lambda d: d, lambda d: d.steps, tdi.progress])
    def test_a_dataset_is_refused_before_its_epoch_begins(self, wrong):
        dataset = make(tdi.OneDeviceStrategy("cpu"))
        with pytest.raises(TypeError, match=r"Pass accumulate\(dataset\.steps\(\), 2\)"):
            tdi.accumulate(wrong(dataset), 2)
        assert 0 == dataset.epoch

    def test_a_step_is_no_batch(self):
        step = next(make(tdi.OneDeviceStrategy("cpu")).steps())
        with pytest.raises(TypeError, match=r"Write step\.batch\['x'\]"):
            step["x"]


class TestLength:
    """The steps of the epoch that is to come, those before a loaded position as delivered."""

    @pytest.mark.parametrize("before", [(1, 1), (2, 2)])
    @pytest.mark.parametrize("after", [(1, 1), (2, 1), (2, 2)])
    @pytest.mark.parametrize("size", [2, 5, 9])
    def test_who_counts_steps_ends_with_the_data(self, source, before, after, size):
        """On another cluster, and with another batch size."""

        def leave(strategy):
            iterator = iter(dataset := make(strategy, source))
            next(iterator)
            next(iterator)
            return dataset.state_dict()

        def go_on(strategy):
            dataset = make(strategy, source, size)
            dataset.load_state_dict(state)
            with dataset.set_aside():
                iter(dataset)  # by now files are counted
            try:
                length = len(dataset)
            except TypeError:
                return None
            return length, 2 + len(list(dataset))

        state = simulate(leave, num_workers=before[0], replicas_per_worker=before[1])[0]
        for found in simulate(go_on, num_workers=after[0], replicas_per_worker=after[1]):
            assert found is None or found[0] == found[1]

    def test_it_is_whole_again_after_the_epoch(self):
        dataset = make(tdi.OneDeviceStrategy("cpu"))
        next(iter(dataset))
        state = dataset.state_dict()
        dataset = make(tdi.OneDeviceStrategy("cpu"), NUMBERS, 2)
        dataset.load_state_dict(state)
        assert [10, 9] == [len(dataset), len(list(dataset))]
        assert 12 == len(dataset)


def test_the_steps_have_the_counters_of_their_iterator():
    strategy = tdi.OneDeviceStrategy("cpu")
    steps = strategy.distribute_dataset(list(range(10)), global_batch_size=4).steps()
    with pytest.raises(tdi.UsageError, match="none has been asked for yet"):
        steps.stats()
    next(steps)
    assert (1, 4) == (steps.stats().steps, steps.stats().examples)
    steps.close()
    assert (1, 4) == (steps.stats().steps, steps.stats().examples)
