"""Parameter servers with a coordinator, after ``tf.distribute.ParameterServerStrategy``.

One process, the coordinator, hands functions to worker processes; parameters live in server
processes. A room at the edge: the workers' input comes from the public names, as a script's does.

    coordinator process          worker processes               server processes
    ClusterCoordinator  -------> fn(iterator, parameters) ----> parameters, optimizer
    closures, retries            datasets, iterators, values    placed by bytes and by rows
"""

from torch_distinput.coordinator.closures.closure import CoordinatorStats
from torch_distinput.coordinator.closures.coordinator import ClusterCoordinator
from torch_distinput.coordinator.closures.dataset_record import Visits
from torch_distinput.coordinator.closures.per_worker import PerWorkerDataset, PerWorkerIterator
from torch_distinput.coordinator.closures.remote_value import RemoteValue
from torch_distinput.coordinator.closures.strategy import ParameterServerStrategy
from torch_distinput.coordinator.engines.local import LocalEngine
from torch_distinput.coordinator.engines.ray import RayEngine
from torch_distinput.coordinator.parameters.gate import ParameterStats
from torch_distinput.coordinator.parameters.parameters import Parameters

__all__ = [
    "ClusterCoordinator",
    "CoordinatorStats",
    "LocalEngine",
    "ParameterServerStrategy",
    "ParameterStats",
    "Parameters",
    "PerWorkerDataset",
    "PerWorkerIterator",
    "RayEngine",
    "RemoteValue",
    "Visits",
]
