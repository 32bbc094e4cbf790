"""compute_average_loss: its numbers, and which step it divides by when several are under way."""

from __future__ import annotations

import gc
import threading
import weakref
from functools import partial
from itertools import islice

import pytest
import torch

import torch_distinput as tdi
from tests.distribute.street import one
from torch_distinput.testing import run_ranks, simulate

AMBIGUOUS = "Expected the loss of one dataset's step, got 2 open iterators"


def distributed(strategy, count, **keywords):
    """Ones, four examples a step."""
    return strategy.distribute_dataset(torch.ones(count), global_batch_size=4, **keywords)


class TestHalves:
    """What is summed in float16 alone may not fit, where its mean does."""

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_the_sum_is_wide_and_the_result_is_not(self, dtype):
        """16 x 2048 losses of 8 add up to more than the largest float16."""
        loss = torch.full((16, 2048), 8.0, dtype=dtype)
        average = tdi.compute_average_loss(loss, num_examples=16 * 2048)
        assert (dtype, 8.0) == (average.dtype, average.item())

    def test_the_gradient_is_that_of_a_division(self):
        """1 / num_examples for each loss, rounded once."""
        loss = torch.full((3,), 60000.0, dtype=torch.float16, requires_grad=True)
        tdi.compute_average_loss(loss, num_examples=7).backward()
        assert [torch.tensor(1 / 7, dtype=torch.float16)] * 3 == list(loss.grad)


def losses_of_zip(sizes, options, strategy):
    """The losses of the first dataset's steps under zip, or why there is none."""
    first, second = (distributed(strategy, size, options=options) for size in sizes)
    found = []
    for step, _ in zip(first, second, strict=False):
        batch = step if options.partial_batch != "pad" else step[0]
        try:
            found.append(tdi.compute_average_loss(batch).item())
        except ValueError as error:
            found.append(str(error).partition(" that ")[0])
    return found


class TestSeveralDatasets:
    """Refused on all workers alike, where a loss may belong to steps with other examples."""

    @pytest.mark.parametrize("workers", [1, 2, 3])
    def test_zip_of_steps_with_other_examples_is_refused(self, workers):
        """Also where the rows of a worker happen to be as many in both."""
        work = partial(losses_of_zip, (3, 8), tdi.InputOptions())
        assert [[AMBIGUOUS]] * workers == simulate(work, num_workers=workers)

    def test_real_ranks_refuse_alike(self):
        """Two of three rows are on the first rank, so only there the rows agree."""
        work = partial(losses_of_zip, (3, 8), tdi.InputOptions())
        assert [[AMBIGUOUS]] * 2 == run_ranks(work, 2)

    def test_zip_is_refused_at_the_step_that_differs(self):
        """Until then both divide by the same, so the result is right."""
        first, second = simulate(partial(losses_of_zip, (8, 7), tdi.InputOptions()), num_workers=2)
        assert [0.5, AMBIGUOUS] == first == second

    def test_as_many_examples_cut_in_another_way_are_divided_alike(self):
        """The step with the rows of the loss is the one it belongs to."""

        def work(strategy):
            even = distributed(strategy, 4, options=tdi.InputOptions(rebatch="even"))
            found = []
            for step, other in zip(distributed(strategy, 4), even, strict=True):
                found += [tdi.compute_average_loss(batch).item() for batch in (other, step)]
            return found

        assert [[0.5, 0.5], [0.25, 0.5], [0.25, 0.0]] == simulate(work, num_workers=3)

    def test_padded_batches_are_refused_from_the_first_step(self):
        """All of them have the same rows, so the padding of another step would not be noticed."""
        options = tdi.InputOptions(partial_batch="pad")
        results = simulate(partial(losses_of_zip, (8, 8), options), num_workers=2)
        assert [[AMBIGUOUS] * 2] * 2 == results

    def test_num_examples_is_the_cure(self):
        """It says which step the loss is of."""

        def work(strategy):
            first, second = iter(distributed(strategy, 3)), iter(distributed(strategy, 8))
            step, other = next(first), next(second)
            parts = ((step, first), (other, second))
            return [
                tdi.compute_average_loss(x, num_examples=it.last_step.num_examples).item()
                for x, it in parts
            ]

        for losses in zip(*simulate(work, num_workers=2), strict=True):
            assert 1 == pytest.approx(sum(losses))

    def test_replicas_refuse_like_workers(self):
        """Inside run."""
        strategy = tdi.MirroredStrategy(["cpu"] * 2)
        steps = zip(distributed(strategy, 3), distributed(strategy, 8), strict=False)
        for step, _ in steps:
            with pytest.raises(ValueError, match=AMBIGUOUS):
                strategy.run(tdi.compute_average_loss, args=(step,))


