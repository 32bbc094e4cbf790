"""The object in a worker process, which the coordinator calls.

    thread                      writes                     reads
    the one that runs closures  _values, _datasets         all
    those that fetch            -                          _values

The coordinator has one thread per worker, so closures and datasets come one after another. A value
is put into ``_values`` before anybody hears of it, and taken out when nobody wants it any more.
"""

from __future__ import annotations

import pickle
from typing import Any, final

import torch

import torch_distinput as tdi
from torch_distinput.coordinator.engines.pickling import ByValue
from torch_distinput.coordinator.parameters.identity import set_worker
from torch_distinput.coordinator.parameters.parameters import drop_client, release_all
from torch_distinput.coordinator.workers.datasets import WorkerDatasets
from torch_distinput.coordinator.workers.iterator import serving
from torch_distinput.coordinator.workers.messages import (
    ClosureReply,
    ClosureRequest,
    DatasetRecipe,
    IteratorPlace,
    IteratorReport,
    WorkerPlace,
)
from torch_distinput.data.batch.serialized import serialize

_MAX_SENT_BYTES = 64 * 1024
"""Values up to this size travel with the reply, so that a death after it does not lose them."""


@final
class Worker:
    """Runs closures under a strategy of its own: one worker with its replicas."""

    def __init__(self, place: WorkerPlace) -> None:
        """Begin without datasets and values."""
        set_worker(place.name)
        self._place = place
        self._strategy = tdi.MirroredStrategy(place.devices)
        self._datasets = WorkerDatasets(place)
        self._values: dict[int, torch.Tensor] = {}  # serialized, by closure

    def start(self) -> None:
        """Answer: the process is there."""

    def create_dataset(self, recipe: DatasetRecipe, place: IteratorPlace | None) -> None:
        """Make a dataset, at the place where an earlier process of this worker stood."""
        with self._strategy.scope():
            self._datasets.create(recipe, place)

    def run(self, request: ClosureRequest) -> ClosureReply:
        """Run a closure, and tell what it took; raises what it raises."""
        for number in request.unused_values:
            self._values.pop(number, None)
        for unused in request.unused_datasets:
            self._datasets.drop(unused)
        for key in request.unused_parameters:
            drop_client(key)
        with self._strategy.scope(), serving(self._datasets):
            value = self._call(request)
        piece = _serialize(value, request)
        reports = self._datasets.take_reports()
        if piece.nbytes <= _MAX_SENT_BYTES:
            return ClosureReply(value=piece.numpy().tobytes(), reports=reports)
        self._values[request.number] = piece
        return ClosureReply(value=None, reports=reports)

    def take_reports(self) -> tuple[IteratorReport, ...]:
        """What a closure took that raised."""
        return self._datasets.take_reports()

    def fetch(self, number: int) -> Any:
        """The value that a closure left, as an array of bytes; None if it is not here."""
        piece = self._values.get(number)
        return None if piece is None else piece.numpy()

    def _call(self, request: ClosureRequest) -> Any:
        fn, args, kwargs = self._open(request)
        try:
            return fn(*args, **kwargs)
        except StopIteration as end:
            ended = ", ".join(self._datasets.ended()) or "an iterator of its own"
            msg = (
                f"Expected {request.name} to find data on {self._place.name}, got the end of "
                f"{ended}. Workers take closures as they are free, so nobody knows how much data "
                "each needs: let the dataset repeat forever, and schedule as many closures as "
                "you want; or catch StopIteration in the function."
            )
            raise tdi.UsageError(msg) from end
        finally:
            release_all()

    def _open(self, request: ClosureRequest) -> Any:
        """The function, its arguments and keyword arguments."""
        try:
            return pickle.loads(request.payload)  # noqa: S301 - from our coordinator
        except tdi.DistinputError:
            raise  # of a handle among them
        except Exception as error:
            msg = (
                f"Expected {request.name} and its arguments to load on {self._place.name}, got "
                f"{type(error).__name__}: {error}. Their modules must be importable there: put "
                "them into a module, or pip install 'torch_distinput[coordinator]'."
            )
            raise tdi.ConfigurationError(msg) from error


def _serialize(value: Any, request: ClosureRequest) -> torch.Tensor:
    try:
        try:
            return serialize(value)
        except Exception:  # noqa: BLE001 - a class that was handed over by value
            return serialize(ByValue(value))
    except Exception as error:
        msg = (
            f"Expected {request.name} to return what can be sent to the coordinator, got a "
            f"{type(value).__name__} that cannot be pickled: {error}. Return numbers, tensors, "
            "arrays, or containers of them."
        )
        raise TypeError(msg) from error
