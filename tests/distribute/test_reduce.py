"""strategy.reduce: sums and means over replicas and workers, in every dtype."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

import torch_distinput as tdi
from tests.distribute.replicas import everywhere, per_replica
from tests.distribute.street import one
from torch_distinput.testing import simulate


class TestReduce:
    """Values of all replicas into one."""

    @pytest.mark.parametrize("cluster", [(1, 3), (3, 1)])
    @pytest.mark.parametrize(
        ("op", "axis", "values", "expected"),
        [
            ("sum", None, [1.0, 2.0, 3.0], 6.0),
            ("MEAN", None, [1.0, 2.0, 6.0], 3.0),
            (tdi.ReduceOp.MEAN, None, [1, 2, 4], 7 / 3),  # integers average to float32
            ("mean", 0, [[1.0, 2.0, 3.0], [10.0], []], 4.0),  # weighted by rows
            ("sum", 0, [[1, 2], [3], []], 6),
            ("mean", 0, [[1, 2], [4], []], 7 / 3),
            ("mean", (0, 1), [[[1.0, 2.0]], [[3.0, 4.0]], [[5.0, 9.0]]], 4.0),
            ("sum", -1, [[[1.0, 2.0]], [[3.0, 4.0]], [[5.0, 6.0]]], [21.0]),
        ],
    )
    def test_table(self, cluster, op, axis, values, expected):
        """One tensor, the same on every worker."""
        dtype = torch.tensor(values[0]).dtype

        def work(strategy):
            value = per_replica(strategy, lambda r: torch.tensor(values[r], dtype=dtype))
            return strategy.reduce(op, value, axis)

        result = everywhere(work, *cluster)
        assert torch.allclose(torch.tensor(expected, dtype=result.dtype), result)

    def test_structures_and_dtypes(self):
        """Leaf by leaf; a sum of floats keeps its dtype, a mean of integers is float32."""
        ones = tdi.PerReplica([torch.ones(2)] * 2)
        out = one(2).reduce("sum", {"a": tdi.PerReplica([1, 2]), "b": [ones]})
        assert 3 == out["a"]
        assert [2.0, 2.0] == out["b"][0].tolist()
        mean = one(1).reduce("mean", torch.tensor([1, 2], dtype=torch.int16), 0)
        assert (torch.float32, 1.5) == (mean.dtype, mean.item())
        bright = torch.full((3,), 200, dtype=torch.uint8)  # their sum does not fit
        assert 200 == one(1).reduce("mean", bright, 0)

    @pytest.mark.parametrize("cluster", [(1, 2), (2, 1)])
    @pytest.mark.parametrize("op", ["sum", "mean"])
    def test_floats_of_python_keep_their_bits(self, cluster, op):
        """A float32 ends at 2**24: a count in a float would be wrong, or a time since 1970."""
        large = 2.0**24 + 1

        def work(strategy):
            total = strategy.reduce(op, per_replica(strategy, lambda replica: large))
            rows = strategy.reduce(op, {"x": per_replica(strategy, lambda replica: [large, 0.5])})
            first = strategy.reduce(op, per_replica(strategy, lambda replica: [0.5, large]), axis=0)
            return torch.stack([total, *rows["x"], first])

        found, times = everywhere(work, *cluster), 2 if op == "sum" else 1
        parts = 1 if op == "sum" else 2  # of the mean over an axis
        expected = [times * large, times * large, times * 0.5, times * (large + 0.5) / parts]
        assert (torch.float64, expected) == (found.dtype, found.tolist())

    def test_a_float_of_python_beside_a_tensor(self):
        """A total to which one worker has added nothing is what that of the other is."""

        def work(strategy):
            return strategy.reduce("sum", torch.tensor(1.5) if strategy.worker_index else 0.0)

        for total in simulate(work, num_workers=2):
            assert (torch.float32, 1.5) == (total.dtype, total.item())
        both = one(2).reduce("sum", tdi.PerReplica([0.0, torch.tensor(1.5)]))
        assert (torch.float32, 1.5) == (both.dtype, both.item())

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            ((2.0**24 + 1, 0), (torch.float64, 2.0**24 + 1)),
            ((0, 1.5), (torch.float64, 1.5)),
            ((True, 0.1), (torch.float64, 1.1)),
            ((True, 5), (torch.int64, 6)),
            ((np.float64(0.1), 0.2), (torch.float64, np.float64(0.1) + 0.2)),
            ((torch.tensor(1.5), 2), (torch.float32, 3.5)),
        ],
    )
    def test_numbers_of_several_kinds(self, values, expected):
        """Whole numbers beside floats, and numbers beside a tensor, on one worker."""
        total = one(2).reduce("sum", tdi.PerReplica(values))
        assert expected == (total.dtype, total.item())

    @pytest.mark.parametrize(
        ("number", "dtype"),
        [(1.5, torch.int64), (300, torch.uint8), (-1, torch.uint8), (2**40, torch.int32)],
    )
    def test_a_number_of_python_is_not_cut(self, number, dtype):
        with pytest.raises(ValueError, match="one dtype"):
            one(2).reduce("sum", tdi.PerReplica([number, torch.tensor(2, dtype=dtype)]))

    def test_an_axis_that_comes_twice(self):
        with pytest.raises(ValueError, match="each axis once"):
            one(2).reduce("sum", tdi.PerReplica([torch.ones(2, 3)] * 2), axis=(0, -2))

    @pytest.mark.parametrize("cluster", [(1, 2), (2, 1)])
    @pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e5m2])
    def test_halves_are_added_up_in_float32(self, cluster, dtype):
        """The mean is finite where the sum of two would not be, and a half again."""

        def work(strategy):
            large = torch.finfo(dtype).max
            scalar, rows = torch.tensor(large, dtype=dtype), torch.full((3,), large).to(dtype)
            return strategy.reduce("mean", scalar), strategy.reduce("mean", rows, axis=0)

        for means in simulate(work, num_workers=cluster[0], replicas_per_worker=cluster[1]):
            assert [dtype] * 2 == [mean.dtype for mean in means]
            assert [torch.finfo(dtype).max] * 2 == [mean.item() for mean in means]

    @pytest.mark.parametrize("cluster", [(1, 4), (4, 1)])
    def test_what_is_small_beside_a_sum_of_halves_counts(self, cluster):
        """256 + 1 is 256 in bfloat16, as often as it is done."""

        def work(strategy):
            value = per_replica(strategy, lambda r: torch.tensor(1.0 if r else 256.0).bfloat16())
            return strategy.reduce("sum", value)

        assert 260 == everywhere(work, *cluster)  # 259, rounded once

    def test_halves_are_added_up_in_float32_inside_run(self):
        """all_reduce is the same sum."""
        large = torch.tensor(40000.0, dtype=torch.float16)
        means = one(2).run(lambda: tdi.get_replica_context().all_reduce("mean", large))
        assert [40000.0, 40000.0] == [mean.item() for mean in means]

    @pytest.mark.parametrize(
        "dtype", [torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.bool]
    )
    @pytest.mark.parametrize("axis", [None, 0])
    def test_sums_of_small_integers_are_int64(self, dtype, axis):
        """As torch.sum's are: nothing wraps around."""
        largest = 1 if dtype is torch.bool else torch.iinfo(dtype).max
        values = torch.full((10,), largest, dtype=dtype)
        total = one(2).reduce("sum", tdi.PerReplica((values, values)), axis=axis)
        assert torch.int64 is total.dtype
        assert 20 * largest == total.sum()

    @pytest.mark.parametrize(("dtype", "large"), [(torch.int64, 2**62), (torch.uint64, 2**63)])
    @pytest.mark.parametrize("axis", [None, 0])
    def test_large_integers_average_to_what_they_are(self, dtype, large, axis):
        """Their sum does not fit into 64 bits."""
        mean = one(2).reduce("mean", torch.full((4,), large, dtype=dtype), axis=axis)
        assert (torch.float32, large) == (mean.dtype, mean.max().item())

    def test_all_empty_is_nan(self):
        """0 / 0, as in TensorFlow."""
        assert one(2).reduce("mean", tdi.PerReplica([torch.ones(0)] * 2), 0).isnan()

    @pytest.mark.parametrize("cluster", [(1, 2), (2, 1)])
    def test_shapes_that_differ_are_an_error_everywhere(self, cluster):
        """Not an abort of the process."""

        def work(strategy):
            value = per_replica(strategy, lambda replica: torch.ones(replica + 1))
            with pytest.raises((ValueError, tdi.MismatchError), match="in a gather or over axis=0"):
                strategy.reduce("sum", value)
            with pytest.raises(ValueError, match="axis 3"):
                strategy.reduce("sum", value, axis=3)
            return torch.ones(1)

        everywhere(work, *cluster)

    @pytest.mark.parametrize(
        ("values", "got"),
        [
            ([[torch.ones(1)], [torch.ones(1)] * 2], r"no such leaf.* worker 0 .*value\[1\]"),
            ([{"a": torch.ones(1)}, {"b": torch.ones(1)}], r"value\['b'\]"),
            ([["x", "y"], torch.ones(2)], "'list'"),
            ([(), torch.ones(1)], "no such leaf"),
        ],
    )
    def test_structures_that_differ_are_an_error_everywhere(self, values, got):
        """Also in the number of leaves, and a list where others have a tensor: nobody hangs."""

        def work(strategy):
            with pytest.raises(tdi.MismatchError, match=got):
                strategy.gather(values[strategy.worker_index])

        simulate(work, num_workers=2)

    def test_a_value_that_is_refused_on_one_worker_is_told_to_all(self):
        """The others hear of it instead of waiting in the collective."""

        def work(strategy):
            broken = strategy.worker_index == 1
            error = TypeError if broken else tdi.PeerFailedError
            with pytest.raises(error, match="tensor or number at value"):
                strategy.reduce("sum", "text" if broken else 1.0)

        simulate(work, num_workers=2)

    def test_a_worker_that_has_returned_is_named(self):
        """In the simulation too, by an error that users can catch."""

        def work(strategy):
            if strategy.worker_index == 0:
                with pytest.raises(tdi.PeerFailedError, match="worker 1 left the simulation"):
                    strategy.reduce("sum", 1)

        simulate(work, num_workers=2)

    @pytest.mark.parametrize("num_workers", [1, 2])
    @pytest.mark.parametrize("make", [
        lambda: torch.ones(2, 2).to_sparse(),
        lambda: torch.nested.nested_tensor([torch.ones(1)], layout=torch.jagged),
        lambda: torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.quint8),
    ], ids=["sparse", "jagged", "quantized"])  # fmt: skip
    @pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
    def test_tensors_that_are_not_dense_are_refused(self, num_workers, make):
        """With any number of workers, before a backend meets them."""
        value = make()

        def work(strategy):
            for call in (strategy.gather, partial(strategy.reduce, "sum")):
                with pytest.raises(TypeError, match=r"a dense tensor at value.*to_dense\(\)"):
                    call(value)

        simulate(work, num_workers=num_workers)

    def test_nonsense_is_refused(self):
        """Unknown operations and values that are no numbers."""
        with pytest.raises(ValueError, match="'sum', 'mean', got 'max'"):
            one(1).reduce("max", 1)
        with pytest.raises(TypeError, match="tensor or number at value"):
            one(1).reduce("sum", "text")


