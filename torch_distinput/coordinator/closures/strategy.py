"""``ParameterServerStrategy``: how many processes, and who starts them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn, final

import torch
from torch import nn

import torch_distinput as tdi
from torch_distinput.coordinator.closures.closure_pickling import refuse
from torch_distinput.coordinator.closures.processes import Processes
from torch_distinput.coordinator.engines.engine import Engine
from torch_distinput.coordinator.engines.local import LocalEngine
from torch_distinput.coordinator.engines.ray import RayEngine
from torch_distinput.coordinator.parameters.create import create_parameters
from torch_distinput.coordinator.parameters.optimizers import OptimizerFn
from torch_distinput.coordinator.parameters.parameters import Parameters
from torch_distinput.coordinator.parameters.placement import Partitioner
from torch_distinput.coordinator.parameters.server import ParameterServer
from torch_distinput.coordinator.workers.messages import WorkerPlace
from torch_distinput.coordinator.workers.worker import Worker
from torch_distinput.options import check_count
from torch_distinput.threads import call_in_child

if TYPE_CHECKING:
    from typing_extensions import Self

_SPARE_CALLS = 16
"""Calls of a server beside two for each worker, all of which may wait for one that is to come: a
worker has one under way, and one of a process that died may still be there."""


@final
class ParameterServerStrategy:
    """Workers that run closures, and servers that hold parameters, each a process of its own.

    ``tf.distribute.ParameterServerStrategy``. It is no :class:`Strategy`: what is to be distributed
    is distributed on a worker, over the replicas of its own strategy. A context manager that closes
    itself; :meth:`close` ends the processes.

    Args:
        num_workers: processes that run closures.
        num_parameter_servers: processes that hold parameters.
        engine: what starts them: ``"local"``, on this machine; ``"ray"``, where Ray places them; or
            an engine of your own, which is closed with the strategy.
        devices: of the replicas of each worker, as :class:`MirroredStrategy` takes them.
    """

    def __init__(
        self,
        num_workers: int,
        num_parameter_servers: int = 1,
        engine: str | Engine = "local",
        *,
        devices: Sequence[str | torch.device] | None = None,
    ) -> None:
        self.num_workers = check_count("num_workers", num_workers, minimum=1)
        self.num_parameter_servers = check_count(
            "num_parameter_servers", num_parameter_servers, minimum=0
        )
        names = None if devices is None else tuple(map(str, devices))
        started = _make_engine(engine)
        try:
            servers = [
                started.start(
                    f"server {i}",
                    ParameterServer,
                    restarts=False,
                    num_calls=_SPARE_CALLS + 2 * num_workers,
                )
                for i in range(num_parameter_servers)
            ]
            places = [
                WorkerPlace(index=i, num_workers=num_workers, devices=names)
                for i in range(num_workers)
            ]
            workers = [started.start(p.name, partial(Worker, p), restarts=True) for p in places]
        except BaseException:
            started.close()
            raise
        self._processes = Processes(started, servers, workers)
        self._finalizer = weakref.finalize(self, self._processes.close_soon)
        self._finalizer.atexit = False  # the threads are told, and waited for, all at once
        call_in_child(self, ParameterServerStrategy._leave_to_parent)

    def __repr__(self) -> str:
        """Show the numbers."""
        return (
            f"ParameterServerStrategy({self.num_workers} workers, {self.num_parameter_servers} "
            "parameter servers)"
        )

    def create_parameters(
        self,
        module_fn: Callable[[], nn.Module],
        optimizer_fn: OptimizerFn,
        *,
        partitioner: Partitioner | None = None,
        max_staleness: int | None = None,
    ) -> Parameters:
        """Make a module, and place its parameters over the servers.

        Embeddings lie row by row over all of them, other parameters whole, by their bytes.

        Args:
            module_fn: makes the module: here, and once on each worker.
            optimizer_fn: makes the optimizer of a list of parameters, as a class of
                ``torch.optim`` does; each server has its own, for what it holds.
            partitioner: ``(name, shape, dtype, num_servers)`` to a number of row shards.
            max_staleness: how many pushes may be applied between a pull and its push; None for any
                number, 0 for one worker at a time.

        Raises:
            ConfigurationError: there is no server; a module or optimizer cannot live on servers.
            ServerLostError: a server died.
        """
        if not self.num_parameter_servers:
            msg = (
                "create_parameters needs a parameter server, got num_parameter_servers=0. Make the "
                "strategy with one or more."
            )
            raise tdi.ConfigurationError(msg)
        parameters = create_parameters(
            self._processes.servers,
            module_fn,
            optimizer_fn,
            partitioner=partitioner,
            max_staleness=max_staleness,
        )
        self._processes.add_parameters(parameters)
        return parameters

    def close(self) -> None:
        """End all processes, whatever they do; from then on every call raises a UsageError."""
        self._finalizer.detach()
        self._processes.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __reduce__(self) -> NoReturn:
        """Refuse to travel to a worker."""
        refuse(
            TypeError(
                "Expected a closure that any worker can run, got one with the "
                "ParameterServerStrategy in it, which belongs to this process. On a worker, "
                "tdi.get_strategy() is the worker's own strategy."
            )
        )

    if not TYPE_CHECKING:  # or every misspelt attribute would pass for one

        def __getattr__(self, name: str) -> NoReturn:
            """Say where what a Strategy has is to be asked."""
            msg = f"{type(self).__name__!r} object has no attribute {name!r}"
            if not name.startswith("_") and hasattr(tdi.Strategy, name):
                msg += (
                    ": this process holds no replica. Ask it of the worker's own strategy, in a "
                    f"function that is scheduled or makes a dataset: tdi.get_strategy().{name}"
                )
            raise AttributeError(msg)

    def _leave_to_parent(self) -> None:
        """In a forked child: the processes are the parent's, and so are the threads."""
        self._finalizer.detach()
        self._processes.leave_to_parent()


def processes_of(strategy: ParameterServerStrategy) -> Processes:
    """The processes of a strategy, for its coordinator."""
    return strategy._processes  # noqa: SLF001 - two halves of one thing


def _make_engine(engine: str | Engine) -> Engine:
    if not isinstance(engine, str):
        return engine
    if engine == "local":
        return LocalEngine()
    if engine == "ray":
        return RayEngine()
    msg = f"engine must be 'local', 'ray' or an engine, got {engine!r}."
    raise ValueError(msg)
