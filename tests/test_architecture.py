"""Prove the floors, the owners and the house's numbers from the source itself."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "torch_distinput"
GROUND = {
    *("communicator", "errors", "meter", "options", "packed_layout", "packed_strings"),
    *("random_generators", "scope_registry", "threads", "values"),
}
# Who sees whom. A room not named here stands at the edge: it sees itself and the front door.
FLOORS = {
    **dict.fromkeys(GROUND, GROUND),
    # What notebooks show of a value is drawn from plain numbers: that file knows no value of ours.
    "values": {*GROUND, "rendering.notebook"},
    "plan": {*GROUND, "plan", "rendering.notebook"},
    "data": {*GROUND, "plan", "data"},
    "cluster": {*GROUND, "plan", "cluster"},
    "device": {*GROUND, "device"},
    "engine": {*GROUND, "plan", "data", "cluster", "device", "engine"},
    "rendering": {*GROUND, "plan", "rendering"},
    "distribute": {
        *GROUND,
        *("plan", "data", "cluster", "device", "engine", "rendering", "distribute"),
    },
    "preprocessing": {*GROUND, "plan", "data", "preprocessing"},
}
# What a room at the edge sees beside itself and the front door.
BESIDE = {
    "__main__": {"inspect"},
    "coordinator": {
        *(*GROUND, "data.batch.serialized"),
        *("data.user_sources.states", "data.user_sources.torchdata_states"),
    },
    # A plan lists files without torch, counts them as readers do, and cuts the order of an epoch.
    "inspect": {
        *(*GROUND, "plan", "rendering", "data.storage", "data.files", "data.sources"),
        "engine.epoch_batches",
    },
}
# The floors inside of rooms, from below. A file that lies in none of them sees all of its room.
FLOORS_INSIDE = {
    "plan": ("assignment", "progress"),
    "data": (
        *("storage", "batch", "user_sources", "stream", "formats"),
        *("loader", "files", "sources", "steps"),
    ),
    "cluster": ("channels", "liveness", "agreement"),
    "preprocessing": (
        *("states", "strings", "vocabulary", "columns"),
        *("adapt", "layers", "artifact", "analysis"),
    ),
    "coordinator": ("engines", "parameters", "workers", "closures"),
}
UNBOUND = {"__init__", "readers", "testing"}  # front doors, and the test kit: they see everything
ROOMS = {*FLOORS, *UNBOUND, *(path.stem for path in PACKAGE.iterdir())}
PURE = {*sys.stdlib_module_names, "numpy", "torch_distinput"} - {
    *("datetime", "io", "os", "random", "socket", "time"),
}
# Each dangerous thing, and the files or folders that own it. A lazy import is an import.
OWNERS = {
    "fsspec": (
        *("data/storage/filesystem.py", "data/storage/glob_walk.py"),
        "data/storage/whole_copies.py",
    ),
    "torchdata": ("integrations/",),
    "DataLoader": (
        *("data/loader/processes.py", "data/sources/dataloader.py"),
        *("data/user_sources/loader_start.py", "integrations/transformers/sources.py"),
        "inspect/doctor/",  # which looks at those that users have, and starts none
    ),
    "StatefulDataLoader": ("data/loader/processes.py", "data/sources/dataloader.py"),
    "torch.distributed": ("cluster/", "testing/", "preprocessing/__main__.py"),
    "torch.cuda": ("device/",),
    "torch.Stream": ("device/",),
    "torch.Event": ("device/",),
    "torch.accelerator.current_stream": ("device/",),
    "torch.accelerator.set_stream": ("device/",),
    "record_stream": ("device/", "testing/tracing_backend.py"),
    "wait_stream": ("device/",),
    "threading.Thread": ("threads.py", "distribute/replicas/replica.py", "testing/"),
    # A child that is forked inherits a lock as it is held at that moment: threads makes it new.
    "threading.Lock": ("threads.py", "integrations/torchdata.py", "testing/"),
    "threading.RLock": ("threads.py",),
    "threading.Condition": ("threads.py",),
    "threading.Event": ("threads.py",),
    # for the time of one call
    "threading.Semaphore": ("threads.py", "distribute/replicas/replica.py"),
    "threading.BoundedSemaphore": ("threads.py",),
    "threading.Barrier": ("threads.py",),
    "queue.Queue": ("threads.py",),
    "cached_property": (),  # before Python 3.12 it has a lock, one for all instances
    "os.register_at_fork": ("threads.py",),
    "atexit.register": ("threads.py",),
    "fcntl": ("cluster/channels/peer_address.py", "data/storage/file_locks.py"),
    "signal.signal": (
        *("cluster/liveness/coordinated_stop.py", "coordinator/engines/local_process.py"),
    ),
}
HARMLESS = {"torch.cuda.is_available", "torch.cuda.device_count"}  # questions: no stream in them


@lru_cache(maxsize=1)
def nodes(tree: ast.AST) -> list[ast.AST]:
    """Of the file that is looked at: to walk through it takes longer than to parse it."""
    return list(ast.walk(tree))


def imports(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Line, local name and full name of each import, wherever it stands."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.asname or "", alias.name
                if not alias.asname:
                    yield node.lineno, alias.name.split(".")[0], alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, alias.asname or alias.name, f"{node.module}.{alias.name}"


@lru_cache(maxsize=1)
def names(tree: ast.AST) -> list[tuple[int, str]]:
    """Line and full name of each import and of each attribute, seen through any alias."""
    full_names = {local: full for _, local, full in imports(tree)}
    found = [(line, full) for line, _, full in imports(tree)]
    attributes = [node for node in nodes(tree) if isinstance(node, ast.Attribute)]
    inner = {id(node.value) for node in attributes}
    for node in attributes:
        if id(node) not in inner:
            root, _, rest = ast.unparse(node).partition(".")
            found.append((node.lineno, f"{full_names.get(root, '')}.{rest}"))
    return found


def check_floors(path: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    room = Path(path).parts[0].removesuffix(".py")
    # A room's command stands at the edge: it sees the room and the front door, as a script does.
    floors = {} if path.endswith("/__main__.py") else FLOORS
    for line, name in names(tree):
        package, _, target = name.partition(".")
        if room == "plan" and package and package not in PURE:
            yield line, f"plan is pure and must not see {name}"
        if package != "torch_distinput" or not target or room in UNBOUND:
            continue
        if room not in floors and target.split(".")[0] not in ROOMS:
            continue  # a room at the edge uses a public name
        seen = floors.get(room, {room, *BESIDE.get(room, ())})
        if not any(f"{target}.".startswith(f"{other}.") for other in seen):
            yield line, f"{room} must not see {target}"
        if is_upward(path, target):
            yield line, f"{path} must not see {target}, a floor above"


def is_upward(path: str, target: str) -> bool:
    """Whether a file sees a higher floor of its own room."""
    room, floor, *_ = Path(path).parts if "/" in path else (path, "")
    other_room, other_floor, *_ = (*target.split("."), "")
    floors = FLOORS_INSIDE.get(room, ())
    if room != other_room or floor not in floors:
        return False
    lies_in = floors.index(other_floor) if other_floor in floors else len(floors)
    return lies_in > floors.index(floor)


def check_owners(path: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    for line, name in names(tree):
        for thing, owners in OWNERS.items():
            met = f".{thing}." in f".{name}." and name not in HARMLESS
            if met and not path.startswith(owners):
                yield line, f"{thing} belongs to {' and '.join(owners) or 'nobody'}"


def check_house(path: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    if Path(path).stem in {"utils", "common", "helpers", "manager"}:
        yield 1, f"a file named {Path(path).stem} has no subject"
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield node.lineno, "imports are absolute"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[ast.get_docstring(node, clean=False) is not None :]
            if body and (size := (body[-1].end_lineno or 0) - body[0].lineno + 1) > 40:
                yield node.lineno, f"{node.name} has a body of {size} lines; 40 are allowed"
            positional = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
            if len(positional) - (positional[:1] in (["self"], ["cls"])) > 5:
                yield node.lineno, f"{node.name} has more than 5 positional parameters"


def check_length(source: str) -> Iterator[tuple[int, str]]:
    if (num_lines := len(source.splitlines())) > 350:
        yield 351, f"the file has {num_lines} lines; 350 are allowed"


def findings(path: str, source: str) -> list[str]:
    tree = ast.parse(source)
    found = {*check_floors(path, tree), *check_owners(path, tree), *check_house(path, tree)}
    found |= set(check_length(source))
    return [f"torch_distinput/{path}:{line}: {what}" for line, what in sorted(found)]


IMPORTS = """
import atexit, importlib, os, pathlib, pkgutil, signal, sys, threading, weakref
import torch, torch.utils.data

