"""What is raised inside of ``next()``, anywhere: the step is not lost without a word."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
import torch

import torch_distinput as tdi
from tests.distribute.street import one, stream_of
from tests.interrupts import interrupt_at

PACKAGE = str(Path(tdi.__file__).parent)
EXAMPLES = 12


def interrupt(number, call):
    """Ctrl-C at that line of the package under a call; whether there are so many."""
    return interrupt_at(number, call, watches=lambda path: path.startswith(PACKAGE))


def interrupt_at_call(number, call):
    """The same, at a call of the package's."""
    reached = 0

    def profile(frame, event, _):
        nonlocal reached
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(PACKAGE):
            reached += 1
            if reached == number:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    return reached >= number


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["columns", "list", "stream", "threads"])
def test_after_ctrl_c_at_any_line_a_loop_that_goes_on_has_all_examples(kind):
    examples = list(range(EXAMPLES))
    sources = {"columns": torch.arange(EXAMPLES), "stream": stream_of(examples)}
    for number in range(1, 2000):
        dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(
            sources.get(kind, examples),
            global_batch_size=4,
            num_threads=2 if kind == "threads" else 0,
        )
        seen, steps = [], iter(dataset)
        was_reached = interrupt(number, lambda: seen.extend(next(steps).tolist()))  # noqa: B023
        try:
            seen += [example for step in steps for example in step.tolist()]
        except KeyboardInterrupt:
            assert was_reached
        else:
            assert examples == seen, number
        if not was_reached:
            assert number > 50
            return
    pytest.fail("next() has more lines than were tried")


WAYS = {
    "next": (iter, next, lambda batch: batch),
    "steps": (tdi.DistributedDataset.steps, next, lambda step: step.batch),
    "get_next": (iter, tdi.DistributedIterator.get_next, lambda batch: batch),
    "optional": (
        iter,
        tdi.DistributedIterator.get_next_as_optional,
        lambda found: found.get_value(),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_state_after_ctrl_c_tells_what_the_loop_has(way):
    """Where Python looks for signals: when it enters a function, and after one of C."""
    begin, take, batch_of = WAYS[way]
    examples = list(range(EXAMPLES))
    for number in itertools.count(1):
        dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(examples, global_batch_size=4)
        steps = begin(dataset)
        taken = [take(steps)]
        was_reached = interrupt_at_call(number, lambda: taken.append(take(steps)))  # noqa: B023
        seen = [example for one in taken for example in batch_of(one).tolist()]
        dataset.load_state_dict(dataset.state_dict())
        seen += [example for step in dataset for example in step.tolist()]
        assert examples == seen, number
        if not was_reached:
            assert number > 20
            return


def test_a_step_that_cannot_be_put_together_was_not_delivered():
    """Of two replicas one has another structure: the first time, and whenever it is asked again."""
    batches = [{name: torch.tensor([0])} for name in "aaaaabaa"]
    strategy = one(2)
    dataset = strategy.distribute_datasets_from_function(lambda _: stream_of(batches))
    steps = iter(dataset)
    next(steps), next(steps)
    for _ in range(2):
        with pytest.raises(tdi.MismatchError, match="one structure on all local replicas"):
            next(steps)
    assert 2 == dataset.state_dict()["steps"]
    assert "MismatchError" in strategy._session.heartbeat.failed[1]  # other workers hear of it
