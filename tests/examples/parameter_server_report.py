"""What examples/parameter_server.py must have printed, whichever engine has played it."""

from __future__ import annotations

import re

NUM_WORKERS = 3
PATTERNS = (
    r"(\d+) steps, all of which returned",
    r"(\d+) given back by a worker that died; workers started again: (\d+)",
    *[rf"examples of worker {worker}: (.*)" for worker in range(NUM_WORKERS)],
    r"held-out examples: (\S+) % right",
)


def check_report(lines: list[str], *, num_steps: int) -> None:
    """The killed worker came back, each example came, and the model has learnt.

    A worker's examples come in epochs, and a step that was given back counts for nobody: so two of
    them never differ by more than one visit, also those of the worker that was killed.
    """
    found = [match for line in lines for one in PATTERNS if (match := re.fullmatch(one, line))]
    assert list(PATTERNS) == [match.re.pattern for match in found], lines  # Ray prints, too
    (steps,), (given_back, restarts), *visits, (accuracy,) = [one.groups() for one in found]
    assert int(steps) >= num_steps
    assert int(given_back) >= 1
    assert int(restarts) >= 1
    for (counts,) in visits:
        times = [int(n) for n in re.findall(r"came (\d+)", counts.replace("once", "1 times"))]
        assert 1 <= min(times) <= max(times) <= min(times) + 1
    assert float(accuracy) > 75  # 30 % are of the most frequent package
