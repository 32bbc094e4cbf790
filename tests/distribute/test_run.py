"""run, ReplicaContext, reduce, gather and friends."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import torch_distinput as tdi
from tests.distribute.replicas import everywhere
from tests.distribute.street import one
from torch_distinput.testing import simulate


class TestRun:
    """A step once per local replica."""

    def test_arguments_are_parted_and_results_grouped(self):
        """PerReplica at any depth, in args and kwargs."""
        strategy = one(2)
        x = tdi.PerReplica([1, 2])
        out = strategy.run(lambda a, *, b: {"sum": a["x"] + b}, ({"x": x},), {"b": 10})
        assert {"sum": tdi.PerReplica([11, 12])} == out
        assert ({"sum": 11}, {"sum": 12}) == strategy.local_results(out)

    @pytest.mark.parametrize("value", [3, 3_000_000, 0.5, "a", "a b", b"", True])
    def test_plain_values_are_grouped(self, value):
        """Whether or not Python happens to keep one object of them."""
        out = one(2).run(lambda: (value, None, type(value)(value)))
        assert (tdi.PerReplica([value] * 2), None, tdi.PerReplica([value] * 2)) == out

    def test_what_the_replicas_share_is_returned_as_it_is(self):
        """An object, a tensor, or a member of an enum."""
        shared = (object(), torch.ones(1), tdi.ReduceOp.SUM)
        assert all(a is b for a, b in zip(shared, one(2).run(lambda: shared), strict=True))

    def test_a_tensor_that_the_replicas_share_counts_for_each(self):
        """Such as the loss that all return for a batch of zero rows."""
        strategy, shared = one(2), torch.ones(1)
        found = strategy.run(lambda: shared)
        assert 2 == strategy.reduce("sum", found)
        assert [1, 1] == strategy.gather(found).tolist()
        with pytest.raises(ValueError, match="got one Tensor"):
            strategy.reduce("sum", found + 0)

    def test_shapes_are_values(self):
        """A torch.Size holds sizes, and no PerReplica; beside one it comes as it was passed."""
        strategy, x = one(2), tdi.PerReplica([torch.ones(3), torch.ones(2)])
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

        out = one(2).run(lambda: Tagged({"a": 1}, tag="t"))
        assert ({"a": tdi.PerReplica([1, 1])}, dict) == (out, type(out))

    def test_one_replica_gets_bare_values_in_the_calling_thread(self):
        """R = 1 needs no thread."""
        strategy = one(1)
        assert threading.current_thread() is strategy.run(threading.current_thread)

    def test_calls_take_turns_in_replica_order(self):
        """One at a time, handing over at collectives."""
        seen = []

        def step():
            context = tdi.get_replica_context()
            for part in range(2):
                seen.append((part, context.replica_id_in_sync_group))
                context.all_reduce("sum", 1)

        one(3).run(step)
        assert [(part, replica) for part in range(2) for replica in range(3)] == seen

    def test_thread_state_is_carried_over(self):
        """Grad mode, inference mode and autocast hold inside."""
        strategy = one(2)

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
        strategy = one(2)

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
            one(3).run(torch.mul, (weight, weight))
        assert 6 == len(packed)
        one(3).run(torch.mul, (weight, weight))
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
            one(2).run(step)
            with pytest.raises(KeyError):
                one(2).run(lambda: {}["x"])
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
            one(3).run(step)
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
            one(2).run(step)

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
        strategy = one(2)
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
        strategy = one(2)
        assert tdi.get_replica_context() is None
        assert tdi.get_strategy() is None
        assert strategy is strategy.run(tdi.get_strategy)
        with strategy.scope() as entered:
            assert entered is tdi.get_strategy() is strategy

    def test_two_strategies_do_not_mix(self):
        """A dataset of one under the scope of another."""
        first, other = one(1), one(2)
        dataset = first.distribute_dataset(range(4), global_batch_size=4)
        with other.scope(), pytest.raises(tdi.UsageError, match="Mixing two strategies"):
            iter(dataset)
        with other.scope(), pytest.raises(tdi.UsageError, match="Mixing two strategies"):
            first.run(lambda: 1)


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
    assert (5,) == one(2).local_results(5)
    expected = ((1, "a"), (2, "a"))
    assert expected == one(2).local_results((tdi.PerReplica([1, 2]), "a"))


def test_aliases():
    """tf.distribute's own spellings."""
    strategy = one(2)
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
