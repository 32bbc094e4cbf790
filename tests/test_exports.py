"""The front door shows what was promised: these names, each with a docstring."""

from __future__ import annotations

import ast
import inspect
import pickle
import subprocess
import sys
import types
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest

import torch_distinput
from torch_distinput import version

STRATEGY = [
    "device",
    "devices",
    "distribute_dataset",
    "distribute_datasets_from_function",
    "distribute_values_from_function",
    "experimental_distribute_dataset",
    "experimental_distribute_datasets_from_function",
    "experimental_distribute_values_from_function",
    "experimental_local_results",
    "gather",
    "gather_in_order",
    "local_results",
    "num_replicas_in_sync",
    "num_workers",
    "reduce",
    "replicate",
    "report",
    "request_stop",
    "run",
    "scope",
    "stop_on_signal",
    "stop_requested",
    "topology",
    "worker_index",
]
PROMISED = {
    # strategies, and what they make
    "DistributedDataset",
    "DistributedIterator",
    "DistributedSteps",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "TPUStrategy",
    "Strategy",
    "get_strategy",
    "form_data_parallel_group",
    "init_distributed",
    # sources and building blocks
    "DataShardDataset",
    "DatasetCreator",
    "FileDataset",
    "bucket",
    "pad_collate",
    "mix",
    "pack",
    "readers",
    "schedule",
    "FileShardDataset",
    "RebatchSampler",
    "collate",
    # options and contexts
    "AuditError",
    "AutoShardPolicy",
    "BalanceStats",
    "PaddedCost",
    "InputContext",
    "InputOptions",
    "InputStats",
    "InputVerdict",
    "RankTimes",
    "ReduceOp",
    "RunReport",
    "Topology",
    "ValueContext",
    # what a step yields, and what is done with it
    "OptionalStep",
    "PackedStrings",
    "PackingStats",
    "PerReplica",
    "ReplayedStep",
    "ReplicaContext",
    "Step",
    "StepGroup",
    "StepInfo",
    "TensorSpec",
    "TokenBudget",
    "accumulate",
    "compute_average_loss",
    "cu_seqlens",
    "document_mask",
    "get_replica_context",
    # errors
    "errors",
    "ClosureCancelledError",
    "ConfigurationError",
    "DistinputError",
    "MismatchError",
    "PeerFailedError",
    "PeerTimeoutError",
    "ServerLostError",
    "SourceError",
    "TooFewFilesError",
    "UsageError",
    "WorkerLostError",
    # what an input does
    "Explanation",
    "Finding",
    "explain",
    # layers
    "preprocessing",
    # other libraries
    "coordinator",
    "integrations",
    # what an input does
    "EpochPlan",
    "plan_epoch",
    "progress",
    # the test kit
    "testing",
}


_LATE = {"integrations", "preprocessing", "readers", "testing"}
THREADS = """
import sys, threading
import torch_distinput as tdi

names = [name for name in tdi.__all__ if name not in tdi._LATE_MODULES]
start, found = threading.Barrier(4), {name: [] for name in names}

def ask(own):
    start.wait()
    for name in own:
        found[name].append(id(getattr(tdi, name)))

orders = names, names[::-1], names[1::2] + names[::2], names[::2] + names[1::2]
threads = [threading.Thread(target=ask, args=(own,)) for own in orders]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert all(len(ids) == 4 and len(set(ids)) == 1 for ids in found.values()), found
"""


def is_room(value: object) -> bool:
    """Tell whether a value is a module of the package, which importing it leaves behind."""
    return isinstance(value, types.ModuleType) and value.__name__.startswith("torch_distinput.")


def test_all_is_sorted_and_holds_each_name_once() -> None:
    assert list(torch_distinput.__all__) == sorted(set(torch_distinput.__all__))


def test_all_holds_what_was_promised() -> None:
    assert set(torch_distinput.__all__) == PROMISED


def test_all_holds_what_is_public() -> None:
    public = {
        name
        for name, value in vars(torch_distinput).items()
        if not name.startswith("_") and not is_room(value) and name != "annotations"
    }
    rooms = {name for name in torch_distinput.__all__ if is_room(getattr(torch_distinput, name))}
    assert public | rooms | set(torch_distinput._LATE) == set(torch_distinput.__all__)


def test_the_front_door_imports_no_more_than_itself() -> None:
    """No torch: who plans an epoch has none to wait for."""
    script = "import sys, torch_distinput; print(*sys.modules)"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not {"torch", "numpy", "fsspec"} & loaded
    assert "torch_distinput" in loaded