registered = []

def watch(owner, name):
    function = getattr(owner, name)
    def noted(*args, **kwargs):
        caller = sys._getframe(1).f_globals["__name__"]
        if caller.startswith("torch_distinput"):
            registered.append((name, caller))
        return function(*args, **kwargs)
    setattr(owner, name, noted)

watch(os, "register_at_fork")
watch(atexit, "register")
watch(signal, "signal")
watch(threading.Thread, "start")
watch(weakref.finalize, "__init__")
import torch_distinput
modules = pkgutil.walk_packages(torch_distinput.__path__, "torch_distinput.")
names = [module.name for module in modules if not module.name.endswith("__main__")]
# An integration is imported where its library is there.
libraries = {"accelerate", "lightning", "torchtitan", "transformers"}
missing = {name for name in libraries if importlib.util.find_spec(name) is None}
names = [name for name in names if not missing.intersection(name.split("."))]
for name in names:
    importlib.import_module(name)
assert "torch_distinput.testing.ranks" in names
print(registered)
"""


@pytest.mark.slow
def test_an_import_leaves_no_trace_in_the_process() -> None:
    """Nothing is registered for forks, signals and the exit, and no thread runs."""
    command = [sys.executable, "-c", IMPORTS]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "[]" == found.stdout.strip()


@pytest.mark.slow
def test_the_package_keeps_to_its_floors() -> None:
    paths = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    assert "plan/assignment/topology.py" in paths
    found = [line for name, path in paths.items() for line in findings(name, path.read_text())]
    assert not found, "\n".join(sorted(found))


def test_files_of_tests_are_as_short_as_others() -> None:
    paths = sorted(Path(__file__).parent.rglob("*.py"))
    assert Path(__file__) in paths
    found = [f"{path}: {what}" for path in paths for _, what in check_length(path.read_text())]
    assert not found, "\n".join(found)


BROKEN = [
    ("plan/x.py", "import torch", "plan is pure and must not see torch"),
    ("plan/x.py", "def f():\n    from time import sleep", "x.py:2: plan is pure"),
    ("plan/x.py", "from torch_distinput.data import batch", "plan must not see data.batch"),
    ("plan/x.py", "from torch_distinput import Strategy", "plan must not see Strategy"),
    ("options.py", "import torch_distinput.plan.assignment", "must not see plan.assignment"),
    ("data/x.py", "from torch_distinput import cluster", "data must not see cluster"),
    ("data/batch/x.py", "import torch_distinput.data.files", "must not see data.files, a floor"),
    ("plan/assignment/x.py", "from torch_distinput import plan\nplan.progress.f", "a floor above"),
    ("data/steps/x.py", "import torch_distinput.data.building_blocks", "a floor above"),
    ("engine/x.py", "from torch_distinput import distribute", "engine must not see distribute"),
    ("cluster/x.py", "from torch_distinput.data import batch", "cluster must not see data.batch"),
    ("device/x.py", "from torch_distinput.data import batch", "device must not see data.batch"),
    ("device/x.py", "import torch_distinput.data.batch.tree", "must not see data.batch"),
    ("device/x.py", "import torch_distinput.plan.progress", "device must not see plan"),
    ("distribute/x.py", "import torch_distinput as t\nt.testing.run()", "must not see testing.run"),
    ("preprocessing/x.py", "from torch_distinput import device", "must not see device"),
    ("preprocessing/x.py", "import torch.distributed", "torch.distributed belongs to cluster/"),
    ("preprocessing/__main__.py", "import torch_distinput.cluster", "must not see cluster"),
    ("lightning/x.py", "from torch_distinput.plan import progress", "lightning must not see plan"),
    ("integrations/x.py", "from torch_distinput.data import batch", "integrations must not see"),
    ("coordinator/x.py", "from torch_distinput.data import batch", "coordinator must not see"),
    ("coordinator/engines/x.py", "import torch_distinput.coordinator.workers", "a floor above"),
    ("distribute/x.py", "from torch import distributed as d", "torch.distributed belongs to"),
    ("distribute/x.py", "import torch as t\nt.distributed.barrier()", "x.py:2: torch.distributed"),
    ("data/x.py", "import fsspec.core", "fsspec belongs to data/storage/filesystem.py"),
    ("data/x.py", "from torchdata import nodes", "torchdata belongs to integrations/"),
    ("data/x.py", "from torch.utils import data\ndata.DataLoader(1)", "x.py:2: DataLoader belongs"),
    ("data/x.py", "from y import StatefulDataLoader as S", "StatefulDataLoader belongs to"),
    ("data/x.py", "import torch\ntorch.cuda.synchronize()", "torch.cuda belongs to device/"),
    ("data/x.py", "import torch\ntorch.Stream(0)", "torch.Stream belongs to device/"),
    ("data/x.py", "from torch import Event", "torch.Event belongs to device/"),
    ("data/x.py", "x.record_stream(s)", "record_stream belongs to device/"),
    ("data/x.py", "import threading\n_lock = threading.Lock()", "threading.Lock belongs to"),
    ("data/x.py", "from threading import Event as E", "threading.Event belongs to threads.py"),
    ("data/x.py", "from functools import cached_property", "cached_property belongs to nobody"),
    ("data/x.py", "import os\nos.register_at_fork(before=f)", "os.register_at_fork belongs to"),
    ("data/x.py", "import atexit\natexit.register(f)", "atexit.register belongs to threads.py"),
    ("data/x.py", "from . import rows", "imports are absolute"),
    ("data/utils.py", "", "a file named utils has no subject"),
    ("data/x.py", "\n" * 351, "the file has 351 lines"),
    ("data/x.py", "def f():\n" + "    1\n" * 41, "f has a body of 41 lines"),
    ("data/x.py", "def f(a, b, c, d, e, f): ...", "f has more than 5 positional parameters"),
]
SOUND = [
    ("device/x.py", "from torch_distinput import threads\nimport torch\ntorch.cuda.x"),
    ("cluster/x.py", "import torch\nfrom torch import distributed\ntorch.cuda.is_available()"),
    ("data/x.py", "import torch_distinput.data.steps"),
    ("coordinator/x.py", "import torch_distinput as t\nfrom torch_distinput import threads\nt.x"),
    ("data/files/x.py", "from torch_distinput.data import batch"),
    ("lightning/x.py", "import torch_distinput as tdi\nfrom torch_distinput import Strategy"),
    ("plan/x.py", "import math, numpy as np\nfrom torch_distinput import errors\nself.time.torch"),
    ("data/x.py", "def f(self, a, b, c, d, e, *, g):\n    '" + "\\\n" * 50 + "'" + "\n    1" * 40),
]


@pytest.mark.parametrize(("path", "source", "expected"), BROKEN)
def test_a_broken_rule_is_reported(path: str, source: str, expected: str) -> None:
    assert any(expected in line for line in findings(path, source)), findings(path, source)


@pytest.mark.parametrize(("path", "source"), SOUND)
def test_what_keeps_to_the_rules_is_not(path: str, source: str) -> None:
    assert findings(path, source) == []
