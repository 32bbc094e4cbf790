"""``python -m tests.golden PATH [--gloo]``: play a file of recorded cases.

Prints a line for each failure, the count for each rule, and last the sums. Exits with 1 if a case
failed or a rule about a difference touched none.
"""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path

from tests.golden.runner import load, run_all


def main() -> int:
    """Read the command line and play."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("path", type=Path, metavar="PATH", help="a file of recorded cases")
    parser.add_argument(
        "--gloo", action="store_true", help="workers are processes, not threads of this one"
    )
    given = parser.parse_args()
    say = functools.partial(print, flush=True)
    return 0 if run_all(load(given.path), gloo=given.gloo, say=say) else 1


if __name__ == "__main__":
    sys.exit(main())
