"""Environments that a stranger would have: the built wheel, its dependencies, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
BUILD = """
import sys
from setuptools import build_meta
print(getattr(build_meta, sys.argv[1])(sys.argv[2]))
"""


def run(*command: object, cwd: Path, timeout: float = 300) -> str:
    """Run a command, and return what it printed; nothing of the checkout is in its way."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        check=False,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={"PATH": str(Path(sys.executable).parent) + ":/usr/bin:/bin", "HOME": str(cwd)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True, kw_only=True)
class Built:
    """What was built.

    Attributes:
        sdist: of a copy of the checkout.
        wheel: of the same copy.
        wheel_of_sdist: of the unpacked sdist.
    """

    sdist: Path
    wheel: Path
    wheel_of_sdist: Path


def build(folder: Path) -> Built:
    """Build what would be uploaded, by the backend of pyproject.toml, which pip gets."""
    source = folder / "source"
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    for name in files:
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    venv.create(folder / "tools", with_pip=True)
    python = folder / "tools" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    subprocess.run([*map(str, pip), "setuptools>=77"], check=True, capture_output=True)
    found = {}
    for name, call, where in (
        ("sdist", "build_sdist", source),
        ("wheel", "build_wheel", source),
    ):
        found[name] = _call(python, call, where, folder / name)
    run("tar", "-xzf", found["sdist"], cwd=folder)
    unpacked = folder / found["sdist"].name.removesuffix(".tar.gz")
    again = _call(python, "build_wheel", unpacked, folder / "again")
    return Built(**found, wheel_of_sdist=again)


def _call(python: Path, call: str, source: Path, target: Path) -> Path:
    target.mkdir()
    return target / run(python, "-c", BUILD, call, target, cwd=source).splitlines()[-1]


def contents(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel; not its list of them, which follows from them."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/RECORD")]
        return {name: archive.read(name) for name in names}


def requirements(wheel: Path) -> list[str]:
    """What a wheel asks for, without extras."""
    (name,) = (name for name in contents(wheel) if name.endswith(".dist-info/METADATA"))
    lines = contents(wheel)[name].decode().splitlines()
    wanted = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist")]
    return [one for one in wanted if "extra ==" not in one]


def install(wheel: Path, folder: Path) -> Path:
    """Make an environment with a wheel and its dependencies, and return its Python.

    To download torch for each run would take minutes. So the environment has links to what is
    installed here, but only to the dependencies, and what these ask for in turn: an import of
    anything else fails, as it would in an environment of ``pip install``.
    """
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(run(python, "-c", code, cwd=folder).strip())
    for name in sorted(closure(requirements(wheel))):
        for top in top_levels(metadata.distribution(name)):
            (site / top.name).symlink_to(top)
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    subprocess.run([*map(str, pip), "--no-deps", str(wheel)], check=True, capture_output=True)
    return python


def closure(wanted: list[str]) -> set[str]:
    """The names of the packages that are asked for, and of those that they ask for."""
    found: set[str] = set()
    left = [Requirement(text) for text in wanted]
    while left:
        one = left.pop()
        name = metadata.distribution(one.name).metadata["Name"]
        if name in found:
            continue
        found.add(name)
        needed = [Requirement(text) for text in metadata.requires(name) or []]
        left += [n for n in needed if not n.marker or n.marker.evaluate({"extra": ""})]
    return found


def top_levels(package: metadata.Distribution) -> Iterator[Path]:
    """The folders and files of a package that lie in site-packages; not its scripts."""
    site = Path(sysconfig.get_path("purelib"))
    names = {Path(file).parts[0] for file in package.files or []} - {"..", "__pycache__"}
    yield from (site / name for name in sorted(names) if (site / name).exists())
