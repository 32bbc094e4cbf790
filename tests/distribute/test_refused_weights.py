"""Weights and losses that are refused: on all workers, of whom none is left in a collective."""

from __future__ import annotations

import threading

import pytest
import torch

import torch_distinput as tdi
from tests.distribute.token_losses import distributed, is_counted, losses_of
from torch_distinput.distribute.steps.weights import sum_weights
from torch_distinput.testing import simulate

WRONG = {
    "negative": (lambda w: w.float() - 1, ValueError, "weights of 0 or more, got"),
    "NaN": (lambda w: w * torch.nan, ValueError, "the first of them nan"),
    "infinite": (lambda w: w + torch.inf, ValueError, "the first of them inf"),
    "other rows": (lambda w: torch.cat([w, w]), ValueError, r"for the 2 rows of"),
    "other columns": (lambda w: w[:, :1], ValueError, r"of shape \(2, 5\), got .* \(2, 1\)"),
    "one weight": (lambda w: w.sum().float(), ValueError, r"for the 2 rows .* got \(\)"),
    "labels": (lambda w: w.long(), TypeError, "got a tensor of torch.int64"),
    "no tensor": (lambda w: w.tolist(), TypeError, "got list"),
}


def told(function):
    """What it raises, and the words."""
    try:
        function()
    except Exception as error:  # noqa: BLE001 - whichever it is
        return type(error), str(error)
    return None, ""


def averaged(strategy, change, culprit):
    """Per step what comes of a loss whose weights the culprit has changed, and a right one."""
    found = []
    for step in distributed(strategy).steps():

        def loss_of(labels, step=step):
            context = tdi.get_replica_context()
            weights = is_counted(labels)
            if context.replica_id_in_sync_group == culprit and not step.index:
                weights = change(weights)
            return step.average(losses_of(labels), weights=weights)

        found.append(told(lambda f=loss_of, s=step: strategy.run(f, args=(s.batch,))))
    return found


@pytest.mark.parametrize("kind", WRONG)
def test_weights_are_refused_on_all_workers(kind):
    """Those of the second one; and all of them go on to the next step, if they want to."""
    change, error, words = WRONG[kind]
    first, second = simulate(lambda s: averaged(s, change, culprit=1), num_workers=2)
    assert error is second[0][0]
    assert tdi.PeerFailedError is first[0][0]
    assert f"worker 1 failed: {error.__name__}: {second[0][1]}" in first[0][1]
    with pytest.raises(error, match=words):
        raise second[0][0](second[0][1])
    assert [(None, "")] * 2 == first[1:] == second[1:]


def test_a_replica_is_told_what_is_wrong_with_its_own():
    """Not that of another one of the same worker; the other worker hears it, too."""
    first, second = simulate(
        lambda s: averaged(s, lambda w: w[:, :1], culprit=3), num_workers=2, replicas_per_worker=2
    )
    assert (tdi.PeerFailedError, ValueError) == (first[0][0], second[0][0])
    assert second[0][1] in first[0][1]


@pytest.mark.parametrize("wrong", ["losses", "raises"])
def test_an_error_beside_the_weights_is_told(wrong):
    """Losses of other rows; a function of accumulate that raises."""

    def weights_of(labels, is_culprit):
        if is_culprit:
            raise KeyError("no labels")
        return is_counted(labels)

    def work(strategy):
        is_culprit = strategy.worker_index == 0
        if wrong == "raises":
            steps = tdi.accumulate(
                distributed(strategy).steps(), 2, weights=lambda y: weights_of(y, is_culprit)
            )
            return told(lambda: next(steps))
        step = next(distributed(strategy).steps())
        losses = losses_of(step.batch)[: 1 if is_culprit else None]
        return told(lambda: step.average(losses, weights=is_counted(step.batch)))

    first, second = simulate(work, num_workers=2)
    assert {"losses": ValueError, "raises": KeyError}[wrong] is first[0]
    assert tdi.PeerFailedError is second[0]
    assert first[1] in second[1]


