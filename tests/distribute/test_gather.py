"""strategy.gather and gather_in_order."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch

import torch_distinput as tdi
from tests.distribute.replicas import everywhere, per_replica
from tests.distribute.street import one
from torch_distinput.testing import simulate


def joined(*parts):
    """One replica's rows of all steps."""
    return np.concatenate(parts)


def listed(value):
    """The two parts of ``"a"``."""
    strings, numbers = value["a"]
    return strings, numbers.tolist()


class TestGather:
    """Rows of all replicas, in replica order."""

    @pytest.mark.parametrize("cluster", [(1, 4), (4, 1), (2, 2)])
    def test_uneven_rows(self, cluster):
        """Also none."""

        def work(strategy):
            value = per_replica(strategy, lambda r: torch.full((r % 3, 2), r))
            return strategy.gather(value)

        expected = [[1, 1], [2, 2], [2, 2]]
        assert expected == everywhere(work, *cluster).tolist()

    def test_dicts_of_another_order(self):
        """Files may have their columns in any order, and workers read different files."""

        def work(strategy):
            rank = strategy.worker_index
            value = {"b": torch.full((1,), rank), "a": ([f"{rank}"], torch.full((1,), 10 + rank))}
            value = dict(reversed(value.items())) if rank else value
            total = strategy.reduce("sum", {name: value[name][-1] for name in value})
            indices = torch.tensor([1 - rank])
            found = [strategy.gather(value), strategy.gather_in_order(indices, value), total]
            assert [*value] == [*found[0]] == [*found[1]]
            return found

        for gathered, ordered, total in simulate(work, num_workers=2):
            assert ([0, 1], ["0", "1"], [10, 11]) == (gathered["b"].tolist(), *listed(gathered))
            assert ([1, 0], ["1", "0"], [11, 10]) == (ordered["b"].tolist(), *listed(ordered))
            assert (1, [21]) == (total["b"].item(), total["a"].tolist())

    @pytest.mark.parametrize("dtype", [torch.uint16, torch.uint64, torch.float8_e4m3fn])
    def test_dtypes_that_torch_cannot_unpickle(self, dtype):
        """The test kit sends by pickle what real ranks send as bytes."""

        def work(strategy):
            return strategy.gather(torch.ones(1).to(dtype))

        column, _ = simulate(work, num_workers=2)
        assert (dtype, [1.0, 1.0]) == (column.dtype, column.float().tolist())

    def test_other_axes_and_lists(self):
        """Along any axis; lists of strings are joined."""

        def work(strategy):
            value = per_replica(strategy, lambda r: (torch.full((2, r), r), [f"r{r}"] * r))
            return strategy.gather(value[0], axis=1), strategy.gather(value[1])

        for tensor, names in simulate(work, num_workers=3):
            assert [[1, 2, 2]] * 2 == tensor.tolist()
            assert ["r1", "r2", "r2"] == names

    def test_refusals(self):
        """Values without rows, rows of different shapes."""
        with pytest.raises(ValueError, match="0-dim value"):
            one(1).gather(torch.tensor(1))
        with pytest.raises(ValueError, match="one shape"):
            one(2).gather(tdi.PerReplica([torch.ones(1, 2), torch.ones(1, 3)]))

    def test_in_order(self):
        """Predictions come back in the order of the source."""

        def work(strategy):
            data = torch.arange(11) * 10
            iterator = iter(strategy.distribute_dataset(data, global_batch_size=4, shuffle=True))
            indices, values = [], []
            for step in iterator:
                indices.append(iterator.last_step.ids)
                values.append(step)
            return strategy.gather_in_order(
                strategy.run(joined, args=indices), strategy.run(joined, args=values)
            )

        for cluster in ((3, 1), (2, 2), (1, 1)):
            assert list(range(0, 110, 10)) == everywhere(work, *cluster).tolist()

    @pytest.mark.parametrize("replicas", [1, 2])
    def test_in_order_of_one_step(self, replicas):
        """The ids of a step are what orders its values."""
        strategy = one(replicas)
        iterator = iter(strategy.distribute_dataset(range(8), global_batch_size=8, shuffle=True))
        step = next(iterator)
        assert [*range(8)] == strategy.gather_in_order(iterator.last_step.ids, step).tolist()

    @pytest.mark.parametrize("index", [[0, 1, 1], [0, 2, 3], [-1, 0, 1], [0, 1, 10**15]])
    def test_in_order_refuses_gaps_and_repetitions(self, index):
        """Silence would be a wrong submission."""
        with pytest.raises(ValueError, match="every index from 0 to n - 1 once"):
            one(1).gather_in_order(torch.tensor(index), torch.ones(len(index)))

    @pytest.mark.parametrize(
        ("index", "shown"),
        [
            ([0.0, 1.0], r"shape \(2,\) torch.float32"),
            ([[0], [1]], r"shape \(2, 1\)"),
            (5, r"shape \(\)"),
        ],
    )
    def test_in_order_refuses_what_is_no_index(self, index, shown):
        """Floats, other shapes."""
        with pytest.raises(ValueError, match=f"Expected int64 indices.*{shown}"):
            one(1).gather_in_order(torch.tensor(index), torch.ones(2))

    @pytest.mark.parametrize("make", [list, np.array, torch.tensor])
    def test_in_order_with_a_worker_that_had_no_example(self, make):
        """What it has collected is empty, and of floats by default."""

        def work(strategy):
            numbers = [number for number in range(3) if number % 4 == strategy.worker_index]
            return strategy.gather_in_order(make(numbers), [f"{number}" for number in numbers])

        assert [["0", "1", "2"]] * 4 == simulate(work, num_workers=4)

    @pytest.mark.parametrize("none", [[], torch.empty(0, 2), np.empty((0, 2), np.int64)])
    def test_pairs_in_order_with_a_worker_that_had_no_example(self, none):
        """Nor does it know that the others have pairs."""

        def work(strategy):
            if strategy.worker_index:
                return strategy.gather_in_order(none, [])
            return strategy.gather_in_order([[1, -1], [0, 7], [0, -2]], ["c", "b", "a"])

        assert [["a", "b", "c"]] * 2 == simulate(work, num_workers=2)

    def test_in_order_refuses_pairs_beside_indices(self):
        def work(strategy):
            index = torch.tensor([[0, 1]] if strategy.worker_index else [0])
            with pytest.raises(ValueError, match="one kind, got 1 that stand alone and 1 pairs"):
                strategy.gather_in_order(index, torch.ones(1))

        simulate(work, num_workers=2)

    @pytest.mark.parametrize(
        ("index", "said"),
        [
            ([-1, 0, 1], r"got 3 .*; missing: \[2\], repeated: none, below 0: \[-1\]\. Gather"),
            ([0, 0, 2], r"missing: \[1\], repeated: \[0\]\. Gather"),
            ([0, 1, 3], r"missing: \[2\], repeated: none\. Gather"),
        ],
    )
    def test_in_order_says_which_indices_are_odd(self, index, said):
        with pytest.raises(ValueError, match=said):
            one(1).gather_in_order(torch.tensor(index), torch.ones(3))

    def test_in_order_refuses_other_rows_than_indices_on_all_workers(self):
        """Padded predictions of unpadded ids: the worker's own error, and its words elsewhere."""

        def work(strategy):
            options = tdi.InputOptions(partial_batch="pad")
            dataset = strategy.distribute_dataset(
                torch.arange(7.0), global_batch_size=4, options=options
            )
            iterator, found = iter(dataset), {True: [], False: []}
            ids = []
            for batch, mask in iterator:
                ids.append(torch.as_tensor(iterator.last_step.ids))
                found[True].append({"x": batch[mask], "names": ["a"] * int(mask.sum())})
                found[False].append({"x": batch, "names": ["a"] * int(mask.sum())})
            index = torch.cat(ids)
            with pytest.raises((ValueError, tdi.PeerFailedError)) as caught:
                strategy.gather_in_order(index, torch.cat([step["x"] for step in found[False]]))
            real = torch.cat([step["x"] for step in found[True]])
            return type(caught.value), str(caught.value), strategy.gather_in_order(index, real)

        (first, _, one), (second, said, other) = simulate(work, num_workers=2)
        assert (tdi.PeerFailedError, ValueError) == (first, second)
        assert "a row at value for each of 3 indices, got shape (4,)" in said
        assert "values[mask]" in said
        assert [*range(7)] == one.tolist() == other.tolist()

    @pytest.mark.parametrize(
        ("value", "named"),
        [({"x": torch.ones(3)}, r"value\['x'\]"), (["a"], "value"), (torch.tensor(1), "value")],
    )
    def test_in_order_names_the_leaf_with_other_rows(self, value, named):
        """Tensors, lists and bare numbers."""
        with pytest.raises(ValueError, match=f"Expected a row at {named} for each of 2 indices"):
            one(1).gather_in_order(torch.tensor([1, 0]), value)

    @pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2)])
    def test_in_order_of_files(self, cluster, tmp_path):
        """Pairs of file and record number are sorted by both; a filter leaves gaps."""
        for name in range(3):
            (tmp_path / f"{name}.txt").write_text("".join(f"{name}{n}\n" for n in range(4)))

        def work(strategy):
            files = tdi.FileDataset(str(tmp_path / "*.txt"), shuffle_files=True)
            kept = files.shuffle(3).filter(lambda line: line != "11")
            iterator = iter(strategy.distribute_dataset(kept, global_batch_size=4))
            steps = [(iterator.last_step.ids, step) for step in iterator]
            ids = strategy.run(joined, args=[index for index, _ in steps])
            lines = strategy.run(lambda *parts: [*chain(*parts)], args=[step for _, step in steps])
            return strategy.gather_in_order(ids, lines)

        expected = ["00", "01", "02", "03", "10", "12", "13", "20", "21", "22", "23"]
        for lines in simulate(work, num_workers=cluster[0], replicas_per_worker=cluster[1]):
            assert expected == lines

    def test_in_order_of_files_refuses_repetitions(self):
        """A record that came twice would be a row too many."""
        index = torch.tensor([[0, 1], [1, 0], [0, 1]])
        with pytest.raises(ValueError, match=r"once, got 3 of them; repeated: \[\(0, 1\)\]"):
            one(1).gather_in_order(index, torch.ones(3))
