"""Start the process group of a script that torchrun launched, also after torchrun restarted it.

Reads the environment and nothing else: no topology, no agreement, no input.
"""

from __future__ import annotations

import itertools
import logging
import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

_log = logging.getLogger(__name__)

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

# Groups made by this process so far. An attempt that leaves its group and starts another would
# otherwise read its own old addresses; the count is the same on all ranks, which all start anew.
_groups = itertools.count()


def init_distributed(
    timeout: float | timedelta = 120.0, *, backend: str | None = None
) -> None:
    """Call ``torch.distributed.init_process_group`` so that it survives a restart by torchrun.

    Under ``torchrun --max-restarts`` every attempt on a node meets in the same store, where a plain
    ``init_process_group`` finds the addresses of the attempt that failed. This function gives each
    attempt keys of its own. It does nothing when the process group is already there, and nothing
    when neither RANK nor WORLD_SIZE is in the environment: a plain ``python train.py`` is one
    worker. Outside torchrun, RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are needed, and rank 0
    hosts the store.

    With several nodes torchrun counts restarts for each node on its own, so the count cannot tell
    the attempts apart. There, set ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`` for torchrun: each
    attempt then gets a new store.

    Where there is an accelerator and LOCAL_RANK is set, that device becomes the current one.

    Args:
        timeout: Seconds after which a collective operation, or the start itself, gives up; or a
            ``timedelta``.
        backend: As for ``init_process_group``; by default ``"cpu:gloo,cuda:nccl"`` where CUDA is
            available, ``"cpu:gloo,tpu:tpu_dist"`` on a TPU of torch_tpu, else ``"gloo"``.

    Raises:
        ValueError: If ``timeout`` is not positive, or the environment is incomplete or wrong.
    """
    if isinstance(timeout, timedelta):  # as init_process_group takes it
        timeout = timeout.total_seconds()
    if not timeout > 0:
        raise ValueError(f"timeout must be more than 0 seconds, got {timeout!r}.")
    if dist.is_initialized():
        return
    place = _read_place()
    if place is None:
        return
    _set_device()
    limit = timedelta(seconds=timeout)
    dist.init_process_group(
        backend or _default_backend(),
        store=_attempt_store(place, limit),  # None: rank 0 hosts one (env://)
        rank=place.rank,
        world_size=place.world_size,
        timeout=limit,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """This process among the ranks, and where they meet."""

    rank: int
    world_size: int
    host: str
    port: int

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise ValueError(f"WORLD_SIZE must be 1 or more, got {self.world_size}.")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"RANK must be from 0 to WORLD_SIZE - 1 = {self.world_size - 1}, got {self.rank}."
            )
        if not 0 <= self.port < 2**16:
            raise ValueError(f"MASTER_PORT must be from 0 to 65535, got {self.port}.")


def _read_place() -> _Place | None:
    """Read where this process stands; None for a plain start, which has neither rank nor size."""
    present = [name for name in _NEEDED if os.environ.get(name)]
    if "RANK" not in present and "WORLD_SIZE" not in present:
        return None
    if missing := [name for name in _NEEDED if name not in present]:
        raise ValueError(
            f"init_distributed() needs {', '.join(_NEEDED)} in the environment: "
            f"{', '.join(present)} set, {', '.join(missing)} missing. Start the script with "
            "torchrun, which sets all four, or set the missing ones; to run as one worker, unset "
            "RANK and WORLD_SIZE."
        )
    return _Place(
        rank=_integer("RANK"),
        world_size=_integer("WORLD_SIZE"),
        host=os.environ["MASTER_ADDR"],
        port=_integer("MASTER_PORT"),
    )


def _integer(name: str) -> int:
    try:
        return int(os.environ[name])
    except ValueError:
        raise ValueError(f"{name} must be an integer, got {os.environ[name]!r}.") from None


def _set_device() -> None:
    """Make this rank's accelerator the current device, before anything is put on device 0."""
    if not (torch.accelerator.is_available() and os.environ.get("LOCAL_RANK")):
        return
    if _has_tpu():
        # A process sees one TPU, which is current already. To ask for their number would start the
        # runtime of the TPU, before the process group has told it of the other ranks.
        return
    local_rank, num_devices = _integer("LOCAL_RANK"), torch.accelerator.device_count()
    if num_devices == 1:  # one visible device per rank (CUDA_VISIBLE_DEVICES) is device 0 to all
        local_rank = 0
    if not 0 <= local_rank < num_devices:
        raise ValueError(
            f"LOCAL_RANK must name one of this node's {num_devices} devices (0 to "
            f"{num_devices - 1}), got {local_rank}. Start at most {num_devices} ranks on this node."
        )
    torch.accelerator.set_device_index(local_rank)


def _has_tpu() -> bool:
    kind = torch.accelerator.current_accelerator(check_available=True)
    return kind is not None and kind.type == "tpu"


def _default_backend() -> str:
    if _has_tpu():
        return "cpu:gloo,tpu:tpu_dist"
    if torch.cuda.is_available() and dist.is_nccl_available():
        return "cpu:gloo,cuda:nccl"
    return "gloo"


def _attempt_store(place: _Place, limit: timedelta) -> Store | None:
    """Make the store of this attempt, if torchrun's agent hosts one for all attempts."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if os.environ.get("LOCAL_WORLD_SIZE") != str(place.world_size):
        _warn_of_stale_store(attempt)
        return None
    agent = TCPStore(place.host, place.port, is_master=False, timeout=limit)
    return PrefixStore(f"torch_distinput/{attempt}/{next(_groups)}", agent)


def _warn_of_stale_store(attempt: str) -> None:
    if attempt != "0":
        _log.warning(
            "Restart %s of a job on several nodes: the ranks may find the addresses of the attempt "
            "that failed and never meet. Set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun.",
            attempt,
        )


def count_ranks() -> int:
    """How many ranks were started, whatever they have in common; asked as WebDataset does."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
