"""Run all benchmarks, each in a process of its own, and print one table.

    python benchmarks/run.py [--quick] [--only host,order] [--rounds 5] [--keep]

A full run of all of them keeps its figures in ``results.json``, from which ``report.py`` makes the
page and the chart. With ``--quick`` or ``--only`` these stay as they are, unless there is a
``--keep``: figures of some scripts then take their place among those kept, which are to be of the
same machine, and quick ones have a place of their own.

Below the table is what got slower since figures were kept (``comparing.py``). It may be noise, and
is no failure, unless ``--fail-if-slower`` is there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from comparing import NOT_INSTALLED, NOTHING, compare, join_kept
from measuring import Figure, table

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results.json"
SCRIPTS = (
    *("host", "threads", "files", "split", "device", "steps", "agreement", "resume", "startup"),
    *("order", "mixing", "balance", "packing", "preprocessing", "coordinator", "engine_calls"),
)  # fmt: skip
PACKAGES = (
    *("torch", "torchdata", "numpy", "pyarrow", "orjson", "accelerate", "scikit-learn"),
    *("ray", "datasets", "grain", "transformers"),
)


def machine() -> dict[str, str]:
    """What the figures depend on."""
    found = {"cores": str(len(os.sched_getaffinity(0))), "Python": sys.version.split()[0]}
    with contextlib.suppress(OSError, StopIteration):  # not every system says it
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        named = next(line for line in lines if line.startswith("model name"))
        found["processor"] = named.partition(":")[2].strip()
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = NOT_INSTALLED
    return found


def figures_of(script: str, options: list[str]) -> list[dict[str, Any]] | None:
    """What a script has measured; None if it failed, which it has said itself."""
    print(f"{script} ...", file=sys.stderr, flush=True)
    command = [sys.executable, str(FOLDER / f"{script}.py"), "--json", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, env=environment)
    if done.returncode:
        print(f"{script} failed: exit code {done.returncode}", file=sys.stderr)
        return None
    return json.loads(done.stdout) or []  # {} from a script that lacks its device


def parse_options() -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="less data, fewer rounds")
    parser.add_argument("--rounds", type=int, help="how often floor and case take turns")
    parser.add_argument("--only", help="some of the scripts, with commas between them")
    parser.add_argument("--keep", action="store_true", help="keep quick or some figures, too")
    parser.add_argument(
        "--fail-if-slower", action="store_true", help="exit with 1 if a figure of ours got slower"
    )
    return parser.parse_args()


def main() -> None:
    """Run, print, compare, keep."""
    arguments = parse_options()
    options = ["--quick"] if arguments.quick else []
    options += [f"--rounds={arguments.rounds}"] if arguments.rounds else []
    chosen = arguments.only.split(",") if arguments.only else SCRIPTS
    found = {
        script: figures_of(script, options)
        for script in chosen
        if (FOLDER / f"{script}.py").exists()
    }
    measured = {script: rows for script, rows in found.items() if rows}
    print(table([Figure(**row) for rows in measured.values() for row in rows]))
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else NOTHING
    now = {"machine": machine(), "scripts": measured}
    comparison = compare(kept, now, is_quick=arguments.quick)
    print(f"\n{comparison}")
    if None in found.values():
        sys.exit(1)
    if arguments.keep or not (arguments.quick or arguments.only):
        results = join_kept(kept, now, is_quick=arguments.quick, is_part=bool(arguments.only))
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    if arguments.fail_if_slower and any(pair.now.is_ours for pair in comparison.slower):
        sys.exit(1)


if __name__ == "__main__":
    main()