def test_type_checkers_are_told_of_every_name_from_where_it_comes() -> None:
    tree = ast.parse(Path(torch_distinput.__file__).read_text())
    (told,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and "not" not in ast.unparse(node.test)
    )
    imported = {
        alias.name: f"{node.module}"
        for node in told.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    late = {name: f"torch_distinput.{module}" for name, module in torch_distinput._LATE.items()}
    rooms = dict.fromkeys(torch_distinput._LATE_MODULES, "torch_distinput")
    assert {**late, **rooms} == imported


def test_a_name_that_there_is_not_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'distribute_datasets'"):
        getattr(torch_distinput, "distribute_datasets")  # noqa: B009 - or mypy sees it first


def test_a_public_object_is_pickled_by_where_it_comes_from() -> None:
    kind = torch_distinput.FileDataset
    assert kind is pickle.loads(pickle.dumps(kind))


@pytest.mark.slow
def test_a_script_of_tensors_imports_no_more_than_it_uses() -> None:
    """Nothing optional, and no room that is for files, votes or tests."""
    script = """
import sys, torch, torch_distinput as tdi
(batch,) = tdi.OneDeviceStrategy("cpu").distribute_dataset(torch.ones(2, 2), global_batch_size=2)
print(*(name for name in sys.modules))
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    loaded = set(done.stdout.split())
    rooms = {*_LATE, "version", "data.storage.filesystem", "data.files.dataset"}
    rooms |= {"data.files.stream", "cluster.agreement.agreement", "engine.voted_feed"}
    unwanted = {f"torch_distinput.{room}" for room in rooms}
    assert all(map(find_spec, unwanted))
    assert not {"fsspec", "torchdata", "pyarrow", *unwanted} & loaded


@pytest.mark.slow
def test_no_framework_is_looked_for_before_its_integration_is_imported() -> None:
    """Whether it is installed or not; by any module of the package, and by a dataset that plays.

    First threads ask the front door for all names at once.
    """
    script = """
import importlib, pathlib, sys

FRAMEWORKS = {"accelerate", "datasets", "deepspeed", "lightning", "pytorch_lightning", "ray"}
FRAMEWORKS |= {"torchtitan", "transformers", "webdataset"}

class Watch:
    def find_spec(name, path=None, target=None):
        assert name not in FRAMEWORKS, name

sys.meta_path.insert(0, Watch)
{threads}
import torch
top = pathlib.Path(tdi.__path__[0])
for path in top.rglob("*.py"):
    parts = path.relative_to(top).with_suffix("").parts
    if parts[-1] != "__main__" and parts[0] != "integrations":
        importlib.import_module(".".join(("torch_distinput", *parts)))
dir(tdi.integrations)
dataset = tdi.OneDeviceStrategy("cpu").distribute_dataset(torch.ones(4, 2), global_batch_size=2)
print(len(list(dataset)))
"""
    command = [sys.executable, "-c", script.replace("{threads}", THREADS)]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert "2\n" == done.stdout, done.stderr


def test_the_version_is_that_of_the_checkout() -> None:
    project = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert f'version = "{torch_distinput.__version__}"' in project.splitlines()


def test_the_version_of_an_installed_package_is_that_of_its_metadata(monkeypatch, tmp_path) -> None:
    """As in site-packages, where no project lies above the package."""
    monkeypatch.setattr(version, "__file__", str(tmp_path / "torch_distinput" / "version.py"))
    assert metadata.version("torch_distinput") == version.find_version()


def test_an_integration_is_imported_when_it_is_asked_for() -> None:
    assert "torchdata" in dir(torch_distinput.integrations)
    node = torch_distinput.integrations.torchdata.DistributedNode
    assert "torch_distinput.integrations.torchdata" == node.__module__
    with pytest.raises(AttributeError, match="no attribute 'tensorflow'"):
        _ = torch_distinput.integrations.tensorflow


def test_the_front_door_has_a_docstring() -> None:
    assert inspect.getdoc(torch_distinput)


@pytest.mark.parametrize("name", sorted(PROMISED))
def test_a_public_object_has_a_docstring_of_its_own(name: str) -> None:
    value = getattr(torch_distinput, name)
    own = value.__doc__ or ""
    generated = isinstance(value, type) and own.startswith(f"{value.__name__}(")  # by dataclass
    assert own.strip(), f"{name} has no docstring"
    assert not generated, f"{name} has only the docstring that dataclass writes"


@pytest.mark.parametrize("name", sorted(PROMISED))
def test_what_a_public_class_offers_has_docstrings(name: str) -> None:
    value = getattr(torch_distinput, name)
    members = vars(value) if isinstance(value, type) else {}
    bare = [
        member
        for member, held in members.items()
        if not member.startswith("_")
        and isinstance(held, types.FunctionType | property | classmethod | staticmethod)
        and not held.__doc__
    ]
    assert not bare, f"{name} has public members without a docstring: {', '.join(bare)}"


def test_a_strategy_shows_what_its_user_needs_and_no_more() -> None:
    strategy = torch_distinput.OneDeviceStrategy("cpu")
    assert [name for name in dir(strategy) if not name.startswith("_")] == STRATEGY


DATASET = """
auto_shard_policy element_spec epoch load_state_dict replay set_aside set_epoch state_dict steps
strategy
"""
ITERATOR = """
close element_spec get_next get_next_as_optional last_step load_state_dict report state_dict stats
"""


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (torch_distinput.DistributedDataset, DATASET),
        (torch_distinput.DistributedIterator, ITERATOR),
    ],
)
def test_a_dataset_shows_what_its_user_needs_and_no_more(kind: type, expected: str) -> None:
    assert [name for name in dir(kind) if not name.startswith("_")] == expected.split()
