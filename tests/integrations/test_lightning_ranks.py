"""Lightning on ranks: each example of an epoch is trained once, on one of them.

One launch plays many cases, since a launch takes longer than a case.
"""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard

from tests.integrations.lightning_runs import (
    Model,
    Saver,
    Validating,
    collect_models,
    data,
    examples,
    fit,
    make_trainer,
    on_ranks,
    silence,
    whole_epochs,
)
from torch_distinput.integrations.lightning import DataModule
from torch_distinput.testing import run_ranks


class Estimating(Model):
    """Asks for its steps where Lightning has not restored anything yet."""

    def configure_optimizers(self):
        self.estimated = self.trainer.estimated_stepping_batches
        return super().configure_optimizers()


def train(strategy, case):
    """Train on this rank: (steps, dataset's epochs) that the model has seen."""
    model_class, source, size, arguments = case
    model = model_class()
    arguments = dict(arguments)
    folder = arguments.pop("save_in", None)
    saver = Saver(folder, ["on_train_batch_end", "on_train_epoch_end"]) if folder else None
    callbacks = [saver] if saver else []
    loads = arguments.pop("ckpt_path", None)
    val = {"val": range(3)} if model_class is Validating else {}
    limits = {**on_ranks(strategy), **arguments}
    fit(model, data(source, size, **val), ckpt_path=loads, callbacks=callbacks, **limits)
    seen = model.trained, model.epochs, getattr(model, "estimated", None)
    del model
    collect_models()
    return seen


def play(strategy, cases):
    return [train(strategy, case) for case in cases]


def joined(runs):
    """The steps of all ranks, and that each rank made as many."""
    assert 1 == len({len(trained) for trained, *_ in runs})
    steps = zip(*(trained for trained, *_ in runs), strict=True)
    return [list(itertools.chain.from_iterable(parts)) for parts in steps]


