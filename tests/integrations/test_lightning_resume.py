"""Lightning goes on from a checkpoint of any moment, exactly: each example once an epoch.

One process saves at every place where Lightning lets one save, and another one goes on from each.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections import Counter

import lightning.pytorch as pl
import pytest
import torch

from tests.integrations.lightning_runs import (
    NUM_EXAMPLES,
    SOURCES,
    Model,
    Saver,
    Validating,
    data,
    examples,
    fit,
    make_trainer,
    silence,
    whole_epochs,
)

NUM_EPOCHS = 3
BATCHES = [(4, 4), (2, 5), (5, 2)]
"""Global batch sizes before and after."""


def steps_left(before, saved_after, size):
    """Steps of another size that make three epochs whole."""
    per_epoch = math.ceil(NUM_EXAMPLES / before)
    epochs, steps = divmod(saved_after, per_epoch)
    left = NUM_EXAMPLES - steps * before if steps else 0
    return math.ceil(left / size) + (NUM_EPOCHS - epochs - bool(steps)) * math.ceil(
        NUM_EXAMPLES / size
    )


def until(by, before, saved_after=0, size=None):
    """How Lightning is told to train three epochs: in epochs or in steps."""
    if by == "max_epochs":
        return {by: NUM_EPOCHS}
    return {by: saved_after + steps_left(before, saved_after, size or before)}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("model", [Model, Validating])
@pytest.mark.parametrize(
    ("by", "before", "after"),
    [*(("max_epochs", *sizes) for sizes in BATCHES), ("max_steps", 4, 4), ("max_steps", 5, 2)],
)
def test_wherever_it_was_saved(tmp_path, source, by, model, before, after):
    saver, first = Saver(tmp_path), model()
    val = {"val": range(3)} if model is Validating else {}
    fit(first, data(source, before, **val), callbacks=[saver], **until(by, before))
    assert whole_epochs(0, 1, 2) == examples(first.trained)
    assert len(saver.saved) >= 12

    for hook, count, file in saver.saved:
        second = model()
        limits = until(by, before, count, after)
        fit(second, data(source, after, **val), ckpt_path=file, **limits)
        trained = first.trained[:count] + second.trained
        assert whole_epochs(0, 1, 2) == examples(trained), (hook, count)
        if before == after:
            assert first.trained == trained, (hook, count)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("before", "after"), BATCHES)
def test_where_max_steps_has_cut_an_epoch_off(tmp_path, source, before, after):
    for cut in range(1, 2 * math.ceil(NUM_EXAMPLES / before)):
        saver, first, second = Saver(tmp_path, ["on_train_epoch_end"]), Model(), Model()
        fit(first, data(source, before), callbacks=[saver], max_steps=cut)
        _, count, file = saver.saved[-1]
        assert cut == count
        limits = until("max_steps", before, cut, after)
        fit(second, data(source, after), ckpt_path=file, **limits)
        assert whole_epochs(0, 1, 2) == examples(first.trained + second.trained), cut


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("after", [4, 3])
def test_also_where_it_was_saved_behind_the_training(tmp_path, source, after):
    """Lightning counts the epoch as ended then; its rest is trained all the same."""
    first, second, file = Model(), Model(), str(tmp_path / "last.ckpt")
    trainer = fit(first, data(source, 4), max_steps=4)
    trainer.save_checkpoint(file)
    fit(second, data(source, after), ckpt_path=file, max_epochs=3)
    assert whole_epochs(0, 1, 2) == examples(first.trained + second.trained)


class Stopper(pl.Callback):
    """Asks for a stop behind a step, as Lightning's Timer does."""

    def __init__(self, count):
        self.count = count

    def on_train_batch_end(self, trainer, model, *_):
        trainer.should_stop = trainer.should_stop or len(model.trained) == self.count


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
@pytest.mark.parametrize(
    "settings",
    [
        {"val_check_interval": 2},
        {"val_check_interval": 3},
        {"val_check_interval": 5, "check_val_every_n_epoch": None},
    ],
)
def test_it_was_saved_in_the_validation_of_a_stop(tmp_path, source, count, settings):
    """Which comes at once, also behind the last step of an epoch, of which there are three."""
    saver, first = Saver(tmp_path, ["on_validation_end"]), Validating()
    settings = {"max_epochs": 3, **settings}
    fit(first, data(source, 4, val=range(3)), callbacks=[Stopper(count), saver], **settings)
    for _, saved_after, file in saver.saved:
        second = Validating()
        fit(second, data(source, 4, val=range(3)), ckpt_path=file, **settings)
        trained = first.trained[:saved_after] + second.trained
        assert whole_epochs(0, 1, 2) == examples(trained), saved_after


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4])
def test_a_step_that_was_interrupted_is_trained_again(tmp_path, source, count):
    """Its batch was delivered and in use, but has not reached the weights."""
    saver, first, second = Saver(tmp_path, ["on_exception"]), Model(fails_at=count), Model()
    fit(first, data(source, 4), callbacks=[saver], max_epochs=2)
    ((_, saved_after, file),) = saver.saved
    assert count == saved_after == len(first.trained)
    fit(second, data(source, 4), ckpt_path=file, max_epochs=2)
    assert whole_epochs(0, 1) == examples(first.trained + second.trained)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("count", [0, 1, 2])
