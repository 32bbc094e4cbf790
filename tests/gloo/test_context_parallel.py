"""Ranks along one dimension of a mesh get slices of the sequences of which they share the rest."""

from __future__ import annotations

import gc
from functools import partial

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import torch_distinput as tdi
from tests.gloo.jobs import described
from torch_distinput.plan.assignment.context_parallel import cut_head_and_tail
from torch_distinput.testing import RankError, run_ranks
from torch_distinput.testing.ranks import run_ranks_outcomes

COUNT, SIZE, LENGTH = 9, 4, 8  # the last global batch has one example: a worker without rows
NAMES = ("dp", "cp")
SLICED = tdi.InputOptions(cp_dim="cp")


def tokens():
    """Documents of one length, and next to each token the one that comes after it."""
    generator = torch.Generator().manual_seed(1)
    read = torch.randint(0, 50, (COUNT, LENGTH + 1), generator=generator)
    return {
        "input_ids": read[:, :-1].contiguous(),
        "labels": read[:, 1:].contiguous(),
        "weight": torch.rand(COUNT, generator=generator),
    }


def stream():
    columns = tokens()
    for row in range(COUNT):
        yield {name: column[row] for name, column in columns.items()}


SOURCES = {"index": tokens, "stream": lambda: stream}


def on_mesh(shape, *, devices=("cpu",), replicate_input="read"):
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=NAMES)
    strategy = tdi.MultiWorkerMirroredStrategy(
        list(devices), device_mesh=mesh, replicate_input=replicate_input
    )
    return mesh, strategy


def distribute(strategy, source, options=SLICED, **settings):
    return strategy.distribute_dataset(
        source, global_batch_size=SIZE, options=options, **settings
    )


def join(slices):
    """Whole sequences, from the slices of all ranks of the dimension in order."""
    width = slices[0].shape[1]
    whole = torch.empty(len(slices[0]), width * len(slices), dtype=slices[0].dtype)
    for index, own in enumerate(slices):
        runs = cut_head_and_tail(whole.shape[1], index=index, num_slices=len(slices))
        places = [place for run in runs for place in range(*run)]
        whole[:, places] = own
    return whole


def as_torch_cuts(mesh, batch):
    """What torch's context_parallel makes of the same columns."""
    from torch.distributed.tensor.experimental import context_parallel

    columns = [batch[name].clone() for name in ("input_ids", "labels")]
    with context_parallel(mesh["cp"], buffers=columns, buffer_seq_dims=[1, 1]):
        return [column.clone() for column in columns]


