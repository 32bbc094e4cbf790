"""run, ReplicaContext, reduce, gather and friends."""

from __future__ import annotations

import threading
from functools import partial
from itertools import chain

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import torch_distinput as tdi
from torch_distinput.testing import simulate


def mirrored(num_replicas):
    """Virtual replicas in this process."""
    return tdi.MirroredStrategy(["cpu"] * num_replicas)


def everywhere(work, num_workers, num_replicas):
    """Run on simulated workers and require one result on all."""
    results = simulate(work, num_workers=num_workers, replicas_per_worker=num_replicas)
    assert all(torch.equal(result, results[0]) for result in results)
    return results[0]


def per_replica(strategy, fn):
    """A value for each local replica from its index in sync."""
    return strategy.distribute_values_from_function(lambda c: fn(c.replica_id_in_sync_group))


class TestRun:
    """A step once per local replica."""

    def test_arguments_are_parted_and_results_grouped(self):
        """PerReplica at any depth, in args and kwargs."""
        strategy = mirrored(2)
        x = tdi.PerReplica([1, 2])
        out = strategy.run(lambda a, *, b: {"sum": a["x"] + b}, ({"x": x},), {"b": 10})
        assert {"sum": tdi.PerReplica([11, 12])} == out
        assert ({"sum": 11}, {"sum": 12}) == strategy.local_results(out)

    @pytest.mark.parametrize("value", [3, 3_000_000, 0.5, "a", "a b", b"", True])
    def test_plain_values_are_grouped(self, value):
        """Whether or not Python happens to keep one object of them."""
        out = mirrored(2).run(lambda: (value, None, type(value)(value)))
        assert (tdi.PerReplica([value] * 2), None, tdi.PerReplica([value] * 2)) == out

    def test_what_the_replicas_share_is_returned_as_it_is(self):
        """An object, a tensor, or a member of an enum."""
        shared = (object(), torch.ones(1), tdi.ReduceOp.SUM)
        assert all(a is b for a, b in zip(shared, mirrored(2).run(lambda: shared), strict=True))

    def test_shapes_are_values(self):
        """A torch.Size holds sizes, and no PerReplica; beside one it comes as it was passed."""
        strategy, x = mirrored(2), tdi.PerReplica([torch.ones(3), torch.ones(2)])
        shapes = strategy.run(lambda x, size: (x.shape, size), (x, torch.Size([4])))
        assert (x[0].shape, torch.Size([4])) == strategy.local_results(shapes)[0]
        assert (x[1].shape, torch.Size([4])) == strategy.local_results(shapes)[1]
        assert torch.Size is type(shapes[0][0])

    def test_results_of_a_class_that_their_values_do_not_make(self):
        """They are grouped in a dict."""

        class Tagged(dict):
            def __init__(self, values, *, tag):
                super().__init__(values)
                self.tag = tag

        out = mirrored(2).run(lambda: Tagged({"a": 1}, tag="t"))
        assert ({"a": tdi.PerReplica([1, 1])}, dict) == (out, type(out))

    def test_one_replica_gets_bare_values_in_the_calling_thread(self):
        """R = 1 needs no thread."""
        strategy = mirrored(1)
        assert threading.current_thread() is strategy.run(threading.current_thread)

    def test_calls_take_turns_in_replica_order(self):
        """One at a time, handing over at collectives."""
        seen = []

        def step():
            context = tdi.get_replica_context()
            for part in range(2):
                seen.append((part, context.replica_id_in_sync_group))
                context.all_reduce("sum", 1)

        mirrored(3).run(step)
        assert [(part, replica) for part in range(2) for replica in range(3)] == seen

    def test_thread_state_is_carried_over(self):
        """Grad mode, inference mode and autocast hold inside."""
        strategy = mirrored(2)

        def state():
            return (
                torch.is_grad_enabled(),
                torch.is_inference_mode_enabled(),
                torch.is_autocast_enabled("cpu"),
                torch.get_autocast_dtype("cpu"),
            )

        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            inside = strategy.run(lambda: str(state()))
            assert {str(state())} == set(strategy.local_results(inside))
        with torch.inference_mode():
            inside = strategy.run(lambda: str(state()))
            assert {str(state())} == set(strategy.local_results(inside))

    def test_the_default_device_is_carried_over(self):
        """That of a block and that of the thread."""
        strategy = mirrored(2)

        def kinds():
            return [b.type for b in strategy.local_results(strategy.run(torch.get_default_device))]

        assert ["cpu", "cpu"] == kinds()
        with torch.device("meta"):
            assert ["meta", "meta"] == kinds()
        torch.set_default_device("meta")
        try:
            assert ["meta", "meta"] == kinds()
        finally:
            torch.set_default_device(None)

    def test_hooks_of_saved_tensors_are_carried_over(self):
        """Those around the run see the tensors of every replica, and none stays behind."""
        packed = []
        weight = torch.ones(2, requires_grad=True)
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda x: packed.append(x) or x, lambda x: x
        )
        with hooks:
            mirrored(3).run(torch.mul, (weight, weight))
        assert 6 == len(packed)
        mirrored(3).run(torch.mul, (weight, weight))
        assert 6 == len(packed)

    @pytest.mark.parametrize("base", [TorchDispatchMode, TorchFunctionMode])
    def test_modes_are_carried_over(self, base):
        """Entered once, they see what every replica does, also after a collective and an error."""

        class Seen(base):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                return self.note(func, args, kwargs)

            def __torch_function__(self, func, types, args=(), kwargs=None):
                return self.note(func, args, kwargs)

            def note(self, func, args, kwargs):
                name = getattr(func, "__name__", "").partition(".")[0]
                seen.extend([name] if name in ("mul", "sub") else [])
                return func(*args, **(kwargs or {}))

        def step():
            value = torch.ones(1) * 2
            tdi.get_replica_context().all_reduce("sum", 1)
            return value - 1

        seen = []
        with Seen():
            mirrored(2).run(step)
            with pytest.raises(KeyError):
                mirrored(2).run(lambda: {}["x"])
            torch.ones(1) * 2
        torch.ones(1) * 2
        assert ["mul", "mul", "sub", "sub", "mul"] == seen

    def test_an_error_is_raised_as_it_is(self):
        """And the other replicas are unwound, their ``finally`` blocks run."""
        unwound = []

        def step():
            context = tdi.get_replica_context()
            try:
                if context.local_replica == 1:
                    msg = "broken"
                    raise KeyError(msg)
                context.all_reduce("sum", 1)
            finally:
                unwound.append(context.local_replica)

        before = set(threading.enumerate())
        with pytest.raises(KeyError, match="broken"):
            mirrored(3).run(step)
        assert [1, 0] == unwound
        assert set(threading.enumerate()) <= before

    @pytest.mark.parametrize("replica", [0, 1])
    def test_unequal_collective_calls_are_refused(self, replica):
        """A replica that returns while another waits would be a hang elsewhere."""

        def step():
            context = tdi.get_replica_context()
            if context.local_replica == replica:
                context.all_reduce("sum", 1)

        with pytest.raises(tdi.UsageError, match="same collective calls.*has returned"):
            mirrored(2).run(step)

    def test_merge_call(self):
        """Once, outside the replicas, with PerReplica arguments."""

        def work(strategy):
            def merge(inner, ids, *, plus):
                assert tdi.get_replica_context() is None
                assert inner is strategy
                return inner.reduce("sum", ids) + plus, ids

            def step():
                context = tdi.get_replica_context()
                mine = torch.tensor(context.replica_id_in_sync_group + 1.0)
                total, back = context.merge_call(merge, (mine,), {"plus": 1 + 0.5 - 0.5})
                assert torch.equal(mine, back)
                return total

            return strategy.local_results(strategy.run(step))[0]

        assert 11.0 == everywhere(work, 2, 2)

    def test_collectives_inside(self):
        """all_reduce and all_gather over all replicas in sync."""

        def work(strategy):
            def step():
                context = tdi.get_replica_context()
                rank = context.replica_id_in_sync_group
                mean = context.all_reduce("mean", {"a": torch.tensor(float(rank))})["a"]
                joined = context.all_gather(torch.full((rank,), rank))
                return torch.cat([mean[None], joined.float()])

            return strategy.local_results(strategy.run(step))[-1]

        for cluster in ((2, 2), (1, 4), (4, 1)):
            assert [1.5, 1, 2, 2, 3, 3, 3] == everywhere(work, *cluster).tolist()

    def test_refusals(self):
        """What belongs outside stays outside; args is a sequence."""
        strategy = mirrored(2)
        dataset = strategy.distribute_dataset(range(4), global_batch_size=4)
        iterator = iter(dataset)
        for call in (
            lambda: next(iterator),
            lambda: iter(dataset),
            lambda: strategy.reduce("sum", 1),
            lambda: strategy.gather(torch.ones(1)),
            lambda: strategy.run(lambda: 1),
        ):
            with pytest.raises(tdi.UsageError):
                strategy.run(call)
        with pytest.raises(TypeError, match="args must be a list or tuple"):
            strategy.run(lambda x: x, torch.ones(2))
        assert [[0, 1], [2, 3]] == [b.tolist() for b in next(iterator)]

    def test_contexts(self):
        """None outside; the current strategy inside and in scope."""
        strategy = mirrored(2)
        assert tdi.get_replica_context() is None
        assert tdi.get_strategy() is None
        assert strategy is strategy.run(tdi.get_strategy)
        with strategy.scope() as entered:
            assert entered is tdi.get_strategy() is strategy

    def test_two_strategies_do_not_mix(self):
        """A dataset of one under the scope of another."""
        one, other = mirrored(1), mirrored(2)
        dataset = one.distribute_dataset(range(4), global_batch_size=4)
        with other.scope(), pytest.raises(tdi.UsageError, match="Mixing two strategies"):
            iter(dataset)
        with other.scope(), pytest.raises(tdi.UsageError, match="Mixing two strategies"):
            one.run(lambda: 1)


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
        out = mirrored(2).reduce("sum", {"a": tdi.PerReplica([1, 2]), "b": [torch.ones(2)]})
        assert 3 == out["a"]
        assert [2.0, 2.0] == out["b"][0].tolist()
        mean = mirrored(1).reduce("mean", torch.tensor([1, 2], dtype=torch.int16), 0)
        assert (torch.float32, 1.5) == (mean.dtype, mean.item())
        bright = torch.full((3,), 200, dtype=torch.uint8)  # their sum does not fit
        assert 200 == mirrored(1).reduce("mean", bright, 0)

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
        means = mirrored(2).run(lambda: tdi.get_replica_context().all_reduce("mean", large))
        assert [40000.0, 40000.0] == [mean.item() for mean in means]

    @pytest.mark.parametrize(
        "dtype", [torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.bool]
    )
    @pytest.mark.parametrize("axis", [None, 0])
    def test_sums_of_small_integers_are_int64(self, dtype, axis):
        """As torch.sum's are: nothing wraps around."""
        largest = 1 if dtype is torch.bool else torch.iinfo(dtype).max
        values = torch.full((10,), largest, dtype=dtype)
        total = mirrored(2).reduce("sum", values, axis=axis)
        assert torch.int64 is total.dtype
        assert 20 * largest == total.sum()

    @pytest.mark.parametrize(("dtype", "large"), [(torch.int64, 2**62), (torch.uint64, 2**63)])
    @pytest.mark.parametrize("axis", [None, 0])
    def test_large_integers_average_to_what_they_are(self, dtype, large, axis):
        """Their sum does not fit into 64 bits."""
        mean = mirrored(2).reduce("mean", torch.full((4,), large, dtype=dtype), axis=axis)
        assert (torch.float32, large) == (mean.dtype, mean.max().item())

    def test_all_empty_is_nan(self):
        """0 / 0, as in TensorFlow."""
        assert mirrored(2).reduce("mean", tdi.PerReplica([torch.ones(0)] * 2), 0).isnan()

    @pytest.mark.parametrize("cluster", [(1, 2), (2, 1)])
    def test_shapes_that_differ_are_an_error_everywhere(self, cluster):
        """Not an abort of the process."""

        def work(strategy):
            value = per_replica(strategy, lambda replica: torch.ones(replica + 1))
            with pytest.raises((ValueError, tdi.MismatchError), match="axis=0 or gather"):
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
            mirrored(1).reduce("max", 1)
        with pytest.raises(TypeError, match="tensor or number at value"):
            mirrored(1).reduce("sum", "text")


