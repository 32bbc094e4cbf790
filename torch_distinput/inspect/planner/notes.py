"""What a plan has assumed, and what its user may want to change, in words."""

from __future__ import annotations

from torch_distinput.inspect.planner.known_files import ASSUMED_PART_BYTES, KnownFiles
from torch_distinput.inspect.planner.outcomes import PolicyOutcome
from torch_distinput.inspect.planner.totals.epoch_totals import Pieces
from torch_distinput.rendering.units import show_count


def list_notes(known: KnownFiles, outcome: PolicyOutcome) -> list[str]:
    """What was assumed of files, and what would tell."""
    notes = []
    if known.examples is None:
        notes.append(
            "Nobody has counted the examples: pass bytes_per_example for an estimate, or "
            "count=True where the format tells (parquet, arrow, npy, npz)."
        )
    elif outcome.totals is None:
        notes.append("How many examples a filter keeps is known when they are read.")
    elif not known.is_exact and known.parts is not None and known.parts.examples is not None:
        notes.append("A run leaves out bad records: steps and rows are those of files without any.")
    elif not known.is_exact:
        notes.append("Examples are estimated from bytes, and so are steps and zero-row steps.")
    if known.split_parts is None and known.sizes is not None:
        mib = ASSUMED_PART_BYTES >> 20
        notes.append(
            f"Split files are taken to have parts of {mib} MiB, as text has; count=True looks."
        )
    if known.sizes is not None and not known.listing:
        notes.append("Bytes are estimated from examples, and so are requests.")
    if known.sizes is not None:
        notes.append("Requests are those of reading whole files over a network, from the start.")
    return notes


def note_idle_replicas(pieces: Pieces) -> tuple[str, ...]:
    """Whether some replicas have no rows even in full batches, and how they would."""
    size, in_sync = pieces.full_size, pieces.in_sync
    filled = int(pieces.count_filled(size)) if size else in_sync
    if filled == in_sync:
        return ()
    cure = f"a global batch of {in_sync:,} or more would give some to all"
    if size >= in_sync:
        cure = 'rebatch="even" gives some to all'
    few = f"rows for {filled:,} of {in_sync:,} replicas only"
    return (f"A full global batch of {show_count(size, 'example')} has {few}: {cure}.",)
