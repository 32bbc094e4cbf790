"""``torch-distinput plan``: the plan of an epoch from the command line."""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import replace

from torch_distinput.errors import DistinputError
from torch_distinput.inspect.planner.planner import plan_epoch
from torch_distinput.options import AutoShardPolicy, InputOptions, Rebatch

_EXAMPLES = """examples:
  torch-distinput plan "s3://bucket/*.parquet" --workers 256 --global-batch-size 4096 --count
  torch-distinput plan "data/*.tar" --workers 64 --global-batch-size 2048 --bytes-per-example 110e3
  torch-distinput plan 1281167 --workers 8 --global-batch-size 1024
"""
_OPTIONS = {
    r'options=tdi\.InputOptions\(auto_shard_policy="(\w+)"\)': r"--policy \1",
    **{rf"AutoShardPolicy\.{one.name}": f"--policy {one.value}" for one in AutoShardPolicy},
    r'\brebatch="(\w+)"': r"--rebatch \1",
    r"\bcount=True|\bcount(?= with)": "--count",
    r"\bsplit_files=True|\bsplit_files(?= with)": "--split-files",
    r"\bbytes_per_example\b": "--bytes-per-example",
    r"\bnum_workers\b": "--workers",
    r"\breplicas_per_worker\b": "--replicas-per-worker",
    r"\bglobal_batch_size\b": "--global-batch-size",
    r"\b(seed|epoch)(?= must)": r"--\1",
    r"\bplan_epoch\b": "this command",
}
"""What the library's advice calls by its name in Python, and what it is called here."""


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what a plan needs to know."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES
    parser.add_argument("source", nargs="+", help="paths, URLs or globs; or a number of examples")
    parser.add_argument("--workers", type=int, required=True, help="ranks with data of their own")
    parser.add_argument("--global-batch-size", type=int, required=True)
    parser.add_argument("--replicas-per-worker", type=int, default=1)
    policies = [policy.value for policy in AutoShardPolicy]
    parser.add_argument("--policy", choices=policies, default="auto", help="who reads what")
    rules = [rule.value for rule in Rebatch]
    parser.add_argument("--rebatch", choices=rules, default="split", help="how batches are cut")
    parser.add_argument("--drop-last", action="store_true")
    parser.add_argument("--split-files", action="store_true", help="deal out parts of files")
    parser.add_argument("--shuffle", action="store_true", help="deal files out in another order")
    parser.add_argument("--seed", type=int, default=0, help="of that order")
    parser.add_argument("--epoch", type=int, default=0, help="of that order")
    parser.add_argument(
        "--count", action="store_true", help="read footers to count examples; imports torch"
    )
    parser.add_argument("--bytes-per-example", type=float, help="an estimate, if not counted")
    parser.add_argument(
        "--storage-options", type=json.loads, help="for fsspec, as JSON: '{\"anon\": true}'"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", metavar="FILE", help="write a page with a picture as well")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    written: list[str] = arguments.source
    is_number = len(written) == 1 and written[0].replace("_", "").isdigit()
    try:
        plan = plan_epoch(
            int(written[0]) if is_number else written,
            num_workers=arguments.workers,
            global_batch_size=arguments.global_batch_size,
            replicas_per_worker=arguments.replicas_per_worker,
            shuffle=arguments.shuffle,
            seed=arguments.seed,
            epoch=arguments.epoch,
            drop_last=arguments.drop_last,
            split_files=arguments.split_files,
            count=arguments.count,
            bytes_per_example=arguments.bytes_per_example,
            storage_options=arguments.storage_options,
            options=InputOptions(auto_shard_policy=arguments.policy, rebatch=arguments.rebatch),
        )
    except (DistinputError, ImportError, OSError, TypeError, ValueError) as error:
        sys.stderr.write(f"torch-distinput plan: {_name_options(str(error))}\n")
        return 1
    plan = replace(plan, notes=tuple(map(_name_options, plan.notes)))
    shown = json.dumps(plan.to_dict(), indent=2) if arguments.json else str(plan)
    sys.stdout.write(f"{shown}\n")
    if arguments.html:
        try:
            plan.save(arguments.html)
        except OSError as error:
            sys.stderr.write(f"torch-distinput plan: {error}\n")
            return 1
        sys.stderr.write(f"wrote {arguments.html}\n")
    return 0


def _name_options(text: str) -> str:
    """Advise the options of the command line."""
    for written, option in _OPTIONS.items():
        text = re.sub(written, option, text)
    return text