def joined(*parts):
    """One replica's rows of all steps."""
    return np.concatenate(parts)


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
            mirrored(1).gather(torch.tensor(1))
        with pytest.raises(ValueError, match="one shape"):
            mirrored(2).gather(tdi.PerReplica([torch.ones(1, 2), torch.ones(1, 3)]))

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
        strategy = mirrored(replicas)
        iterator = iter(strategy.distribute_dataset(range(8), global_batch_size=8, shuffle=True))
        step = next(iterator)
        assert [*range(8)] == strategy.gather_in_order(iterator.last_step.ids, step).tolist()

    @pytest.mark.parametrize("index", [[0, 1, 1], [0, 2, 3], [-1, 0, 1], [0, 1, 10**15]])
    def test_in_order_refuses_gaps_and_repetitions(self, index):
        """Silence would be a wrong submission."""
        with pytest.raises(ValueError, match="every index from 0 to n - 1 once"):
            mirrored(1).gather_in_order(torch.tensor(index), torch.ones(len(index)))

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
            mirrored(1).gather_in_order(torch.tensor(index), torch.ones(2))

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
            mirrored(1).gather_in_order(torch.tensor([1, 0]), value)

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
            mirrored(1).gather_in_order(index, torch.ones(3))


def test_values_from_function():
    """Kept as they are, grouped by leaf."""

    def work(strategy):
        return strategy.distribute_values_from_function(
            lambda c: {"id": c.replica_id_in_sync_group, "n": c.num_replicas_in_sync}
        )

    first, second = simulate(work, num_workers=2, replicas_per_worker=2)
    assert {"id": tdi.PerReplica([0, 1]), "n": tdi.PerReplica([4, 4])} == first
    assert tdi.PerReplica([2, 3]) == second["id"]


def test_local_results():
    """One structure per replica; a plain value is the only result."""
    assert (5,) == mirrored(2).local_results(5)
    expected = ((1, "a"), (2, "a"))
    assert expected == mirrored(2).local_results((tdi.PerReplica([1, 2]), "a"))


def test_aliases():
    """tf.distribute's own spellings."""
    strategy = mirrored(2)
    (step,) = strategy.experimental_distribute_dataset(range(2), global_batch_size=2)
    assert 2 == len(strategy.experimental_local_results(step))
    assert strategy.experimental_distribute_values_from_function(lambda c: 1) == (1, 1)
    dataset = strategy.experimental_distribute_datasets_from_function(lambda c: [torch.ones(1)])
    assert 1 == len(list(dataset))


def test_per_replica():
    """A tuple with the repr of TensorFlow, which survives pickling."""
    import pickle

    value = tdi.PerReplica(["a", "b"])
    assert ("a", "b") == value.values
    assert "PerReplica:{\n  0: 'a'\n  1: 'b'\n}" == repr(value)
    assert value == pickle.loads(pickle.dumps(value))
    assert isinstance(pickle.loads(pickle.dumps(value)), tdi.PerReplica)
