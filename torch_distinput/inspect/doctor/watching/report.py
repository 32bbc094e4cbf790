"""What is printed of all ranks."""

from __future__ import annotations

from collections.abc import Sequence

from torch_distinput.inspect.doctor.watching.records import RankRecord
from torch_distinput.inspect.doctor.watching.seen_verdicts import explain_records


def write_report(records: Sequence[RankRecord]) -> str:
    """Return what is printed of all ranks."""
    explained = explain_records(records)
    parts = ["", "torch-distinput doctor", *_outcomes(records)]
    for explanation in explained:
        parts += ["", str(explanation)]
    if not explained:
        parts += ["", "No DataLoader of the script's own delivered a batch in these processes."]
    return "\n".join(parts)


def _outcomes(records: Sequence[RankRecord]) -> list[str]:
    """One line for ranks that ended alike, and for those of which there is no record."""
    num_ranks = records[0].num_ranks if records else 0
    if num_ranks == 1:
        return [f"The script {records[0].outcome}."]
    found: dict[str, list[int]] = {}
    for record in records:
        found.setdefault(record.outcome, []).append(record.rank)
    missing = sorted(set(range(num_ranks)) - {record.rank for record in records})
    if missing:
        found["left no record (killed, or on a machine without the same --records)"] = missing
    return [
        f"Rank{'s' * (len(ranks) > 1)} {_list(ranks)}: {outcome}."
        for outcome, ranks in found.items()
    ]


def _list(ranks: list[int]) -> str:
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]} to {ranks[-1]}"
    return ", ".join(map(str, ranks))
