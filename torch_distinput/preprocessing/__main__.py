"""Analyze files from the command line, on all ranks that torchrun starts.

    torchrun --nproc-per-node 8 -m torch_distinput.preprocessing recipe.py OUT [--cache FOLDER]

``recipe.py`` (a path, or a module's name) defines ``features``, a Features, and ``dataset``, a
FileDataset; or functions without parameters that return them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import runpy
from pathlib import Path
from typing import Any

import torch

import torch_distinput as tdi
from torch_distinput.preprocessing.analysis.analyze import analyze


def _main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_distinput.preprocessing",
        description="Adapt preprocessing layers to files and write them to a folder.",
    )
    parser.add_argument("recipe", help="a Python file or module with `features` and `dataset`")
    parser.add_argument("out", help="the folder to write, a path or URL")
    parser.add_argument("--cache", help="a folder to keep the state of each file in")
    parser.add_argument(
        "--storage-options", type=json.loads, default={}, help="JSON, for fsspec: OUT and --cache"
    )
    given = parser.parse_args()
    recipe = _load_recipe(given.recipe)
    tdi.init_distributed()
    strategy = tdi.MultiWorkerMirroredStrategy()
    features = analyze(
        recipe["features"],
        recipe["dataset"],
        given.out,
        cache=given.cache,
        strategy=strategy,
        storage_options=given.storage_options,
    )
    if strategy.worker_index == 0:
        print(f"{given.out}: fingerprint {features.fingerprint()}")  # noqa: T201 - the result
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _load_recipe(name: str) -> dict[str, Any]:
    if name.endswith(".py") and not Path(name).is_file():
        msg = f"Expected a Python file at {name}, found none. Check the path."
        raise SystemExit(msg)
    found = runpy.run_path(name) if name.endswith(".py") else vars(importlib.import_module(name))
    missing = [part for part in ("features", "dataset") if part not in found]
    if missing:
        msg = (
            f"Expected `features` and `dataset` in {name}, but it has no {missing[0]!r}. Define "
            "both there, as values or as functions that return them."
        )
        raise SystemExit(msg)
    return {
        part: found[part]() if _is_function(found[part]) else found[part]
        for part in ("features", "dataset")
    }


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, torch.nn.Module)


if __name__ == "__main__":
    _main()
