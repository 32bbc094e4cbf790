"""Parameter servers and workers as actors of Ray: the example, as its users run it."""

from __future__ import annotations

import sys

from tests.commands import output_of
from tests.examples.parameter_server_report import check_report
from tests.examples.scripts import EXAMPLES


def test_the_example_runs_on_actors_of_ray():
    script = EXAMPLES / "parameter_server.py"
    printed = output_of([sys.executable, script, "--engine=ray"])

    check_report(printed.splitlines(), num_steps=450)
