"""What a start, a vote, a heartbeat, a state and a plan cost with up to 16,384 workers.

    python benchmarks/scale.py [--workers 2,16,128] [--keep]

One process plays one rank, with the product's own code, and counts what it sends; see
``counting.py``. ``--keep`` writes the tables into ``docs/scale.md``.
"""

from __future__ import annotations

import argparse
import json
import pickle
import re
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from counting import CountingCommunicator, CountingStore, CountingStrategy, EchoTransport, Tally
from torch.distributed import HashStore  # type: ignore[attr-defined]

import torch_distinput as tdi
from torch_distinput.cluster.channels.gather import find_neighbours, gather, plan_rounds
from torch_distinput.cluster.liveness.heartbeat import _BEATS_PER_TIMEOUT, Heartbeat
from torch_distinput.cluster.liveness.store_board import StoreBoard
from torch_distinput.data.files.counts import FileCounts
from torch_distinput.data.storage.file_listing import FileInfo, FileListing
from torch_distinput.options import TIMEOUT
from torch_distinput.plan.progress.delivered import DeliveryCounter
from torch_distinput.plan.progress.end_of_data import WINDOW, Vote, VoterState, decide
from torch_distinput.plan.progress.place import Place
from torch_distinput.plan.progress.position import (
    BatchLayout,
    Position,
    Segment,
    StreamPosition,
    begin_epoch,
)
from torch_distinput.plan.progress.route import Shard
from torch_distinput.plan.progress.state import to_state

WORKERS = (2, 16, 128, 1024, 16_384)
PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
NUM_FILES = 1_000_000
WARM_EPOCHS = 5
"""From the next one on, what was written under earlier topics is deleted."""
RECIPE = {"source": "examples in order", "shuffle": False, "seed": 0, "auto_shard_policy": "file"}


def processor_seconds(work: Callable[[], Any]) -> float:
    """Of this thread."""
    started = time.thread_time()
    work()
    return time.thread_time() - started


# ------------------------------------------------------------------------------ start


def start_indexed(strategy: tdi.Strategy) -> Iterable[Any]:
    """An epoch of a source with an index, of which all workers read parts (DATA)."""
    size = strategy.num_workers
    return strategy.distribute_dataset(range(8 * size), global_batch_size=size)


def start_files(folder: str) -> Callable[[tdi.Strategy], Iterable[Any]]:
    """An epoch of files that are dealt out (FILE), as many as there are workers."""

    def start(strategy: tdi.Strategy) -> Iterable[Any]:
        path = Path(folder, "part.txt")
        if not path.exists():
            path.write_text("a line\n" * 8)
        files = tdi.FileDataset([str(path)] * strategy.num_workers)
        return strategy.distribute_dataset(files, global_batch_size=strategy.num_workers)

    return start


def count_start(
    distribute: Callable[[tdi.Strategy], Iterable[Any]], size: int, *, is_last: bool
) -> tuple[Tally, float]:
    """What one rank sends for a later epoch, and its processor's seconds."""
    communicator = CountingCommunicator(0, size, is_last=is_last)
    dataset = distribute(CountingStrategy(communicator))
    for _ in range(WARM_EPOCHS):
        iter(dataset)
    communicator.tally = tally = Tally()
    seconds = processor_seconds(lambda: iter(dataset))
    return tally, seconds - tally.others_seconds


def play(dataset: Iterable[Any]) -> Iterator[Any]:
    """Play an epoch up to its last step."""
    iterator = iter(dataset)
    for _ in range(len(dataset)):  # type: ignore[arg-type]
        next(iterator)
    return iterator


def count_end(size: int, *, is_last: bool) -> tuple[Tally, float]:
    """What one rank sends behind the last step of an epoch, and its processor's seconds."""
    communicator = CountingCommunicator(0, size, is_last=is_last)
    dataset = start_indexed(CountingStrategy(communicator))
    for _ in range(WARM_EPOCHS):
        next(play(dataset), None)
    iterator = play(dataset)
    communicator.tally = tally = Tally()
    seconds = processor_seconds(lambda: next(iterator, None))
    return tally, seconds - tally.others_seconds


def meeting_row(size: int, count: Callable[..., tuple[Tally, float]]) -> list[str]:
    """A rank, the last one to come, and the store."""
    (one, seconds), (last, last_seconds) = (
        count(size, is_last=is_last) for is_last in (False, True)
    )
    total = Tally(
        messages=one.messages * (size - 1) + last.messages,
        num_bytes=one.num_bytes * (size - 1) + last.num_bytes,
    )
    return [
        str(one.messages), in_bytes(one.num_bytes), in_ms(seconds),
        str(last.messages), in_bytes(last.num_bytes), in_ms(last_seconds),
        f"{total.messages:,}", in_bytes(total.num_bytes),
    ]  # fmt: skip


