"""What would be uploaded works where nothing else is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

from tests.integrations import published
from tests.integrations.published import ROOT, contents, run
from torch_distinput.inspect.command import _SUBCOMMANDS

pytestmark = pytest.mark.with_frameworks

TRAIN = """\
import torch
import torch_distinput as tdi

tdi.init_distributed()
strategy = tdi.MultiWorkerMirroredStrategy(["cpu"])
data = strategy.distribute_dataset(torch.arange(1000.0), global_batch_size=64, shuffle=True)
total = torch.zeros(())
for batch in tdi.progress(data):
    total += batch.sum()
if (total := strategy.reduce("sum", total)) is not None and strategy.worker_index == 0:
    print("sum", total.item(), "of", tdi.__version__, "with", strategy.num_workers)
"""
TYPED = """\
from typing import Any, Iterator

import torch
from typing_extensions import assert_type

import torch_distinput as tdi


def collate(rows: list[Any]) -> torch.Tensor:
    return torch.stack(rows)


def train(strategy: tdi.Strategy) -> int:
    dataset = strategy.distribute_dataset(
        torch.arange(10),
        global_batch_size=4,
        collate_fn=collate,
        options=tdi.InputOptions(rebatch="even"),
    )
    assert_type(dataset, tdi.DistributedDataset)
    assert_type(len(dataset), int)
    for step in dataset.steps():
        assert_type(step, tdi.Step)
        assert_type(step.num_examples, int)
        assert_type(step.state_dict(), dict[str, Any])
    groups: Iterator[tdi.StepGroup] = tdi.accumulate(tdi.progress(dataset).steps(), 2)
    iterator = iter(dataset)
    assert_type(iterator, tdi.DistributedIterator)
    assert_type(iterator.stats().wait_seconds, float)
    files = tdi.FileDataset("*.txt").map(str.strip)
    assert_type(files, tdi.FileDataset)
    return sum(group.num_examples for group in groups)


assert_type(tdi.testing.simulate(train, num_workers=2), list[int])
assert_type(tdi.get_strategy(), tdi.Strategy | None)
"""
MISTAKES = """\
import torch
import torch_distinput as tdi

strategy = tdi.OneDeviceStrategy("cpu")
strategy.distribute_dataset(torch.ones(4), global_batchsize=2)
strategy.distribute_dataset(torch.ones(4), global_batch_size=2).state()
tdi.InputOptions(rebatch="odd")
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return published.build(tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="module")
def python(built, tmp_path_factory):
    return published.install(built.wheel, tmp_path_factory.mktemp("fresh") / "env")


def test_the_wheel_has_each_module_its_types_and_its_license(built):
    names = {name for name in contents(built.wheel) if ".dist-info/" not in name}
    package = ROOT / "torch_distinput"
    files = {str(path.relative_to(ROOT)) for path in package.rglob("*.py")}
    assert {*files, "torch_distinput/py.typed"} == names
    assert any(name.endswith("licenses/LICENSE") for name in contents(built.wheel))


def test_the_sdist_builds_the_same_wheel(built):
    assert contents(built.wheel) == contents(built.wheel_of_sdist)
    with tarfile.open(built.sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert {"README.md", "LICENSE", "pyproject.toml"} <= set(names)


def test_it_asks_for_what_pyproject_names(built):
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert sorted(project["dependencies"]) == sorted(published.requirements(built.wheel))


def test_the_environment_has_nothing_else(python, tmp_path):
    for name in ("tqdm", "pytest", "sklearn", "pyarrow", "transformers"):
        ended = subprocess.run([python, "-c", f"import {name}"], check=False, capture_output=True)
        assert ended.returncode, f"{name} can be imported"
    code = "import torch_distinput as t; print(t.__file__, t.__version__)"
    where, version = run(python, "-c", code, cwd=tmp_path).split()
    assert Path(where).is_relative_to(python.parents[1])
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text()


def test_the_command_says_what_it_does(python, tmp_path):
    for command in ([python.parent / "torch-distinput"], [python, "-m", "torch_distinput"]):
        assert "usage: torch-distinput" in run(*command, "--help", cwd=tmp_path)
    for name in _SUBCOMMANDS:
        assert f"usage: torch-distinput {name}" in run(*command, name, "--help", cwd=tmp_path)


def test_a_script_trains_alone_and_on_two_ranks(python, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    assert "sum 499500.0" in run(python, "train.py", cwd=tmp_path)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
    assert "with 2" in run(python, *launcher, "train.py", cwd=tmp_path)


def lines_with_errors(printed: str) -> set[int]:
    """The lines of the script, from what mypy or pyright says: path:line: ..."""
    found = [line.split(":") for line in printed.splitlines() if "error" in line]
    return {int(parts[1]) for parts in found if parts[0].endswith(".py")}


@pytest.fixture(scope="module", params=["mypy", "pyright"])
def check(request, python, tmp_path_factory):
    """As a user's own type checker sees the installed package."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "pyright":
        if shutil.which("npm") is None:
            pytest.skip("pyright needs npm, which is not installed")
        command = ["npm", "install", "--silent", "--prefix", str(folder), "pyright@1.1.400"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:  # --silent: npm's own log says why
            pytest.skip("npm could not fetch pyright: no network, or no trust in its certificate")
        checker = [str(folder / "node_modules/.bin/pyright"), "--pythonpath", str(python)]
    else:
        venv.create(folder / "env", with_pip=False)
        tool = str(folder / "env/bin/python")
        pip = [sys.executable, "-m", "pip", "--python", tool, "install", "--quiet", "mypy"]
        subprocess.run(pip, check=True, capture_output=True)
        checker = [tool, "-m", "mypy", "--strict", "--python-executable", str(python)]

    def check(text: str) -> set[int]:
        (folder / "script.py").write_text(text)
        done = subprocess.run(
            [*checker, "script.py"], cwd=folder, check=False, capture_output=True, text=True
        )
        print(done.stdout, done.stderr)
        assert done.returncode in (0, 1)
        assert (done.returncode == 1) == bool(lines_with_errors(done.stdout))
        return lines_with_errors(done.stdout)

    return check


def test_a_script_that_is_right_has_no_errors(check):
    assert set() == check(TYPED)


def test_mistakes_are_found_where_they_are(check):
    assert {5, 6, 7} == check(MISTAKES)
