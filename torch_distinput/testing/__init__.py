"""Public test kit: simulated workers in one process, and real gloo ranks.

>>> from torch_distinput.testing import simulate
>>> simulate(lambda strategy: strategy.worker_index, num_workers=3)
[0, 1, 2]
"""

from torch_distinput.testing.ranks import RankError, RankOutcome, run_ranks, run_ranks_outcomes
from torch_distinput.testing.readers import check_reader
from torch_distinput.testing.resuming import assert_resumes_everywhere
from torch_distinput.testing.simulated import simulate

__all__ = [
    "RankError",
    "RankOutcome",
    "assert_resumes_everywhere",
    "check_reader",
    "run_ranks",
    "run_ranks_outcomes",
    "simulate",
]
