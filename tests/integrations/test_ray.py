"""Ray Train: what became of every example, when a worker was killed and a machine shut down.

The training itself is examples/train_ray.py, as its users run it.
"""

from __future__ import annotations

import itertools
import re
import sys

import pytest
import ray
import ray.cloudpickle
import torch
from ray.train.torch import prepare_data_loader
from ray.train.v2._internal.execution import train_fn_utils

import torch_distinput as tdi
from tests.commands import output_of
from tests.docs.pages import ROOT
from tests.examples.scripts import EXAMPLES
from torch_distinput.testing import simulate

PAGE = (ROOT / "docs" / "ray.md").read_text()
GROUP = re.compile(r"group \d: (\d) workers, up to step (\d+) of epoch (\d)")


def numbers(strategy):
    return strategy.distribute_dataset(torch.arange(10), global_batch_size=4)


class TestTrain:
    """Two epochs of 32 steps, a checkpoint after every 5, a mishap after step 17 of each."""

    @pytest.fixture(scope="class")
    @classmethod
    def printed(cls, tmp_path_factory):
        """What the example says of its groups of workers, and of its examples."""
        folder = tmp_path_factory.mktemp("run")
        command = [sys.executable, EXAMPLES / "train_ray.py", f"--folder={folder}"]
        return output_of(command).splitlines()

    def test_every_example_is_committed_once(self, printed):
        """Over an epoch with a kill and the same number of workers, and one with another."""
        assert [
            "epoch 0: 1000 examples once, 0 lost, 0 repeated",
            "epoch 1: 1000 examples once, 0 lost, 0 repeated",
        ] == printed[-2:]

    def test_groups_go_on_in_mid_epoch(self, printed):
        """Three workers until one is killed; three until a machine goes; two."""
        found = filter(None, map(GROUP.fullmatch, printed))  # Ray prints something, too
        groups = [tuple(map(int, group.groups())) for group in found]
        assert [3, 3, 2] == [workers for workers, _, _ in groups]
        assert [0, 1, 1] == [epoch for _, _, epoch in groups]
        killed, shut_down, last = [step for _, step, _ in groups]
        assert {killed, shut_down} <= {4, 9, 14}
        assert 31 == last


class TestWhatIsRefused:
    def test_a_dataset_of_ours_as_a_data_loader(self, monkeypatch):
        """It would get a DistributedSampler."""
        worker = train_fn_utils.LocalTrainFnUtils("run", world_size=2, world_rank=0)
        monkeypatch.setattr(train_fn_utils, "_train_fn_utils", worker)
        with pytest.raises(AttributeError, match="Iterate it as it is; do not pass it to what"):
            prepare_data_loader(numbers(tdi.OneDeviceStrategy("cpu")))

    @pytest.mark.parametrize("made", [lambda strategy: strategy, numbers])
    def test_what_was_made_outside_of_the_function_of_the_workers(self, made):
        """The function is pickled with all that it refers to."""
        outside = made(tdi.OneDeviceStrategy("cpu"))

        def train():
            return outside

        with pytest.raises(TypeError, match="its ranks and threads cannot be copied"):
            ray.cloudpickle.dumps(train)


# Ray Data 2.60 reads old options of its own.
@pytest.mark.filterwarnings("ignore:`use_.*` is deprecated:DeprecationWarning")
class TestRayData:
    """As a source: a stream without a state, which is read again up to the position."""

    @pytest.fixture(scope="class")
    @classmethod
    def iterator(cls, ray):
        """The whole of 40 rows in 5 blocks, in one order."""
        ray.data.DataContext.get_current().execution_options.preserve_order = True
        return ray.data.range(40, override_num_blocks=5).iterator()

    @staticmethod
    def distribute_rows(strategy, iterator):
        return strategy.distribute_dataset(
            lambda: ({"id": row["id"]} for row in iterator.iter_rows()), global_batch_size=4
        )

    @staticmethod
    def distribute_batches(strategy, iterator):
        return strategy.distribute_dataset(iterator.iter_torch_batches(batch_size=4))

    @pytest.mark.parametrize("distribute", [distribute_rows, distribute_batches])
    def test_an_epoch_goes_on_on_other_workers(self, iterator, distribute):
        """Two workers for three steps, then three."""

        def play(strategy, state=None, num_steps=None):
            dataset = distribute(strategy, iterator)
            if state is not None:
                dataset.load_state_dict(state)
            steps = list(itertools.islice(dataset.steps(), num_steps))
            return [x for step in steps for x in step.batch["id"].tolist()], steps[-1].state_dict()

        before = simulate(lambda strategy: play(strategy, num_steps=3), num_workers=2)
        state = before[0][1]
        after = simulate(lambda strategy: play(strategy, state), num_workers=3)
        assert 12 == sum(len(ids) for ids, _ in before)
        assert list(range(40)) == sorted(x for ids, _ in before + after for x in ids)


@pytest.mark.parametrize("block", re.findall(r"^```py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
def test_the_code_of_the_page_is_that_of_the_example(block):
    lines = [line.strip() for line in (EXAMPLES / "train_ray.py").read_text().splitlines()]
    assert "\n".join(line.strip() for line in block.splitlines()) in "\n".join(lines)