class TestOneAfterTheOther:
    """What is not refused: only one of the datasets has delivered since the last loss."""

    def test_an_evaluation_inside_an_epoch(self):
        """Whether it is played to the end or left, closed or kept open."""

        def work(strategy):
            found, kept = [], []
            for step in distributed(strategy, 7):
                found.append(tdi.compute_average_loss(step).item())
                iterator = iter(distributed(strategy, 6))
                kept.append(iterator)
                batches = islice(iterator, 2 if len(kept) == 1 else 1)
                found += [tdi.compute_average_loss(batch).item() for batch in batches]
            return found

        results = zip(*simulate(work, num_workers=2), strict=True)
        assert [1.0] * 5 == [pytest.approx(sum(losses)) for losses in results]

    @pytest.mark.parametrize("num_steps", [2, 3])
    def test_an_evaluation_without_a_loss_that_is_left_open(self, num_steps):
        """It has delivered other numbers of steps than the training loop."""

        def work(strategy):
            training = iter(distributed(strategy, 7))
            evaluation = iter(distributed(strategy, 13))
            found = [tdi.compute_average_loss(next(training)).item()]
            for _ in islice(evaluation, num_steps):
                pass
            found.append(tdi.compute_average_loss(next(training)).item())
            return found

        first, second = simulate(work, num_workers=2)
        assert [1.0, 1.0] == [pytest.approx(sum(pair)) for pair in zip(first, second, strict=True)]

    def test_a_look_at_one_batch(self):
        """What next(iter(dataset)) began is closed when nobody holds it."""

        def work(strategy):
            other = distributed(strategy, 3)
            next(iter(other))
            return [tdi.compute_average_loss(step).item() for step in distributed(strategy, 4)]

        assert [[0.5], [0.5]] == simulate(work, num_workers=2)

    def test_a_step_of_an_iterator_that_has_ended_or_was_closed(self):
        """Its steps are over."""
        strategy = tdi.OneDeviceStrategy("cpu")
        for end in (list, lambda iterator: iterator.close()):
            other = iter(distributed(strategy, 3))
            next(other)
            end(other)
            step = next(iter(distributed(strategy, 4)))
            assert 1.0 == tdi.compute_average_loss(step)

    def test_losses_of_several_steps_before_the_next(self):
        """Two losses of one step, as of two heads of a model."""
        strategy = tdi.OneDeviceStrategy("cpu")
        training, other = iter(distributed(strategy, 8)), iter(distributed(strategy, 3))
        for iterator in (training, other, training):
            step = next(iterator)
            for _ in range(2):
                assert 1.0 == tdi.compute_average_loss(step)


def taken_in_a_thread(iterator, count):
    """The last of some steps that another thread takes."""
    steps = []
    thread = threading.Thread(target=lambda: steps.extend(islice(iterator, count)))
    thread.start()
    thread.join()
    return steps[-1]