def one_epoch(kind, how, shape, _):
    """Sliced and whole batches of an epoch, with what is told of them, and torch's slices."""
    mesh, strategy = on_mesh(shape, replicate_input=how)
    sliced = distribute(strategy, SOURCES[kind]())
    whole = distribute(strategy, SOURCES[kind](), None)
    spec, steps = str(sliced.element_spec), []
    for step, all_of_it in zip(sliced.steps(), whole.steps(), strict=True):
        assert step.ids.tolist() == all_of_it.ids.tolist()
        assert step.state_dict() == all_of_it.state_dict()
        steps.append((step.batch, all_of_it.batch, as_torch_cuts(mesh, all_of_it.batch)))
    return strategy.worker_index, steps, spec


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "how", "shape"),
    [("index", "read", (2, 2)), ("stream", "broadcast", (2, 2)), ("index", "read", (1, 2))],
)
def test_slices_make_up_the_sequences_and_are_those_of_torch(kind, how, shape):
    """Zero rows have slices, too; states do not know of them."""
    data, cp = shape
    ranks = run_ranks(partial(one_epoch, kind, how, shape), data * cp)
    seen = []
    for worker in range(data):
        group = [steps for index, steps, _ in ranks if index == worker]
        for played in zip(*group, strict=True):
            whole = played[0][1]
            for name in ("input_ids", "labels"):
                assert torch.equal(whole[name], join([own[name] for own, _, _ in played]))
            for own, all_of_it, torchs in played:
                assert (len(whole["weight"]), LENGTH // cp) == own["input_ids"].shape
                assert torch.equal(own["weight"], all_of_it["weight"])
                assert all(map(torch.equal, torchs, (own["input_ids"], own["labels"])))
            places = join([own["position_ids"] for own, _, _ in played])
            assert places.tolist() == [list(range(LENGTH))] * len(places)
            seen += whole["input_ids"].tolist()
    assert sorted(tokens()["input_ids"].tolist()) == sorted(seen)
    for _, _, spec in ranks:
        assert 3 == spec.count(f"shape=(None, {LENGTH // cp})")


def resumed(_):
    """Two steps on 2 x 2 ranks, the rest on other meshes; with whole sequences, too."""
    _, strategy = on_mesh((2, 2))
    begun = distribute(strategy, tokens(), shuffle=True)
    steps = begun.steps()
    played = [[next(steps).batch["input_ids"] for _ in range(2)]]
    state = begun.state_dict()
    steps.close()
    for shape in ((1, 4), (4, 1)):
        _, strategy = on_mesh(shape)
        rest = distribute(strategy, tokens(), shuffle=True)
        rest.load_state_dict(state)
        played.append([batch["input_ids"] for batch in rest])
    return played


def test_a_resume_on_other_meshes_plays_each_example_once():
    ranks = run_ranks(resumed, 4)
    (first, second), (both,) = [
        [[rank[part] for rank in ranks[start : start + cp]] for start in range(0, 4, cp)]
        for part, cp in ((0, 2), (1, 4))
    ]
    begun = [join(own).tolist() for group in (first, second) for own in zip(*group, strict=True)]
    over_four = [join(own).tolist() for own in zip(*both, strict=True)]
    alone = [batch.tolist() for rank in ranks for batch in rank[2]]
    expected = sorted(tokens()["input_ids"].tolist())
    for rest in (over_four, alone):
        assert expected == sorted(row for rows in (*begun, *rest) for row in rows)


def make_model():
    torch.manual_seed(7)
    return nn.Sequential(nn.Embedding(50, 6), nn.Tanh(), nn.Linear(6, 50))


def losses_of(model, batch):
    """A loss for each token, ``(rows, length)``."""
    logits = model(batch["input_ids"])
    return functional.cross_entropy(logits.mT, batch["labels"], reduction="none")


def train_alone(weighted):
    """Parameters after an epoch of SGD in one process."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    columns = {name: column.split(SIZE) for name, column in tokens().items()}
    for step in range(len(columns["labels"])):
        batch = {name: column[step] for name, column in columns.items()}
        losses = losses_of(model, batch)
        if weighted:
            counted = batch["labels"] < 40
            losses = (losses * counted).sum(1) / counted.sum(1)
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def train(weighted, _):
    """The same under DDP over all ranks, each with its slices; the largest difference."""
    mesh, strategy = on_mesh((2, 2))
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    source = tokens()
    source["num_counted"] = (source["labels"] < 40).sum(1)  # of the whole sequence
    for step in distribute(strategy, source).steps():
        losses = losses_of(model, step.batch)
        if weighted:
            counted = step.batch["labels"] < 40
            shares = (losses * counted).sum(1) / step.batch["num_counted"]
            loss = step.average(shares) * strategy.num_workers * mesh["cp"].size()
        else:
            loss = step.average(losses.mean(1)) * strategy.num_workers
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = [parameter.detach() for parameter in model.parameters()]
    pairs = zip(train_alone(weighted), found, strict=True)
    worst = max((one - other).abs().max().item() for one, other in pairs)
    del model, optimizer
    gc.collect()
    return worst


@pytest.mark.parametrize("weighted", [False, True], ids=["mean of tokens", "of those that count"])
def test_training_on_slices_equals_one_process(weighted):
    """The last step leaves a worker without rows."""
    assert max(run_ranks(partial(train, weighted), 4)) < 1e-6


def attended(_):
    """Torch's ring attention over slices, and attention over the whole sequences."""
    from torch.distributed.tensor.experimental._attention import _templated_ring_attention

    mesh, strategy = on_mesh((2, 2))
    torch.manual_seed(3)
    embedding = nn.Embedding(50, 24)
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

    def heads(batch):
        """Queries, keys and values, ``(rows, 2 heads, length, 4)``."""
        return embedding(batch["input_ids"]).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)

    def ring(query, key, value):
        return _templated_ring_attention(
            mesh["cp"].get_group(), 2, kernel, query, key, value, is_causal=True
        )[0]

    worst = 0.0
    datasets = (distribute(strategy, tokens(), options) for options in (SLICED, None))
    with torch.no_grad():
        for own, whole in zip(*datasets, strict=True):
            if not len(whole["weight"]):
                continue
            all_of_it = functional.scaled_dot_product_attention(*heads(whole), is_causal=True)
            expected = all_of_it[:, :, own["position_ids"][0]]
            found = ring(*(one.contiguous() for one in heads(own)))
            worst = max(worst, (expected - found).abs().max().item())
    return worst


