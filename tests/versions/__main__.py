"""Run the fast tests with other versions of Python and torch; writes a table of compatibility.md.

    python -m tests.versions                       all pairs, an environment each: hours, many GB
    python -m tests.versions 3.11:2.9.1            these pairs; the results of the others stay
    python -m tests.versions --page                only write the page again

An interpreter is looked for on the PATH and among those of pyenv. What cannot be had, whether an
interpreter or a wheel, is a result as well: the page says what was not run, and why.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "compatibility.md"
TABLE = re.compile("(?<=tests.versions -->\n\n).*(?=\n<!-- End)", re.DOTALL)
RESULTS = Path(__file__).with_name("results.json")
NEWEST = "2.15.0"
PAIRS = [  # beside 3.11 with 2.13.0, with which all tests run
    *(("3.11", torch) for torch in ("2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.14.1")),
    ("3.11", NEWEST),
    ("3.10", "2.9.1"),
    ("3.12", "2.13.0"),
    ("3.13", NEWEST),
    ("3.13t", NEWEST),
    ("3.14", NEWEST),
    ("3.14t", NEWEST),
]
TESTS = [
    *("tests/plan", "tests/device", "tests/cluster", "tests/rendering", "tests/inspect"),
    *("tests/test_exports.py", "tests/data/test_batches.py"),
    *(
        f"tests/distribute/test_{name}.py"
        for name in (
            *("tables", "dataset", "sources", "refused_sources", "unusual_sources"),
            *("user_loaders", "steps", "checkpoints", "epochs"),
        )
    ),
]
WARNINGS = ["ignore:TypedStorage is deprecated:UserWarning"]
"""Which torch itself has raised in other releases: tests take warnings for errors."""
NEEDED = ["pytest", "hypothesis", "tqdm", "pyarrow", "scikit-learn", "datasets"]
"""Beside the package: what the tests above import."""


def find_interpreter(version: str) -> str | None:
    """The path of a Python such as 3.13 or, free-threaded, 3.13t; None if there is none."""
    name = f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = [shutil.which(name), *map(str, sorted(pyenv.glob(f"*/bin/{name}")))]
    for path in filter(None, found):  # pyenv's shims are there for versions that are not
        if not subprocess.run([path, "-c", ""], check=False, capture_output=True).returncode:
            return path
    return None


def install(python: Path, wanted: list[str]) -> str | None:
    """Let pip install what is wanted; why it did not, if so."""
    pip = [str(python), "-m", "pip", "install", "--no-input", "--quiet"]
    done = subprocess.run([*pip, *wanted], check=False, capture_output=True, text=True)
    if not done.returncode:
        return None
    lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return (lines or ["pip failed"])[-1].removeprefix("ERROR: ")


def run_pair(python: str, torch: str, folder: Path) -> dict[str, str]:
    """Run the tests in the environment of a folder, made if need be; say how that ended."""
    interpreter = find_interpreter(python)
    if interpreter is None:
        return {"ended": "not run", "why": f"no interpreter python{python} on this machine"}
    made = folder / "bin" / "python"
    if not made.exists():
        subprocess.run([interpreter, "-m", "venv", folder], check=True, capture_output=True)
        wanted = [f"torch=={torch}", "torchdata", "numpy", "fsspec", *NEEDED]
        if (refused := install(made, wanted)) is not None:
            return {"ended": "not run", "why": refused}
    command = [str(made), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-k", "not version_of_an_installed_package"]  # it is not installed, but seen
    command += [*(f"-W{warning}" for warning in WARNINGS), *TESTS]
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    if done.returncode:
        print(done.stdout[-8000:])
    told = done.stdout.strip().splitlines()[-1].strip("= ").partition(" in ")[0]
    return {"ended": "failed" if done.returncode else "passed", "why": told}


def make_table(results: Mapping[str, Mapping[str, str]]) -> str:
    """Return the table of the page: the pairs in their order, then others that were asked for."""
    listed = [":".join(pair) for pair in PAIRS]
    pairs = [*listed, *sorted(results.keys() - {*listed})]
    rows = "".join(_make_row(pair, results.get(pair)) for pair in pairs)
    return f"| Python | torch | last run | result |\n|---|---|---|---|\n{rows}"


def _make_row(pair: str, result: Mapping[str, str] | None) -> str:
    python, _, torch = pair.partition(":")
    if result is None:
        return f"| {python} | {torch} | | not run |\n"
    ended, why = result["ended"], result["why"]
    told = why if ended == "passed" else f"{ended}: {why}"
    day = result["day"] if ended != "not run" else ""
    return f"| {python} | {torch} | {day} | {told} |\n"


def main() -> None:
    """Run what is asked for, and write the results and the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("pairs", nargs="*", help="PYTHON:TORCH, as 3.11:2.9.1; default: all")
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--folder", type=Path, help="keeps environments, to use them again")
    args = parser.parse_args()
    asked = [tuple(pair.split(":")) for pair in args.pairs] or PAIRS
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for python, torch in [] if args.page else asked:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) if args.folder is None else args.folder / f"{python}-{torch}"
            result = run_pair(python, torch, place)
        print(python, torch, result, flush=True)
        day = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()
        results[f"{python}:{torch}"] = {**result, "day": day}
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    PAGE.write_text(TABLE.sub(lambda _: make_table(results), PAGE.read_text()))


if __name__ == "__main__":
    main()
