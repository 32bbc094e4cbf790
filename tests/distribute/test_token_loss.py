"""The loss by weight: what it is divided by, over uneven replicas, padding and accumulation."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torch_distinput as tdi
from tests.distribute.street import options, stream_of
from tests.distribute.token_losses import (
    distributed,
    is_counted,
    labels_of,
    losses_of,
    make_documents,
    mean_of,
)
from torch_distinput.distribute.steps import averages
from torch_distinput.testing import simulate

CLUSTERS = [(1, 1), (2, 1), (4, 1), (1, 3), (2, 2)]


def summed(strategy, loss_of, batch):
    """What all replicas get together, each by ``loss_of(labels)``."""
    losses = strategy.run(lambda own: loss_of(labels_of(own)), args=(batch,))
    return strategy.reduce("sum", losses).item()


def by_step(strategy, **options):
    """Each step's loss, from its own average."""
    found = []
    for step in distributed(strategy, **options).steps():

        def loss_of(labels, step=step):
            return step.average(losses_of(labels), weights=is_counted(labels))

        found.append(summed(strategy, loss_of, step.batch))
    return found


def by_last_step(strategy, **options):
    """Each step's loss, from the step delivered last."""
    return [
        summed(
            strategy,
            lambda y: tdi.compute_average_loss(losses_of(y), weights=is_counted(y)),
            batch,
        )
        for batch in distributed(strategy, **options)
    ]


def by_group(strategy, **options):
    """Each step's loss, as the only one of its group, in weights that are floats."""
    steps = distributed(strategy, **options).steps()
    groups = tdi.accumulate(steps, 1, weights=lambda batch: is_counted(labels_of(batch)).float())
    return [
        summed(strategy, lambda y, s=step: s.average(losses_of(y), per="token"), step.batch)
        for (step,) in groups
    ]


class TestMean:
    """The sum over all replicas is the mean over the tokens of the global batch that count."""

    @pytest.mark.parametrize("losses", [by_step, by_last_step, by_group])
    @pytest.mark.parametrize("cluster", CLUSTERS)
    @pytest.mark.parametrize("partial_batch", ["zero_rows", "pad"])
    def test_it_is_that_of_one_process(self, losses, cluster, partial_batch):
        """Uneven lengths, a last batch of one document, replicas without any."""
        expected = [mean_of(part) for part in make_documents().split(4)]
        for found in simulate(
            lambda strategy: losses(strategy, partial_batch=partial_batch),
            num_workers=cluster[0],
            replicas_per_worker=cluster[1],
        ):
            assert expected == pytest.approx(found)

    @pytest.mark.parametrize("num_steps", [2, 3])
    @pytest.mark.parametrize("cluster", [(2, 1), (2, 2)])
    def test_gradients_of_a_group_are_those_of_one_batch(self, num_steps, cluster):
        """Also of the last group, which is shorter."""

        def work(strategy):
            weight, gradients = torch.ones((), requires_grad=True), []
            steps = distributed(strategy, 2).steps()
            for group in tdi.accumulate(steps, num_steps, weights=is_counted):
                for step in group:
                    losses = strategy.run(
                        lambda labels, s=step: s.average(losses_of(labels, weight), per="token"),
                        args=(step.batch,),
                    )
                    sum(strategy.local_results(losses)).backward()
                mean = strategy.reduce("mean", weight.grad)  # the replicas share it
                gradients.append(mean.item() * strategy.num_workers)
                weight.grad = None
            return gradients

        expected = [mean_of(part) for part in make_documents().split(2 * num_steps)]
        for found in simulate(work, num_workers=cluster[0], replicas_per_worker=cluster[1]):
            assert expected == pytest.approx(found)

    def test_weights_are_of_any_size(self):
        """A weight of 3 counts like three tokens, a weight of 0.5 like half of one."""

        def work(strategy):
            (step,) = strategy.distribute_dataset(torch.arange(4.0), global_batch_size=4).steps()
            weights = torch.tensor([3.0, 0.5, 0.0, 1.5])[step.ids]
            return step.average(step.batch, weights=weights).item()

        assert (0.5 + 4.5) / 5 == pytest.approx(sum(simulate(work, num_workers=2)))

    def test_a_loss_by_example_is_what_it_was(self):
        """In a group with weights, too, where it has to be said."""

        def average(step):
            return step.average(torch.ones(len(step.batch)), per="example").item()

        def work(strategy):
            groups = tdi.accumulate(distributed(strategy).steps(), 1, weights=is_counted)
            return [average(step) for (step,) in groups]

        assert [1.0] * 3 == [sum(pair) for pair in zip(*simulate(work, num_workers=2), strict=True)]

    def test_halves_are_added_up_in_float32(self):
        """16 x 2048 losses of 8 add up to more than the largest float16."""
        strategy = tdi.OneDeviceStrategy("cpu")
        (step,) = strategy.distribute_dataset(torch.ones(16, 2048), global_batch_size=16).steps()
        losses = torch.full((16, 2048), 8.0, dtype=torch.float16)
        for weights in (losses > 0, losses):
            average = step.average(losses, weights=weights)
            assert (torch.float16, 8.0) == (average.dtype, average.item())

    @pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64])
    def test_whole_numbers_are_averaged_as_floats(self, dtype):
        """How many answers are right, say: not cut off before they are weighed, nor after."""
        strategy = tdi.OneDeviceStrategy("cpu")
        weights = torch.tensor([1.0, 1.0, 0.5, 0.5])
        dataset = strategy.distribute_dataset(torch.arange(4), global_batch_size=4)
        (step,) = dataset.steps()
        right = (step.batch < 3).to(dtype)
        found = [
            step.average(right, weights=weights),
            step.average(right, weights=weights > 0.7),
            tdi.compute_average_loss(right, weights=weights),
        ]
        for (step,) in tdi.accumulate(dataset.steps(), 1, weights=lambda _: weights):
            found.append(step.average(right, per="token"))
        assert [2.5 / 3, 1.0, 2.5 / 3, 2.5 / 3] == pytest.approx([loss.item() for loss in found])
        assert {torch.get_default_dtype()} == {loss.dtype for loss in found}

    def test_what_cannot_be_counted_in_float32_is(self):
        """2 ** 24 + 2 weights, of which float32 would lose one here or there."""
        strategy = tdi.OneDeviceStrategy("cpu")
        (step,) = strategy.distribute_dataset(torch.ones(3), global_batch_size=3).steps()
        weights = torch.tensor([2.0**24, 1.0, 1.0])
        average = step.average(torch.tensor([0.0, 0.0, 1.0]).double(), weights=weights)
        assert 1 / (2**24 + 2) == average.item()