def test_ring_attention_over_slices_equals_attention_over_sequences():
    """Each data parallel worker has sequences of its own."""
    assert max(run_ranks(attended, 4)) < 1e-6


def padded(_):
    """Two replicas on each rank, and masks beside the batches."""
    _, strategy = on_mesh((1, 2), devices=("cpu", "cpu"))
    options = tdi.InputOptions(cp_dim="cp", cp_columns=["input_ids"], partial_batch="pad")
    steps = list(distribute(strategy, tokens(), options))
    return [strategy.local_results(step) for step in steps]


def test_several_replicas_and_padded_batches():
    """The mask has a row for each example, and is not cut."""
    seen = []
    for steps in zip(*run_ranks(padded, 2), strict=True):
        for (first, mask), (second, other) in zip(*steps, strict=True):
            assert torch.equal(mask, other)
            assert (SIZE // 2, LENGTH) == first["labels"].shape
            seen += join([first["input_ids"], second["input_ids"]])[mask].tolist()
    assert sorted(tokens()["input_ids"].tolist()) == sorted(seen)


def made_by_a_function(_):
    """Replica batches that the user makes, which ranks of one worker make alike."""
    _, strategy = on_mesh((1, 2))
    made = strategy.distribute_datasets_from_function(
        lambda _: list(tokens()["input_ids"].split(SIZE)), SLICED
    )
    return list(made)


def test_batches_of_a_function():
    pairs = zip(*run_ranks(made_by_a_function, 2), strict=True)
    assert torch.equal(tokens()["input_ids"], torch.cat([join(pair) for pair in pairs]))


def ragged(_):
    """Only the second worker has a batch with a length that cannot be cut."""
    _, strategy = on_mesh((2, 2))
    source = [torch.ones(8)] * 6 + [torch.ones(6)] * 2 + [torch.ones(8)] * 400_000
    return [len(batch) for batch in distribute(strategy, source)]


@pytest.mark.slow
def test_sequences_that_cannot_be_cut_are_an_error_on_all_ranks():
    outcomes = run_ranks_outcomes(ragged, 4)
    for rank, outcome in enumerate(outcomes):
        said = described(outcome)
        assert said.startswith("PeerFailedError" if rank < 2 else "SourceError")
        assert "Worker 1, step 1: Expected sequences whose length is a multiple of 4" in said
        assert "Pad to 8" in said


def differs(_):
    """Some partners cut, others do not."""
    _, strategy = on_mesh((2, 2))
    options = SLICED if torch.distributed.get_rank() % 2 else None
    return list(distribute(strategy, tokens(), options))


def test_ranks_that_would_cut_differently():
    with pytest.raises(RankError, match="the same cp_dim on all workers"):
        run_ranks(differs, 4)