def run_cases(num_ranks, cases):
    """For each case the steps of all ranks together."""
    on_rank = run_ranks(functools.partial(play, cases=cases), num_ranks, timeout=100)
    return [joined(runs) for runs in zip(*on_rank, strict=True)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def saved(folder):
    """Runs of two epochs on two ranks that save at each step, by source."""
    two = {"max_epochs": 2}
    cases = {
        source: (Model, source, 4, {**two, "save_in": str(folder / source)})
        for source in ("indexed", "stream")
    }
    for source in cases:
        (folder / source).mkdir()
    return dict(zip(cases, run_cases(2, list(cases.values())), strict=True))


def checkpoint(folder, source, count, hook="on_train_batch_end"):
    return {"ckpt_path": str(folder / source / f"{hook}-{count}.ckpt"), "max_epochs": 2}


@pytest.mark.parametrize("source", ["indexed", "stream"])
def test_two_epochs(saved, source):
    """The first is the dataset's first, though Lightning has looked at the loader before."""
    assert whole_epochs(0, 1) == examples(saved[source])
    assert whole_epochs(0) == examples(saved[source][:3])
    assert [4, 4, 2] * 2 == [len(step) for step in saved[source]]


@pytest.fixture(scope="module")
def resumed(saved, folder):
    """What two ranks have trained after two of six steps, and after an epoch: by case."""
    del saved
    cases = {
        (model.__name__, source, size, count): (
            *(model, source, size),
            checkpoint(folder, source, count, hook),
        )
        for source in ("indexed", "stream")
        for model, size, count, hook in [
            (Model, 4, 2, "on_train_batch_end"),
            (Estimating, 4, 2, "on_train_batch_end"),
            (Model, 1, 2, "on_train_batch_end"),
            (Model, 8, 2, "on_train_batch_end"),
            (Model, 4, 3, "on_train_epoch_end"),
        ]
        if (model, source) != (Estimating, "stream")
    }
    return dict(zip(cases, run_cases(2, list(cases.values())), strict=True))


@pytest.mark.parametrize("source", ["indexed", "stream"])
def test_an_epoch_goes_on_in_its_middle(saved, resumed, source):
    assert saved[source] == saved[source][:2] + resumed["Model", source, 4, 2]


def test_also_where_the_optimizer_asks_for_the_number_of_steps(saved, resumed):
    assert saved["indexed"][2:] == resumed["Estimating", "indexed", 4, 2]


@pytest.mark.parametrize("source", ["indexed", "stream"])
@pytest.mark.parametrize("size", [1, 8])
def test_also_with_another_batch_size(saved, resumed, source, size):
    trained = saved[source][:2] + resumed["Model", source, size, 2]
    assert whole_epochs(0, 1) == examples(trained)


@pytest.mark.parametrize("source", ["indexed", "stream"])
def test_from_the_end_of_an_epoch_the_next_one_begins(saved, resumed, source):
    assert saved[source][3:] == resumed["Model", source, 4, 3]


@pytest.mark.parametrize("source", ["indexed", "stream"])
def test_the_last_batch_is_smaller(saved, source):
    """Its loss is that of its own examples, though another step may have been read since."""
    assert 2 == len(saved[source][2]) == len(saved[source][5])


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_it_goes_on_on_another_number_of_ranks(saved, folder, num_ranks):
    sources = ["indexed", "stream"]
    cases = [(Model, source, 3, checkpoint(folder, source, 2)) for source in sources]
    for source, rest in zip(sources, run_cases(num_ranks, cases), strict=True):
        assert whole_epochs(0, 1) == examples(saved[source][:2] + rest)


def test_from_one_rank_to_two(tmp_path):
    model = Model()
    saver = Saver(tmp_path, ["on_train_batch_end"])
    fit(model, data("indexed", 4), callbacks=[saver], max_epochs=2)
    cases = [
        (Model, "indexed", 5, {"ckpt_path": file, "max_epochs": 2}) for *_, file in saver.saved[:3]
    ]
    for count, rest in enumerate(run_cases(2, cases), start=1):
        assert whole_epochs(0, 1) == examples(model.trained[:count] + rest)


class Sharded(Model):
    """A layer that FSDP2 shards over the data-parallel ranks."""

    def __init__(self):
        super().__init__()
        self.weight = None
        self.layer = torch.nn.Linear(1, 4)

    def configure_model(self):
        fully_shard(self.layer, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch, batch_idx):
        self.trained.append(batch.long().tolist())
        return self.trainer.datamodule.average_loss(self.layer(batch[:, None]).sum(1))


def train_on_a_mesh(strategy, data_size, folder):
    """Train an epoch, and its rest again with other batches: what this rank has trained."""
    size = {"data_parallel_size": data_size, "tensor_parallel_size": 2 // data_size}
    arguments = {**on_ranks(strategy), "max_epochs": 1}
    models, saver, file = [Sharded(), Sharded()], Saver(folder, ["on_train_batch_end"]), None
    for model, batch_size in zip(models, [4, 3], strict=True):
        arguments["strategy"] = ModelParallelStrategy(**size)
        arguments["callbacks"] = [] if file else [saver]
        fit(model, data("indexed", batch_size), ckpt_path=file, **arguments)
        file = saver.saved[0][2]
    trained = [model.trained for model in models]
    del model, models
    collect_models()
    return trained


@pytest.mark.parametrize("data_size", [1, 2])
def test_ranks_of_a_mesh(tmp_path, data_size):
    """Those that share a part of the model train the same; others divide each batch."""
    job = functools.partial(train_on_a_mesh, data_size=data_size, folder=tmp_path)
    runs = run_ranks(job, 2, timeout=100)
    if data_size == 1:
        assert runs[0] == runs[1]
        runs = runs[:1]
    first, second = (joined([(run[number],) for run in runs]) for number in (0, 1))
    assert whole_epochs(0) == examples(first)
    assert whole_epochs(0) == examples(first[:1] + second)


class Predicting(Validating):
    """Hands over with each prediction of which example it is."""

    def predict_step(self, batch, batch_idx):
        return self.trainer.datamodule.step.ids, 2 * batch


def evaluate(strategy):
    """Validate inside an epoch, test, and predict: what each has seen on this rank."""
    model, trainer = Predicting(), make_trainer(**on_ranks(strategy), max_epochs=1)
    trainer.val_check_interval = 2
    module = DataModule(range(10), val=range(5), global_batch_size=4, shuffle=True)
    module.test = module.predict = torch.arange(7)
    with silence():
        trainer.fit(model, datamodule=module)
        trainer.test(model, datamodule=module)
        predicted = trainer.predict(model, datamodule=module)
    ids, values = (list(itertools.chain(*(one[i].tolist() for one in predicted))) for i in (0, 1))
    in_order = strategy.gather_in_order(torch.tensor(ids), torch.tensor(values)).tolist()
    validated = [batch for _, batch in model.validated]
    seen = model.trained, validated, model.tested, in_order
    del model, trainer, module
    collect_models()
    return seen


def test_evaluation_on_ranks():
    """The second rank has no example in the last step of the validation, and none is repeated."""
    runs = run_ranks(evaluate, 2, timeout=100)
    trained, validated, tested, in_order = zip(*runs, strict=True)
    assert dict.fromkeys(range(10), 1) == examples(itertools.chain(*trained))
    assert [[[0, 1], [4]], [[2, 3], []]] == list(validated)
    assert [[[0, 1], [4, 5]], [[2, 3], [6]]] == list(tested)
    assert [list(range(0, 14, 2))] * 2 == list(in_order)
