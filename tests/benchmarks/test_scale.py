"""What is counted for many ranks is what few real ones send, and the page says it."""

from __future__ import annotations

import os
import pickle
import socket
import struct
import sys
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.conftest import LONG
from torch_distinput.cluster.channels.gather import find_neighbours
from torch_distinput.plan.progress.end_of_data import Vote, VoterState
from torch_distinput.testing import run_ranks

ROOT = Path(__file__).parents[2]
FEW = (2, 4, 8) if LONG else (2, 4)
TIMEOUT = 60.0
_TCP_INFO_BYTES = 120
"""Where the kernel's struct tcp_info has the bytes that were acknowledged, and those received."""


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def start(folder, kind, strategy):
    """What a rank sends to the real store at the start of a later epoch, or at its end."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from counting import CountingStore, Tally
    from scale import WARM_EPOCHS, play, start_files, start_indexed

    distribute = start_files(folder) if kind == "files" else start_indexed
    dataset = distribute(strategy)
    for _ in range(WARM_EPOCHS):
        iterator = play(dataset) if kind == "end" else iter(dataset)
        if kind == "end":
            next(iterator, None)
    if kind == "end":
        iterator = play(dataset)
    meeting, tally = strategy._session.communicator._meeting, Tally()
    dist.barrier()
    words, meeting._words = meeting._words, CountingStore(meeting._words, tally)
    next(iterator, None) if kind == "end" else iter(dataset)
    meeting._words = words
    return tally.messages, tally.num_bytes


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["index", "files", "end"])
@pytest.mark.parametrize("size", FEW)
def test_real_ranks_send_what_was_counted(tmp_path, kind, size):
    """All together; who comes last, and has more to do, is not known beforehand."""
    from scale import count_end, count_start, start_files, start_indexed

    starts = {"index": start_indexed, "files": start_files(str(tmp_path))}
    count = partial(count_start, starts[kind]) if kind in starts else count_end
    one, last = (count(size, is_last=is_last)[0] for is_last in (False, True))
    ranks = run_ranks(partial(start, str(tmp_path), kind), size)

    expected = (
        one.messages * (size - 1) + last.messages,
        one.num_bytes * (size - 1) + last.num_bytes,
    )
    assert expected == tuple(map(sum, zip(*ranks, strict=True)))


def connections():
    """The TCP connections of this process, with the bytes sent over each."""
    found = {}
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            if not str(descriptor.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(descriptor.name))) as connection:
                connection.getpeername()
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
        except OSError:
            continue  # no TCP, not connected, or closed meanwhile
        (sent,) = struct.unpack_from("Q", info, _TCP_INFO_BYTES)
        found[descriptor] = sent
    return found


def play_votes(num_votes, strategy):
    """The connections for votes of two datasets, and what was sent over them in each vote."""
    before = connections().keys()
    communicator = strategy._session.communicator
    channels = [communicator.open_channel(timeout=TIMEOUT) for _ in range(2)]
    vote = Vote(state=VoterState.RUNNING)
    for channel in channels:
        channel.gather_objects(vote)
    first = {name: sent for name, sent in connections().items() if name not in before}
    for _ in range(num_votes):
        for channel in channels:
            channel.gather_objects(vote)
    dist.barrier()  # all is acknowledged by now
    last = connections()
    dist.barrier()
    return len(first), sum(last[name] - sent for name, sent in first.items()) / num_votes / 2


@pytest.mark.parametrize("size", FEW)
def test_votes_of_all_datasets_travel_over_few_connections(size):
    """At most a third of what is sent is not the votes: these ones are short."""
    length = len(pickle.dumps(Vote(state=VoterState.RUNNING)))
    for rank, (num_connections, sent) in enumerate(run_ranks(partial(play_votes, 20), size)):
        assert len(find_neighbours(rank, size)) == num_connections
        assert (size - 1) * length <= sent < 1.5 * (size - 1) * length


def cells(tables, name, size):
    """A row of a table, but for times."""
    (line,) = [line for line in tables[name].splitlines() if line.startswith(f"| {size:,} |")]
    return [cell for cell in line.strip("| ").split(" | ") if not cell.endswith(" ms")]


def test_the_page_says_what_is_counted():
    """Of few workers; times are not compared."""
    from scale import measure, put_into

    tables = measure((2, 16), num_files=1000)
    page = (ROOT / "docs" / "scale.md").read_text()
    for name in ("start-index", "start-files", "end", "votes", "states"):
        part = page.partition(f"<!-- {name} -->")[2].partition(f"<!-- end of {name} -->")[0]
        for size in (2, 16):
            assert cells(tables, name, size) == cells({name: part}, name, size), name
    assert page != put_into(page, {"votes": "other"})


def test_the_chart_finds_its_columns_on_the_page():
    from scale_chart import BUSIEST, CHART, PAGE, RANK, draw, read_column

    page = PAGE.read_text()
    assert draw(page) == CHART.read_text(), "Run: python benchmarks/scale_chart.py"
    columns = [read_column(page, name, column) for name, column, _ in (*RANK, *BUSIEST)]
    assert {(2, 16, 128, 1024, 16_384)} == {tuple(size for size, _ in rows) for rows in columns}
    assert (16_384, 16.2e6) == columns[0][-1]
    assert (16_384, 689.0) == columns[2][-1]
