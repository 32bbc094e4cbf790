"""``ParameterServerStrategy``: how many processes, and who starts them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn, final

import torch

import torch_distinput as tdi
from torch_distinput.coordinator.closures.cluster import Cluster
from torch_distinput.coordinator.closures.handles import refuse
from torch_distinput.coordinator.engines.engine import Engine, RemoteObject
from torch_distinput.coordinator.engines.local import LocalEngine
from torch_distinput.coordinator.workers.messages import WorkerPlace
from torch_distinput.coordinator.workers.worker import Worker
from torch_distinput.options import check_count
from torch_distinput.threads import call_in_child

if TYPE_CHECKING:
    from typing_extensions import Self


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
            servers = [_start_server(started, i) for i in range(num_parameter_servers)]
            places = [
                WorkerPlace(index=i, num_workers=num_workers, devices=names)
                for i in range(num_workers)
            ]
            workers = [started.start(p.name, partial(Worker, p), restarts=True) for p in places]
        except BaseException:
            started.close()
            raise
        self._cluster = Cluster(started, servers, workers)
        self._finalizer = weakref.finalize(self, self._cluster.close_soon)
        self._finalizer.atexit = False  # the threads are told, and waited for, all at once
        call_in_child(self, ParameterServerStrategy._leave_to_parent)

    def __repr__(self) -> str:
        """Show the numbers."""
        return (
            f"ParameterServerStrategy({self.num_workers} workers, {self.num_parameter_servers} "
            "parameter servers)"
        )

    def close(self) -> None:
        """End all processes, whatever they do; from then on every call raises a UsageError."""
        self._finalizer.detach()
        self._cluster.close()

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
        """In a forked child: the processes are the parent's."""
        self._finalizer.detach()


def cluster_of(strategy: ParameterServerStrategy) -> Cluster:
    """The processes of a strategy, for its coordinator."""
    return strategy._cluster  # noqa: SLF001 - two halves of one thing


def _make_engine(engine: str | Engine) -> Engine:
    if not isinstance(engine, str):
        return engine
    if engine == "local":
        return LocalEngine()
    if engine == "ray":
        from torch_distinput.coordinator.engines.ray import RayEngine  # noqa: PLC0415

        return RayEngine()
    msg = f"engine must be 'local', 'ray' or an engine, got {engine!r}."
    raise ValueError(msg)


def _start_server(engine: Engine, index: int) -> RemoteObject:
    from torch_distinput.coordinator.parameters.server import ParameterServer  # noqa: PLC0415

    return engine.start(f"server {index}", ParameterServer, restarts=False)