@pytest.mark.slow
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2), min_size=1, max_size=9),
    st.integers(1, 5), st.integers(1, 4), st.sampled_from(CLUSTERS),
    st.sampled_from(["split", "even", "cycle"]), st.sampled_from(["zero_rows", "pad"]),
    st.booleans(),
)  # fmt: skip
def test_groups_have_the_gradients_of_one_process(
    weights, size, num_steps, cluster, rebatch, partial_batch, is_stream
):
    """C5 by weight: whatever is read, split, padded and accumulated, on any cluster."""
    examples = [torch.tensor([[n, n + 7], w]).float() for n, w in enumerate(weights)]

    def work(strategy):
        dataset = strategy.distribute_dataset(
            stream_of(examples) if is_stream else examples,
            global_batch_size=size,
            options=options(rebatch=rebatch, partial_batch=partial_batch),
        )
        factor, gradients = torch.ones((), requires_grad=True), []
        steps = dataset.steps()
        for group in tdi.accumulate(steps, num_steps, weights=lambda b: labels_of(b)[:, 1] / 2):
            for step in group:

                def backward(batch, step=step):
                    losses = labels_of(batch)[:, 0] * factor
                    step.average(losses, per="token").backward()

                strategy.run(backward, args=(step.batch,))
            mean = strategy.reduce("mean", factor.grad)  # the replicas share it
            gradients.append(mean.item() * strategy.num_workers)
            factor.grad = None
        return gradients

    expected = []
    for part in torch.stack(examples).split(size * num_steps):
        values, own = part[:, 0], part[:, 1]
        expected.append(((values * own).sum() / max(own.sum(), 1)).item())
    for found in simulate(work, num_workers=cluster[0], replicas_per_worker=cluster[1]):
        assert expected == pytest.approx(found)


