"""A function that makes a worker's dataset, where a dataset is expected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, final

from torch_distinput.data.sources.source import Request
from torch_distinput.errors import ConfigurationError
from torch_distinput.plan.assignment.topology import InputContext


@final
@dataclass(frozen=True, slots=True)
class DatasetCreator:
    """A ``dataset_fn`` in the place of a dataset (``tf.keras.utils.experimental.DatasetCreator``).

    ``Strategy.distribute_dataset`` takes it, and plays it as ``distribute_datasets_from_function``
    does: for code that is handed a source, and distributes it itself.

    Attributes:
        dataset_fn: called on each worker with an :class:`InputContext`; returns an iterable of
            replica batches.

    Raises:
        TypeError: if ``dataset_fn`` cannot be called.
    """

    dataset_fn: Callable[[InputContext], Any]

    def __post_init__(self) -> None:
        """Refuse what is no function: a dataset, say."""
        if not callable(self.dataset_fn):
            msg = (
                "DatasetCreator needs a function of an InputContext that returns replica batches, "
                f"got {type(self.dataset_fn).__name__}. A dataset can be distributed as it is: "
                "distribute_dataset(dataset, ...)."
            )
            raise TypeError(msg)


def refuse_settings(request: Request, *, seed: int, balance: object) -> None:
    """Refuse settings that say how a source is cut: a DatasetCreator's function has cut it.

    Raises:
        ConfigurationError: a ValueError; it names the settings.
    """
    default = Request()
    given = {
        field.name: getattr(request, field.name)
        for field in fields(request)
        if getattr(request, field.name) != getattr(default, field.name)
    }
    if seed:
        given["seed"] = seed
    if balance is not None:
        given["balance"] = balance
    if given:
        shown = ", ".join(f"{name}={value!r}" for name, value in given.items())
        msg = (
            f"Expected a DatasetCreator with no setting but options, got {shown}. Nothing is "
            "sharded, shuffled or cut here: dataset_fn returns the batches of its replicas, so do "
            "it in there (InputContext.get_per_replica_batch_size tells a batch size); or pass the "
            "dataset itself."
        )
        raise ConfigurationError(msg)
