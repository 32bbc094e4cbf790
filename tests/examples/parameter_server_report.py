"""What examples/parameter_server.py must have printed, whichever engine has played it."""

from __future__ import annotations

import re

NUM_WORKERS = 3
FIRST = r"(\d+) steps, all of which returned"
DEATHS = r"(\d+) given back by a worker that died; workers started again: (\d+)"
VISITS = r"examples of worker \d: ((?:\d+ came \d+ times(?:, )?)+)"
ACCURACY = r"held-out examples: (\S+) % right"


def check_report(lines: list[str], *, num_steps: int) -> None:
    """The killed worker came back, each example came, and the model has learnt.

    A worker's examples come in epochs, and a step that was given back counts for nobody: so two of
    them never differ by more than one visit, also those of the worker that was killed.
    """
    steps, deaths, *visits, accuracy = lines[-(3 + NUM_WORKERS) :]  # Ray prints something, too
    assert int(_found(FIRST, steps)[0]) >= num_steps
    given_back, restarts = map(int, _found(DEATHS, deaths))
    assert given_back >= 1
    assert restarts >= 1
    for line in visits:
        times = [int(n) for n in re.findall(r"came (\d+)", _found(VISITS, line)[0])]
        assert min(times) >= 1
        assert max(times) - min(times) <= 1
    assert float(_found(ACCURACY, accuracy)[0]) > 75  # 30 % are of the most frequent package


def _found(pattern: str, line: str) -> tuple[str, ...]:
    match = re.fullmatch(pattern, line)
    assert match, line
    return match.groups()