def test_fit_again_after_it_has_failed(tmp_path, source, count, caplog):
    """On the same trainer, which begins the epoch anew; what it saves then is of that epoch.

    Before its first step that is what the failed one has trained.
    """
    model, own, saver = Model(fails_at=count), data(source, 4), Saver(tmp_path)
    trainer = fit(model, own, max_epochs=2)
    assert count == len(model.trained)
    failed, model.fails_at, model.trained = model.trained, None, []
    trainer.callbacks.append(saver)
    with silence():
        trainer.fit(model, datamodule=own)
    assert bool(count) == (f"has ended epoch 0 after {count} steps" in caplog.text)
    assert 6 == len(model.trained)
    for hook, saved_after, file in saver.saved:
        second = Model()
        fit(second, data(source, 4), ckpt_path=file, max_epochs=2)
        played = (model.trained[:saved_after] or failed) + second.trained
        numbers = Counter(example % 100 for step in played for example in step)
        assert numbers == Counter([*range(NUM_EXAMPLES)] * 2), (hook, saved_after)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("nth", [0, 1, 2])
def test_several_times(tmp_path, source, nth):
    """A run that is resumed is saved and resumed like any other, with other batches each time."""
    trained, file, num_runs = [], None, 0
    for size in itertools.cycle([2, 3, 5, 1]):
        saver, model = Saver(tmp_path / str(num_runs), ["on_train_batch_end"]), Model()
        fit(model, data(source, size), callbacks=[saver], ckpt_path=file, max_epochs=3)
        if not saver.saved:
            break
        _, count, file = saver.saved[min(nth, len(saver.saved) - 1)]
        trained += model.trained[:count]
        num_runs += 1
    assert num_runs >= 4
    assert whole_epochs(0, 1, 2) == examples(trained)


def test_a_checkpoint_without_loops(tmp_path):
    """Lightning takes it for the beginning; so do we."""
    saver, file = Saver(tmp_path, ["on_train_epoch_end"]), str(tmp_path / "taken.ckpt")
    fit(Model(), data("indexed", 4), callbacks=[saver], max_epochs=1)
    checkpoint = torch.load(saver.saved[0][-1], weights_only=False)
    del checkpoint["loops"]
    torch.save(checkpoint, file)
    model = Model()
    fit(model, data("indexed", 4), ckpt_path=file, max_epochs=1)
    assert NUM_EXAMPLES == examples(model.trained).total()


def test_lightning_knows_that_the_loader_goes_on(tmp_path):
    """It warns of others that they cannot be resumed in the middle of an epoch."""
    saver, model = Saver(tmp_path, ["on_train_batch_end"]), Model()
    fit(model, data("indexed", 4), callbacks=[saver], max_epochs=1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        trainer = make_trainer(max_epochs=1)
        trainer.fit(Model(), datamodule=data("indexed", 4), ckpt_path=saver.saved[0][-1])
    assert not [one for one in told if "not resumable" in str(one.message)]