class TestNothing:
    """What weighs nothing has a loss of exactly 0, with gradients, on all replicas."""

    @pytest.mark.parametrize("cluster", [(1, 1), (3, 1), (2, 2)])
    def test_no_token_counts(self, cluster):
        def work(strategy):
            weight = torch.ones((), requires_grad=True)

            def loss_of(batch, step):
                return step.average(batch * weight, weights=torch.zeros_like(batch).bool())

            (step,) = strategy.distribute_dataset(torch.ones(5, 2), global_batch_size=8).steps()
            losses = strategy.run(loss_of, args=(step.batch, step))
            losses = strategy.local_results(losses)
            sum(losses).backward()
            return [loss.item() for loss in losses], weight.grad.item()

        for losses, gradient in simulate(
            work, num_workers=cluster[0], replicas_per_worker=cluster[1]
        ):
            assert ([0.0] * cluster[1], 0.0) == (losses, gradient)

    def test_losses_that_do_not_count_may_be_nan(self):
        """So may their gradients be in the loss itself, as long as none of them comes back."""
        strategy = tdi.OneDeviceStrategy("cpu")
        (step,) = strategy.distribute_dataset(torch.ones(3), global_batch_size=3).steps()
        losses = torch.tensor([1.0, torch.nan, torch.inf], requires_grad=True)
        step.average(losses, weights=torch.tensor([2.0, 0.0, 0.0])).backward()
        assert [1.0, 0.0, 0.0] == losses.grad.tolist()

    @pytest.mark.parametrize("junk", [torch.nan, torch.inf, -1.0])
    def test_weights_of_padding_may_be_anything(self, junk):
        """2 examples in batches of 3 rows on each of two replicas, one of which has no example."""

        def work(strategy):
            options = tdi.InputOptions(partial_batch="pad")
            dataset = strategy.distribute_dataset(
                torch.tensor([1.0, 3.0]), global_batch_size=6, options=options
            )

            def weights_of(batch):
                return torch.where(batch[1], 1.0, junk)

            (group,) = tdi.accumulate(dataset.steps(), 1, weights=weights_of)
            (batch,) = dataset
            weights = weights_of(batch)
            (step,) = group
            return [
                loss.item()
                for loss in (
                    step.average(batch[0], per="token"),
                    replace(step, _share=None).average(batch[0], weights=weights),
                    tdi.compute_average_loss(batch[0], weights=weights),
                    tdi.compute_average_loss(batch[0], weights=weights, mask=batch[1]),
                )
            ]

        for found in zip(*simulate(work, num_workers=2), strict=True):
            assert 2.0 == pytest.approx(sum(found))


class TestCommunication:
    """What it costs: a number that two workers exchange."""

    def test_one_small_collective_for_each_group(self):
        """And none for its losses."""

        def work(strategy):
            workers = strategy._session.communicator
            before = workers._num_collectives
            for group in tdi.accumulate(distributed(strategy, 2).steps(), 3, weights=is_counted):
                for step in group:
                    step.average(losses_of(step.batch), per="token")
            return workers._num_collectives - before

        assert [2, 2] == simulate(work, num_workers=2)

    @pytest.mark.parametrize("replicas", [1, 3])
    def test_one_small_collective_for_each_step(self, replicas):
        """For all local replicas together."""

        def work(strategy):
            workers = strategy._session.communicator
            before = workers._num_collectives
            for step in distributed(strategy, 3).steps():
                strategy.run(
                    lambda y, s=step: s.average(losses_of(y), weights=is_counted(y)),
                    args=(step.batch,),
                )
            return workers._num_collectives - before

        assert [3, 3] == simulate(work, num_workers=2, replicas_per_worker=replicas)


class TestCopies:
    """A step that was copied or pickled knows its numbers, but not whose it is."""

    def test_inside_scope_it_is_the_strategys(self):
        strategy = tdi.OneDeviceStrategy("cpu")
        (step, *_) = distributed(strategy).steps()
        copied = copy.copy(step)
        with pytest.raises(tdi.UsageError, match=r"inside strategy\.scope\(\)"):
            copied.average(losses_of(step.batch), weights=is_counted(step.batch))
        with strategy.scope():
            loss = copied.average(losses_of(step.batch), weights=is_counted(step.batch))
        assert mean_of(step.batch) == loss

    def test_a_group_travels_with_its_weights(self):
        steps = distributed(tdi.OneDeviceStrategy("cpu")).steps()
        ((step,), *_) = tdi.accumulate(steps, 1, weights=is_counted)
        copied = copy.deepcopy(step)
        assert mean_of(step.batch) == copied.average(losses_of(step.batch), per="token")


@pytest.mark.parametrize(
    ("shape", "settings", "is_told"),
    [
        ((4, 3), {}, True),
        ((4, 3), {"per": "example"}, True),
        ((4,), {}, False),
        ((4, 1), {}, False),
        ((4, 3), {"weights": torch.ones(4, 3)}, False),
    ],
)
def test_several_losses_of_an_example_are_told(shape, settings, is_told, caplog):
    """Once: the mean over all of them is what most scripts want."""
    averages._warn_of_sums.cache_clear()
    strategy = tdi.OneDeviceStrategy("cpu")
    (step,) = strategy.distribute_dataset(torch.arange(4.0), global_batch_size=4).steps()
    for _ in range(2):
        step.average(torch.ones(shape), **settings)
        if not settings:
            tdi.compute_average_loss(torch.ones(shape), num_examples=4)
    assert is_told == ("several numbers for each example" in caplog.text)
    assert is_told == len(caplog.messages)