class TestAlike:
    """What all workers refuse before they ask one another."""

    @pytest.fixture
    def strategy(self):
        return tdi.OneDeviceStrategy("cpu")

    def test_weights_of_one_step_of_a_group(self, strategy):
        """The others have weights, too."""
        (group, *_) = tdi.accumulate(distributed(strategy).steps(), 2)
        with pytest.raises(ValueError, match=r"accumulate\(steps, num_steps, weights="):
            group[0].average(losses_of(group[0].batch), weights=is_counted(group[0].batch))

    def test_tokens_that_are_not_known(self, strategy):
        step = next(distributed(strategy).steps())
        with pytest.raises(ValueError, match=r"knows its 4 examples .* weights=labels != -100"):
            step.average(losses_of(step.batch), per="token")
        (group, *_) = tdi.accumulate(distributed(strategy).steps(), 2)
        with pytest.raises(ValueError, match=r"which losses count: accumulate"):
            group[0].average(losses_of(group[0].batch), per="token")

    def test_another_divisor(self, strategy):
        step = next(distributed(strategy).steps())
        with pytest.raises(ValueError, match='per="token", got \'batch\''):
            step.average(losses_of(step.batch), per="batch")

    def test_weights_that_are_added_up_and_not_used(self, strategy):
        """The sum over tokens, divided by examples, would be no mean of either."""
        ((step,), *_) = tdi.accumulate(distributed(strategy).steps(), 1, weights=is_counted)
        with pytest.raises(ValueError, match='per="token".*per="example" by the 4 examples'):
            step.average(losses_of(step.batch))
        assert 5 == step.average(torch.full((4, 5), 1.0), per="example")

    def test_weights_that_are_no_function(self, strategy):
        with pytest.raises(TypeError, match="a function of a replica's batch, got Tensor"):
            tdi.accumulate(distributed(strategy).steps(), 1, weights=torch.ones(4))

    def test_losses_of_another_shape_than_the_weights_of_their_group(self, strategy):
        ((step,), *_) = tdi.accumulate(distributed(strategy).steps(), 1, weights=is_counted)
        with pytest.raises(ValueError, match="one weight for each loss"):
            step.average(torch.ones(4), per="token")

    def test_examples_and_weights(self, strategy):
        (batch, *_) = distributed(strategy)
        with pytest.raises(ValueError, match="num_examples= or weights=, got both"):
            tdi.compute_average_loss(losses_of(batch), 4, weights=is_counted(batch))

    def test_no_strategy(self):
        def work():
            return told(lambda: tdi.compute_average_loss(torch.ones(2), weights=torch.ones(2)))

        error, words = in_a_new_thread(work)
        assert tdi.UsageError is error
        assert "inside strategy.scope()" in words

    def test_a_step_that_another_thread_has_taken(self, strategy):
        """Its rows are not known here; with a mask they are."""
        batch = in_a_new_thread(lambda: next(iter(distributed(strategy))))
        losses, weights = losses_of(batch), is_counted(batch)
        with strategy.scope():
            with pytest.raises(tdi.UsageError, match="Pass mask=: which rows count"):
                tdi.compute_average_loss(losses, weights=weights)
            everything = torch.ones(len(batch), dtype=torch.bool)
            tdi.compute_average_loss(losses, weights=weights, mask=everything)

    def test_several_local_replicas_outside_of_run(self):
        """Each would divide by what it has itself."""
        mirrored = tdi.MirroredStrategy(["cpu"] * 2)
        batch = next(iter(distributed(mirrored)))[0]
        mask = torch.ones(len(batch), dtype=torch.bool)
        for known in (None, mask):
            with pytest.raises(tdi.UsageError, match=r"inside Strategy\.run"):
                tdi.compute_average_loss(losses_of(batch), weights=is_counted(batch), mask=known)

    def test_a_group_that_is_made_inside_of_run(self):
        mirrored = tdi.MirroredStrategy(["cpu"] * 2)
        steps = list(distributed(mirrored).steps())
        with pytest.raises(tdi.UsageError, match="must be called outside Strategy.run"):
            mirrored.run(lambda: list(tdi.accumulate(steps, 2, weights=is_counted)))

    def test_two_padded_datasets_in_turn(self, strategy):
        """Which rows are padding is known of one step; with a mask, of both."""
        padded = [iter(distributed(strategy, partial_batch="pad")) for _ in range(2)]
        (batch, mask), _ = map(next, padded)
        with pytest.raises(ValueError, match=r"Pass mask=, of the step"):
            tdi.compute_average_loss(losses_of(batch), weights=is_counted(batch))
        tdi.compute_average_loss(losses_of(batch), weights=is_counted(batch), mask=mask)

    def test_two_datasets_in_turn_are_not_mixed_up(self, strategy):
        """Weights tell by themselves what to divide by."""
        pair = [iter(distributed(strategy, size)) for size in (4, 3)]
        for batch in [next(iterator) for iterator in pair]:
            tdi.compute_average_loss(losses_of(batch), weights=is_counted(batch))