# ------------------------------------------------------------------------------ votes


def vote_row(size: int) -> list[str]:
    """A vote on 64 steps, gathered in rounds."""
    vote = Vote(
        state=VoterState.RUNNING, counts=(8,) * WINDOW, marks=(0,) * WINDOW,
        files_touched=(1,) * WINDOW,
    )  # fmt: skip
    layout = BatchLayout(
        num_workers=size, replicas_per_worker=1, global_batch_size=8 * size, rebatch="split"
    )
    before = begin_epoch(0, layout, size)
    counter = DeliveryCounter(before, size, shared=False, steps_per_batch=1)
    tally = Tally()
    transport = EchoTransport(tally)

    def take_part() -> None:
        parts = gather(transport, 0, size, pickle.dumps(vote))
        votes = [pickle.loads(part) for part in parts]  # noqa: S301 - our own
        verdict = decide(votes, shared=False)
        counter.add_round(votes, len(verdict.totals))

    seconds = processor_seconds(take_part)
    return [
        str(len(list(plan_rounds(0, size)))), str(len(find_neighbours(0, size))),
        str(tally.messages), in_bytes(tally.num_bytes), in_ms(seconds),
    ]  # fmt: skip


# ------------------------------------------------------------------------------ heartbeat


class Others:
    """A meeting of which only numbers are asked."""

    def __init__(self, rank: int, size: int) -> None:
        """Be one of them."""
        self.rank, self.size = rank, size


def heartbeat_row(size: int) -> list[str]:
    """One beat of a worker, and of the one that watches all, if they are many."""
    store = HashStore()
    hearts = [Heartbeat(Others(rank, size)) for rank in (0, size - 1)]  # type: ignore[arg-type]
    hearts[0]._post(StoreBoard(store, range(size), 0))  # noqa: SLF001 - no beat without a thread
    status = store.get("statuses/0").decode()
    for worker in range(size):
        store.set(f"statuses/{worker}", status)
    is_initialized, dist.is_initialized = dist.is_initialized, lambda: True
    try:
        (watcher, watcher_seconds), (one, seconds) = (
            count_beat(heart, store) for heart in hearts
        )
    finally:
        dist.is_initialized = is_initialized
    interval = min(hearts[0].peers.heard.interval, TIMEOUT / _BEATS_PER_TIMEOUT)
    total = watcher.num_bytes + one.num_bytes * (size - 1)
    return [
        f"{interval:g} s", str(one.messages), in_bytes(one.num_bytes), in_ms(seconds),
        str(watcher.messages), in_bytes(watcher.num_bytes), in_ms(watcher_seconds),
        in_bytes(total / interval),
    ]  # fmt: skip


def count_beat(heart: Heartbeat, store: HashStore) -> tuple[Tally, float]:
    """What a worker sends and reads in its second beat, and its processor's seconds."""
    others, tally = heart._communicator, Tally()  # noqa: SLF001
    counting: Any = CountingStore(store, tally)
    board = StoreBoard(counting, range(others.size), others.rank)
    heart._beat(board)  # noqa: SLF001
    tally.messages = tally.num_bytes = 0
    return tally, processor_seconds(lambda: heart._beat(board))  # noqa: SLF001


# ------------------------------------------------------------------------------ states


def state_row(size: int) -> list[str]:
    """Bytes of a state of each kind, and the time to make the last one."""
    layout = BatchLayout(
        num_workers=size, replicas_per_worker=1, global_batch_size=8 * size, rebatch="split"
    )
    indexed = replace(begin_epoch(0, layout, 0), steps=100, examples=800 * size)
    shared = replace(begin_epoch(0, layout, 1), steps=100, examples=800 * size, steps_done=100)
    alike = _play(begin_epoch(3, layout, size), lambda _: 800)
    differ = _play(alike, lambda worker: 500 + worker * 7919 % 800)
    states = [to_state(position, RECIPE) for position in (indexed, shared, alike, differ)]
    seconds = processor_seconds(lambda: to_state(differ, RECIPE))
    return [*(in_bytes(len(json.dumps(state))) for state in states), in_ms(seconds)]