@pytest.mark.parametrize(
    "combine",
    [
        lambda strategy, value: strategy.reduce("sum", value),
        lambda strategy, value: strategy.reduce("sum", value, axis=0),
        lambda strategy, value: strategy.gather(value),
        lambda strategy, value: strategy.gather_in_order(torch.arange(2), value),
    ],
)
def test_what_a_worker_has_once_does_not_count_for_each_replica(combine):
    """Such as a total that a loop has added up: TensorFlow refuses it, too."""
    total = torch.ones(2)
    with pytest.raises(ValueError, match="with what each of the 2 local replicas has, got one"):
        combine(one(2), total)
    combine(one(1), total)


def test_what_each_worker_has_once_is_added_up_beside_zeros():
    """Exactly, as the mean of whole numbers would not be."""

    def work(strategy):
        total = 2**24 + torch.tensor(strategy.worker_index)
        return strategy.reduce("sum", tdi.PerReplica((total, 0 * total))).item()

    assert [3 * 2**24 + 3] * 3 == simulate(work, num_workers=3, replicas_per_worker=2)


def test_a_merge_call_adds_up_what_is_equal_on_the_replicas():
    """By chance or not: it was made by each of them."""

    def add_up(strategy, value):
        return strategy.reduce("sum", value)

    totals = one(2).run(lambda: tdi.get_replica_context().merge_call(add_up, args=(3,)))
    assert 6 == totals  # one object for both
    with pytest.raises(ValueError, match="got one int"):
        one(2).reduce("sum", 3)


@pytest.mark.parametrize(("op", "factor"), [("sum", 2), ("mean", 1)])
def test_no_axis_is_no_axis(op, factor):
    """To torch.sum an empty tuple is all of them."""
    value = torch.arange(6.0).view(2, 3)
    reduced = one(2).reduce(op, tdi.PerReplica((value, value)), axis=())
    assert torch.equal(factor * value, reduced)


def test_replicas_of_one_worker_have_one_dtype():
    """As workers do: the sum of a half and a float was that of halves."""
    values = tdi.PerReplica((torch.tensor(1.0, dtype=torch.float16), torch.tensor(1e6)))
    with pytest.raises(ValueError, match="tensors of one dtype"):
        one(2).reduce("sum", values)
    for pair in ((torch.tensor(0.5), 0), (0, torch.tensor(0.5))):  # a loss, and none
        total = one(2).reduce("sum", tdi.PerReplica(pair))
        assert (torch.float32, 0.5) == (total.dtype, total.item())
