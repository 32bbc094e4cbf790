"""Evaluation and prediction take each example once, in order, whatever each rank gets of it."""

from __future__ import annotations

from functools import partial

import pytest

import torch_distinput as tdi
from tests.integrations.accelerators import COUNT, losses_of, rows
from tests.integrations.trainers import SOURCES, Regression, trainer_on
from torch_distinput.testing import run_ranks


def evaluate(strategy, folder, kind, count):
    """The labels and predictions as metrics get them, and the metrics; twice."""
    given = []

    def compute_metrics(found):
        given.append((found.predictions[:, 0].tolist(), found.label_ids.tolist()))
        return {"rows": len(found.label_ids)}

    source = SOURCES[kind](count)
    sizes = {"per_device_eval_batch_size": 3}
    with trainer_on(strategy, folder, evaluated=source, **sizes) as trainer:
        trainer.compute_metrics = compute_metrics
        metrics = [trainer.evaluate() for _ in range(2)]
        predicted = trainer.predict(SOURCES[kind](count))
        return given, metrics, predicted.predictions[:, 0].tolist()


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("count", [COUNT, 1])
def test_metrics_are_of_every_example_once_and_in_order(kind, count, tmp_path):
    model, (numbers, targets) = Regression(), rows(count)
    expected = model(numbers, targets)["logits"].flatten().tolist()
    loss = float(losses_of(model.linear, numbers, targets).mean().detach())

    job = partial(evaluate, folder=tmp_path, kind=kind, count=count)
    for given, metrics, predicted in run_ranks(job, 3):
        assert [targets.tolist()] * 3 == [labels for _, labels in given]
        assert [expected] * 3 == [predictions for predictions, _ in given]
        assert expected == predicted
        for one in metrics:
            assert count == one["eval_rows"]
            assert loss == pytest.approx(one["eval_loss"], rel=1e-12)


def predict_numbers(strategy, folder):
    with trainer_on(strategy, folder, per_device_eval_batch_size=4) as trainer:
        without = [{"numbers": float(number)} for number in range(COUNT)]
        output = trainer.predict(without)
        return output.predictions.shape, output.label_ids, trainer.model.seen


def test_prediction_needs_no_labels(tmp_path):
    for shape, labels, _ in run_ranks(partial(predict_numbers, folder=tmp_path), 2):
        assert (COUNT, 1) == shape
        assert labels is None


class Averaging(Regression):
    """Divides its loss by the examples of the global batch, as a loop of one's own does."""

    def forward(self, numbers, labels=None):
        output = super().forward(numbers, labels)
        tdi.compute_average_loss(output["logits"].flatten())
        return output


def evaluate_with_an_own_average(strategy, folder):
    with trainer_on(strategy, folder, evaluated=SOURCES["list"](COUNT)) as trainer:
        trainer.model = Averaging()
        with pytest.raises(tdi.UsageError, match="Return the plain mean of the batch"):
            trainer.evaluate()


def test_an_average_for_loops_of_ones_own_is_refused(tmp_path):
    run_ranks(partial(evaluate_with_an_own_average, folder=tmp_path), 1)