def in_a_new_thread(function):
    """What a function returns in a thread in which nothing was delivered."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_a_group_that_an_error_came_into_is_given_the_next_time():
    """Its steps were taken already, and would never be trained."""
    seen, is_broken = [], [True]

    def weigh(batch):
        seen.append(len(batch))
        if len(seen) == 3 and is_broken.pop():
            raise ArithmeticError
        return torch.ones(len(batch))

    dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(torch.arange(10), global_batch_size=2)
    groups = tdi.accumulate(dataset.steps(), 2, weights=weigh)
    found = [next(groups)]
    with pytest.raises(ArithmeticError):
        next(groups)
    found += groups
    assert list(range(10)) == [x for group in found for step in group for x in step.batch.tolist()]


@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("how", ["step", "last", "group"])
def test_weights_of_different_steps(how, ahead):
    """One rank has passed over a step alone: the next weights would be of two steps."""

    def work(strategy):
        def average(step):
            if how == "step":
                return step.average(losses_of(step.batch), weights=is_counted(step.batch))
            return tdi.compute_average_loss(losses_of(step.batch), weights=is_counted(step.batch))

        steps = distributed(strategy).steps()
        for _ in range(ahead * strategy.worker_index):
            next(steps)
        if how == "group":
            return told(lambda: next(tdi.accumulate(steps, 1, weights=is_counted)))
        return told(lambda: average(next(steps)))

    results = simulate(work, num_workers=2)
    assert [tdi.MismatchError] * 2 == [kind for kind, _ in results]
    said = f"step 0 on worker 0 and of step {ahead} on worker 1"
    assert all(said in words for _, words in results)


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_loss_of_which_the_step_is_not_known(ahead):
    """With a mask it may be of any step; the others are compared, and named by their numbers."""

    def work(strategy):
        steps = distributed(strategy, size=6).steps()
        for _ in range(1 + ahead * (strategy.worker_index == 2)):
            step = next(steps)
        labels = step.batch
        every_row = torch.ones(len(labels), dtype=torch.bool)
        named = {"mask": every_row} if strategy.worker_index == 0 else {}

        def average():
            weights = is_counted(labels)
            return tdi.compute_average_loss(losses_of(labels), weights=weights, **named)

        return told(average)

    results = simulate(work, num_workers=3)
    assert [tdi.MismatchError if ahead else None] * 3 == [kind for kind, _ in results]
    said = "step 0 on worker 1 and of step 1 on worker 2" if ahead else ""
    assert all(said in words for _, words in results)


@pytest.mark.parametrize("odd", [None, 2])
def test_weights_of_late_steps(odd):
    """Their squares are larger than float64 has digits."""

    def work(strategy):
        def add_up():
            index = 2**40 + 1 + (strategy.worker_index == odd)
            make = lambda: [torch.ones(2)]
            return sum_weights(strategy._session, make, index=index, cp_dim=None)

        return told(add_up)

    results = simulate(work, num_workers=3)
    assert [None if odd is None else tdi.MismatchError] * 3 == [kind for kind, _ in results]
