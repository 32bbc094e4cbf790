"""init_distributed: what it reads from the environment, and a restart under a real torchrun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from torch_distinput.cluster import launch
from torch_distinput.cluster.launch import init_distributed

ENVIRONMENT = (
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_RESTART_COUNT",
)
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


@pytest.fixture(autouse=True)
def _no_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start without launcher variables and leave without a process group."""
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def set_environment(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    for name, value in values.items():
        monkeypatch.setenv(name, value)


class TestEnvironment:
    def test_plain_start_is_one_worker(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without RANK and WORLD_SIZE no group is made, whatever else is set."""
        set_environment(monkeypatch, MASTER_ADDR="127.0.0.1", MASTER_PORT="1234")

        init_distributed()

        assert not dist.is_initialized()

    @pytest.mark.parametrize(
        ("present", "missing"),
        [
            (("RANK",), "RANK set, WORLD_SIZE, MASTER_ADDR, MASTER_PORT missing"),
            (("WORLD_SIZE", "RANK"), "RANK, WORLD_SIZE set, MASTER_ADDR, MASTER_PORT missing"),
            (("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"), "RANK missing"),
        ],
    )
    def test_incomplete(
        self, present: tuple[str, ...], missing: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An incomplete environment is refused with what is missing and with the cure."""
        set_environment(monkeypatch, **{name: ALONE[name] for name in present})

        with pytest.raises(ValueError, match=f"{missing}.*torchrun.*unset RANK and WORLD_SIZE"):
            init_distributed()

    def test_empty_counts_as_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A variable set to nothing is a missing one."""
        set_environment(monkeypatch, **(ALONE | {"MASTER_PORT": ""}))

        with pytest.raises(ValueError, match="MASTER_PORT missing"):
            init_distributed()

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("RANK", "one", "RANK must be an integer, got 'one'"),
            ("RANK", "1", r"RANK must be from 0 to WORLD_SIZE - 1 = 0, got 1\."),
            ("RANK", "-1", "RANK must be from 0"),
            ("WORLD_SIZE", "0", "WORLD_SIZE must be 1 or more, got 0"),
            ("MASTER_PORT", "65536", "MASTER_PORT must be from 0 to 65535, got 65536"),
        ],
    )
    def test_wrong(
        self, name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A wrong value is refused by name, with the range."""
        set_environment(monkeypatch, **(ALONE | {name: value}))

        with pytest.raises(ValueError, match=message):
            init_distributed()

    @pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan"), timedelta(0)])
    def test_timeout_is_positive(self, timeout: float | timedelta) -> None:
        """A timeout that is not positive is refused, also where nothing is to be done."""
        with pytest.raises(ValueError, match="timeout must be more than 0 seconds"):
            init_distributed(timeout)


class TestGroup:
    def test_rank_0_hosts_the_store_outside_torchrun(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A complete environment is enough, and a second call changes nothing."""
        set_environment(monkeypatch, **ALONE)
        init_distributed(timedelta(seconds=30), backend="gloo")
        group = dist.group.WORLD

        init_distributed(30, backend="nonsense")

        assert dist.group.WORLD is group
        assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (0, 1, "gloo")

    def test_each_attempt_has_its_own_keys(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What an attempt wrote into the agent's store is not seen by the next."""
        agent = agent_store(monkeypatch, ALONE)
        seen = []
        for attempt in ("0", "1", "1"):  # the last one: a second group within an attempt
            monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
            init_distributed(30, backend="gloo")
            store = dist.distributed_c10d._get_default_store()
            seen.append(store.add("visits", 1))
            dist.destroy_process_group()

        assert seen == [1, 1, 1]
        assert agent.add("visits", 0) == 0

    def test_several_nodes_use_the_plain_store(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Nodes count restarts on their own: no prefix, and a warning with the cure after one."""
        agent_store(monkeypatch, ALONE | {"WORLD_SIZE": "2"})
        place = launch._read_place()
        assert place is not None

        assert launch._attempt_store(place, timedelta(seconds=1)) is None

        assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in caplog.text

    def test_default_backend(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Tensors on either kind of device can be reduced where CUDA is there."""
        monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
        backends = []
        for available in (False, True):
            monkeypatch.setattr(torch.cuda, "is_available", lambda value=available: value)
            backends.append(launch._default_backend())

        assert backends == ["gloo", "cpu:gloo,cuda:nccl"]

    def test_default_backend_of_a_tpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Torch_tpu's, and gloo for tensors of the host, which votes and objects are."""
        fake_accelerator(monkeypatch, 1, "tpu")

        assert launch._default_backend() == "cpu:gloo,tpu:tpu_dist"

    def test_a_tpu_is_left_alone_before_the_process_group(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A process has one, whatever its LOCAL_RANK; to count them would start its runtime."""
        chosen = fake_accelerator(monkeypatch, 4, "tpu")
        monkeypatch.delattr(torch.accelerator, "device_count")
        monkeypatch.setenv("LOCAL_RANK", "2")

        launch._set_device()

        assert chosen == []

    @pytest.mark.parametrize(
        ("local_rank", "num_devices", "expected"),
        [
            ("2", 4, [2]),
            ("2", 1, [0]),  # each rank sees only its own device
            ("", 4, []),  # not told: the current device stays
        ],
    )
    def test_device_from_local_rank(
        self,
        local_rank: str,
        num_devices: int,
        expected: list[int],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """LOCAL_RANK picks the accelerator."""
        chosen = fake_accelerator(monkeypatch, num_devices)
        monkeypatch.setenv("LOCAL_RANK", local_rank)

        launch._set_device()

        assert chosen == expected

    def test_more_ranks_than_devices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A rank without a device is told so with the numbers."""
        fake_accelerator(monkeypatch, 2)
        monkeypatch.setenv("LOCAL_RANK", "2")

        with pytest.raises(ValueError, match="2 devices.*got 2. Start at most 2 ranks"):
            launch._set_device()


def agent_store(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> TCPStore:
    """Host a store as torchrun's agent does, and set the environment that points to it."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    set_environment(
        monkeypatch,
        **environment
        | {
            "MASTER_PORT": str(store.port),
            "LOCAL_WORLD_SIZE": "1",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "1",
        },
    )
    return store


def fake_accelerator(
    monkeypatch: pytest.MonkeyPatch, num_devices: int, kind: str = "cuda"
) -> list[int]:
    chosen: list[int] = []
    device = SimpleNamespace(type=kind)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: device)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: num_devices)
    monkeypatch.setattr(torch.accelerator, "set_device_index", chosen.append)
    return chosen


SCRIPT = """
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from torch_distinput.cluster.launch import init_distributed

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
init_distributed(60)
total = torch.ones(1)
dist.all_reduce(total)
if attempt == 0 and dist.get_rank() == 1:
    os._exit(3)
dist.barrier()  # never passed by the first attempt
Path(sys.argv[1], f"attempt-{attempt}-rank-{dist.get_rank()}").write_text(str(int(total)))
dist.destroy_process_group()
"""


@pytest.mark.long  # test_restarts.py has a restart of a job that trains
def test_torchrun_restart(tmp_path: Path) -> None:
    """A rank dies in the first attempt; the second one meets and finishes."""
    script, written = tmp_path / "train.py", tmp_path / "written"
    script.write_text(SCRIPT)
    written.mkdir()
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1")

    run_within(240, "-m", *launcher, str(script), str(written))

    results = {path.name: path.read_text() for path in written.iterdir()}
    assert results == {"attempt-1-rank-0": "2", "attempt-1-rank-1": "2"}


def run_within(seconds: float, *arguments: str) -> None:
    """Run Python in a session of its own; when it is late or failed, end all of it and say why."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    finally:
        if process.poll() is None:
            # torchrun ends its ranks, which are in sessions of their own, on SIGTERM.
            process.send_signal(signal.SIGTERM)
            output, _ = process.communicate(timeout=60)
            print(output)
    assert process.returncode == 0, output
