"""partial_batch="pad": one shape in all steps, and everything else as without it."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import torch_distinput as tdi
from tests.distribute.masks import PAD, masked
from tests.distribute.street import Shards, listed, one, options, stream_of, write_files
from torch_distinput.testing import assert_resumes_everywhere, simulate

clusters = st.tuples(st.integers(1, 3), st.integers(1, 3))
rules = st.sampled_from(["split", "even", "cycle"])


def played(source, size, cluster, option, **keywords):
    """Per worker the steps, and everything that is counted."""

    def work(strategy):
        dataset = strategy.distribute_dataset(
            source, global_batch_size=size, options=option, **keywords
        )
        iterator = iter(dataset)
        steps, facts = [], []
        for step in iterator:
            last = iterator.last_step
            steps.append(strategy.local_results(step))
            ids = [own.tolist() for own in strategy.local_results(last.ids)]
            facts += [replace(last, ids=None, padded_rows=None), ids, dataset.state_dict()]
        stats = replace(iterator.stats(), wait_seconds=0.0)
        return steps, [*facts, stats]

    results = simulate(work, num_workers=cluster[0], replicas_per_worker=cluster[1])
    return [steps for steps, _ in results], [facts for _, facts in results]


@pytest.mark.slow
@given(
    st.lists(st.integers(0, 9), min_size=3, max_size=5), st.integers(1, 9), clusters, rules,
    st.sampled_from(["data", "file", "off"]), st.sampled_from(["shards", "indexed", "stream"]),
    st.booleans(),
)  # fmt: skip
def test_only_shapes_differ(lengths, size, cluster, rebatch, policy, kind, drop_last):
    """C1 and C2 by the mask; steps, counts, ids, states and stats are those of zero rows."""
    numbers = itertools.count(1)
    shards = [list(itertools.islice(numbers, length)) for length in lengths]
    flat = [x for shard in shards for x in shard]
    sources = {"shards": Shards(shards), "indexed": flat, "stream": stream_of(flat)}
    policy = "data" if policy == "file" and kind != "shards" else policy
    option = options(auto_shard_policy=policy, rebatch=rebatch, audit=True)
    arguments = sources[kind], size, cluster
    plain, plain_facts = played(*arguments, option, drop_last=drop_last)
    padding = replace(option, partial_batch="pad")
    pairs, facts = played(*arguments, padding, drop_last=drop_last)

    assert plain_facts == facts
    num_rows = -(-size // (cluster[0] * cluster[1]))
    expected = [[[listed(batch) for batch in step] for step in worker] for worker in plain]
    assert expected == masked(pairs, num_rows)


@pytest.mark.slow
@given(st.integers(1, 30), st.integers(1, 8), clusters, rules, st.integers(1, 8), clusters, rules)
def test_states_go_on_under_the_other_option(count, size, here, rule, other_size, there, other):
    """C4 over both options, whatever else changes: the same examples in the same order."""

    def work(strategy, size, option, state, steps):
        dataset = strategy.distribute_dataset(
            stream_of(range(count)), global_batch_size=size, options=option
        )
        if state is not None:
            dataset.load_state_dict(json.loads(state))
        some = list(itertools.islice(dataset, steps))
        return [strategy.local_results(step) for step in some], json.dumps(dataset.state_dict())

    def ran(cluster, size, option, state=None, steps=None):
        results = simulate(
            lambda strategy: work(strategy, size, option, state, steps),
            num_workers=cluster[0], replicas_per_worker=cluster[1],
        )  # fmt: skip
        workers = [steps for steps, _ in results]
        if option.partial_batch == "pad":
            workers = masked(workers, -(-size // (cluster[0] * cluster[1])))
        else:
            workers = [[[listed(batch) for batch in s] for s in worker] for worker in workers]
        rows = zip(*workers, strict=True)
        return [x for step in rows for worker in step for b in worker for x in b], results[0][1]

    for first, second in (("pad", "zero_rows"), ("zero_rows", "pad"), ("pad", "pad")):
        begun, state = ran(here, size, options(partial_batch=first, rebatch=rule), steps=1)
        rest, _ = ran(there, other_size, options(partial_batch=second, rebatch=other), state)
        assert list(range(count)) == begun + rest


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["data", "file"])
def test_resumes_everywhere(tmp_path, policy):
    """C4 at every position, from files that are dealt out too, and on other clusters."""
    glob = write_files(tmp_path, [range(1, 6), range(10, 13), range(20, 29)])
    files = tdi.FileDataset(glob).map(int)
    option = options(partial_batch="pad", auto_shard_policy=policy)
    assert_resumes_everywhere(
        lambda strategy: strategy.distribute_dataset(files, global_batch_size=5, options=option),
        replicas_per_worker=2,
    )


def test_a_loss_without_a_value_at_zero():
    """Partial batches have no rows of zeros: a NaN gradient there would reach the parameters."""
    weight = torch.ones(2, requires_grad=True)
    data = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    for x, _ in one().distribute_dataset(data, global_batch_size=4, options=PAD):
        tdi.compute_average_loss((x * weight).log().sum(1)).backward()
    torch.testing.assert_close(weight.grad, torch.ones(2))


@pytest.mark.slow
@given(st.integers(1, 20), st.integers(1, 9), clusters, rules)
def test_gradients_are_those_of_one_process(count, size, cluster, rebatch):
    """C5: of each step, whoever has rows."""
    generator = torch.Generator().manual_seed(count)
    features = torch.rand(count, 3, generator=generator) + 0.5
    labels = torch.randint(0, 2, (count,), generator=generator)
    weight = torch.rand(3, 2, generator=generator, requires_grad=True)
    bias = torch.rand(2, generator=generator, requires_grad=True)

    def losses(x, y):
        logits = (x + 0.1).log() @ weight + bias
        return torch.nn.functional.cross_entropy(logits, y, reduction="none")

    def work(strategy):
        dataset = strategy.distribute_dataset(
            (features, labels), global_batch_size=size,
            options=options(partial_batch="pad", rebatch=rebatch),
        )  # fmt: skip

        def gradients(step):
            (x, y), mask = step
            loss = tdi.compute_average_loss(losses(x, y))
            given = tdi.compute_average_loss(
                losses(x, y), num_examples=iterator.last_step.num_examples, mask=mask
            )
            assert loss == given
            return torch.autograd.grad(loss, [weight, bias])

        iterator = iter(dataset)
        return [strategy.reduce("sum", strategy.run(gradients, (step,))) for step in iterator]

    for worker in simulate(work, num_workers=cluster[0], replicas_per_worker=cluster[1]):
        for number, got in enumerate(worker):
            rows = slice(number * size, (number + 1) * size)
            loss = losses(features[rows], labels[rows]).mean()
            wanted = torch.autograd.grad(loss, [weight, bias])
            torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-5)


class TestLoss:
    """compute_average_loss leaves padding out."""

    def test_whatever_the_loss_is_there(self):
        """Infinite or NaN: it is not multiplied by the mask, and has no gradient."""
        dataset = one().distribute_dataset(torch.ones(5), global_batch_size=4, options=PAD)
        full, (batch, mask) = dataset
        assert [True] * 4 == full[1].tolist()
        loss = batch.clone().requires_grad_()
        average = tdi.compute_average_loss(torch.where(mask, loss, torch.nan))
        average.backward()
        assert 1 == average
        assert [1, 0, 0, 0] == loss.grad.tolist()
        several = torch.where(mask[:, None, None], torch.ones(4, 2, 3), torch.inf)
        assert 6 == tdi.compute_average_loss(several)

    def test_a_replica_without_examples_gives_zero(self):
        """Its loss may be anything."""
        strategy = one(2)
        dataset = strategy.distribute_dataset(torch.ones(1), global_batch_size=4, options=PAD)

        def average(batch, mask):
            return tdi.compute_average_loss(batch + 7)

        (step,) = dataset
        assert (8.0, 0.0) == strategy.run(average, step).values

    def test_other_rows_are_refused(self):
        """Also as many as there are examples: a loss of what was selected needs no mask."""
        dataset = one().distribute_dataset(torch.ones(1), global_batch_size=4, options=PAD)
        list(dataset)
        for wrong in (1, 3, 5):
            with pytest.raises(ValueError, match=f"each of the 4 rows .*got {wrong} rows"):
                tdi.compute_average_loss(torch.ones(wrong))

    def test_num_examples_needs_the_mask(self):
        """The loss may be of an earlier step: the last one's examples would be the wrong ones."""
        iterator = iter(one().distribute_dataset(torch.ones(5), global_batch_size=4, options=PAD))
        steps = list(iterator)
        with pytest.raises(ValueError, match="mask= beside num_examples=, got 4 rows"):
            tdi.compute_average_loss(steps[0][0], num_examples=5)
        losses = [tdi.compute_average_loss(x, num_examples=5, mask=mask) for x, mask in steps]
        assert 1 == sum(losses)
        assert 0.5 == tdi.compute_average_loss(torch.ones(3), num_examples=6)

    @pytest.mark.parametrize("mask", [torch.ones(3, dtype=torch.bool), torch.ones(4)])
    def test_what_is_no_mask(self, mask):
        """Another size or dtype."""
        with pytest.raises(ValueError, match=r"bool tensor of shape \(4,\)"):
            tdi.compute_average_loss(torch.ones(4), num_examples=4, mask=mask)

    def test_a_mask_of_the_users(self):
        """Beside steps that are not padded, too."""
        mask = torch.tensor([True, False, True])
        assert 2 == tdi.compute_average_loss(torch.ones(3), num_examples=1, mask=mask)