class TestThreads:
    """A thread that takes steps ahead of the losses does not change what they are divided by."""

    def test_a_step_that_another_thread_took_is_not_the_last_one_here(self):
        """It may be a later one, of another size."""
        strategy = tdi.OneDeviceStrategy("cpu")
        with strategy.scope():
            taken_in_a_thread(iter(distributed(strategy, 7)), 2)
            with pytest.raises(tdi.UsageError, match="none has been delivered in this thread"):
                tdi.compute_average_loss(torch.ones(3))

    def test_a_loss_here_is_of_the_step_that_was_taken_here(self):
        """Though another dataset's was delivered after it, and in a full turn."""
        strategy = tdi.OneDeviceStrategy("cpu")
        validation, training = iter(distributed(strategy, 3)), iter(distributed(strategy, 8))
        with strategy.scope():
            step = next(validation)
            taken_in_a_thread(training, 1)
            assert 1.0 == tdi.compute_average_loss(step)

    def test_replicas_divide_by_the_step_of_the_thread_that_runs_them(self):
        """They have threads of their own."""
        mirrored = tdi.MirroredStrategy(["cpu", "cpu"])
        steps = iter(distributed(mirrored, 7))
        losses = [mirrored.run(tdi.compute_average_loss, (step,)) for step in steps]
        assert [(0.5, 0.5), (pytest.approx(2 / 3), pytest.approx(1 / 3))] == [
            tuple(map(float, loss)) for loss in losses
        ]


class TestLoss:
    """compute_average_loss divides by what all replicas have."""

    def test_sum_over_replicas_is_the_mean_of_the_global_batch(self):
        """With partial and empty replicas."""

        def work(strategy):
            total = []
            for step in strategy.distribute_dataset(torch.arange(5.0), global_batch_size=4):
                losses = strategy.run(tdi.compute_average_loss, args=(step,))
                total.append(strategy.reduce("sum", losses))
            return torch.stack(total)

        for cluster in ((1, 1), (3, 1), (2, 2), (1, 3)):
            results = simulate(work, num_workers=cluster[0], replicas_per_worker=cluster[1])
            for result in results:
                assert [1.5, 4.0] == result.tolist()

    def test_rows_must_be_those_of_the_step(self):
        """A mean loss, a flattened loss, or that of another step is refused."""
        strategy = one()
        iterator = iter(strategy.distribute_dataset(range(3), global_batch_size=2))
        next(iterator)
        for wrong in (torch.ones(3), torch.ones(1)):
            with pytest.raises(ValueError, match="each of the 2 examples"):
                tdi.compute_average_loss(wrong)
        with pytest.raises(ValueError, match="0-dim"):
            tdi.compute_average_loss(torch.tensor(1.0))
        next(iterator)
        assert 3.0 == tdi.compute_average_loss(torch.full((1, 3), 1.0))

    def test_losses_of_tokens_are_given_their_shape(self):
        """Where they are several for each row; not for fewer, and not for none."""
        step = next(one().distribute_dataset(range(3), global_batch_size=2).steps())
        with pytest.raises(ValueError, match=r"losses\.view\(2, -1\)"):
            step.average(torch.ones(6))
        for number in (0, 1, 5):
            with pytest.raises(ValueError, match=rf"got {number}\. .* by its own step\.\n"):
                step.average(torch.ones(number))

    def test_num_examples_can_be_given(self):
        """For accumulation and for several datasets."""
        assert 0.5 == tdi.compute_average_loss(torch.ones(3), num_examples=6)
        with pytest.raises(ValueError, match="at least 1"):
            tdi.compute_average_loss(torch.ones(3), num_examples=0)

    def test_several_replicas_outside_run(self):
        """Which replica's rows? The error says where to call it."""
        strategy = one(2)
        next(iter(strategy.distribute_dataset(range(4), global_batch_size=4)))
        with pytest.raises(tdi.UsageError, match="inside Strategy.run"):
            tdi.compute_average_loss(torch.ones(2))

    def test_zero_rows_give_zero_with_gradients(self):
        """Exact zeros, never NaN."""
        weight = torch.ones(3, requires_grad=True)
        loss = tdi.compute_average_loss((torch.ones(0, 3) @ weight), num_examples=4)
        loss.backward()
        assert 0 == loss
        assert [0, 0, 0] == weight.grad.tolist()


def test_what_was_delivered_goes_with_its_iterator():
    """No cycle keeps the last step, and its ids, until garbage is collected."""
    strategy = tdi.OneDeviceStrategy("cpu")
    iterator = iter(distributed(strategy, 7))
    next(iterator)
    kept = weakref.ref(strategy._session.loss_steps.last)
    gc.disable()
    try:
        del strategy, iterator
        assert kept() is None
    finally:
        gc.enable()