def _play(before: Position, rows_of: Callable[[int], int]) -> Position:
    """Under FILE, when each worker has delivered some rows and noted where it stands."""
    numbers = [rows_of(worker) for worker in range(before.layout.num_workers)]
    return replace(
        before,
        steps=100,
        examples=sum(numbers),
        steps_done=100,
        rows=tuple(numbers),
        files_touched=tuple(1 + number // 100 for number in numbers),
        streams=tuple(
            StreamPosition(
                batch=96,
                row=number - 32,
                segments=(
                    Segment(
                        worker=worker,
                        start=Place("partition", (("number", number // 100),)),
                    ),
                ),
            )
            for worker, number in enumerate(numbers)
        ),
    )


# ------------------------------------------------------------------------------ plans


def plan_row(size: int, listing: FileListing) -> list[str]:
    """What one rank reads of a million files, in their order and shuffled."""
    row = []
    for shuffle in (False, True):
        files = tdi.FileDataset("part-*", shuffle_files=shuffle)
        shard = Shard(num_shards=size, index=size - 1)
        seconds = processor_seconds(lambda: FileCounts(files, listing, None).partitions(shard))  # noqa: B023
        tracemalloc.start()
        FileCounts(files, listing, None).partitions(shard)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        row += [in_ms(seconds), in_bytes(peak)]
    return row


def list_files(count: int) -> FileListing:
    """Made up."""
    return FileListing(
        FileInfo(
            path=f"s3://bucket/a/long/way/down/part-{number:08d}-of-10000000.parquet",
            size=number,
            version="d41d8cd98f00b204e9800998ecf8427e",
        )
        for number in range(count)
    )


# ------------------------------------------------------------------------------ tables


def in_bytes(count: float) -> str:
    """Three digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def in_ms(seconds: float) -> str:
    """Milliseconds."""
    return f"{1000 * seconds:.2g} ms" if seconds < 0.1 else f"{1000 * seconds:.0f} ms"


def table(heads: Sequence[str], rows: dict[int, list[str]]) -> str:
    """In Markdown, a row for each number of workers."""
    lines = [f"| workers | {' | '.join(heads)} |", "|---:" * (1 + len(heads)) + "|"]
    lines += [f"| {size:,} | {' | '.join(cells)} |" for size, cells in rows.items()]
    return "\n".join(lines)


MEETING = (
    *("messages", "bytes", "processor"),
    *("of the last: messages", "bytes", "processor"),
    *("of the store: messages", "bytes"),
)


def measure(sizes: Sequence[int], *, num_files: int = NUM_FILES) -> dict[str, str]:
    """All tables, by name."""
    listing = list_files(num_files)
    with tempfile.TemporaryDirectory() as folder:
        starts = {"start-index": start_indexed, "start-files": start_files(folder)}
        meetings: dict[str, Callable[..., tuple[Tally, float]]] = {
            **{name: partial(count_start, start) for name, start in starts.items()},
            "end": count_end,
        }
        tables = {
            name: table(MEETING, {size: meeting_row(size, count) for size in sizes})
            for name, count in meetings.items()
        }
    heads = {
        "votes": (vote_row, ("rounds", "connections", "messages", "bytes", "processor")),
        "heartbeat": (
            heartbeat_row,
            (
                *("interval", "messages", "bytes", "processor"),
                *("of the watcher: messages", "bytes", "processor", "of the store, a second"),
            ),
        ),
        "states": (
            state_row,
            ("index", "shared stream", "files, alike", "files, all differ", "processor"),
        ),
    }
    for name, (make, columns) in heads.items():
        tables[name] = table(columns, {size: make(size) for size in sizes})
    tables["plans"] = table(
        ("in order", "memory", "shuffled", "memory"),
        {size: plan_row(size, listing) for size in sizes},
    )
    return tables


def put_into(page: str, tables: dict[str, str]) -> str:
    """The page with other tables."""
    for name, lines in tables.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        pattern = re.compile(f"{begin}.*?{end}", re.DOTALL)
        assert pattern.search(page), name
        page = pattern.sub(f"{begin}\n\n{lines}\n\n{end}", page)
    return page


def main() -> None:
    """Print, or keep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", default=",".join(map(str, WORKERS)))
    parser.add_argument("--keep", action="store_true", help="write the tables into the page")
    arguments = parser.parse_args()
    tables = measure([int(size) for size in arguments.workers.split(",")])
    for name, lines in tables.items():
        print(f"{name}\n\n{lines}\n")
    if arguments.keep:
        PAGE.write_text(put_into(PAGE.read_text(), tables))


if __name__ == "__main__":
    main()
