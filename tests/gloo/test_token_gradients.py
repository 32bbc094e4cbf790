"""Training by token and by example equals one process: DDP, FSDP2, uneven ranks, accumulation."""

from __future__ import annotations

import gc
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_distinput as tdi
from torch_distinput.testing import run_ranks

LENGTHS = (7, 2, 5, 1, 6, 3, 4, 2, 5)
SIZE, NUM_STEPS = 2, 3  # 5 steps, of which the last has one document; groups of 3 and of 2 steps
IGNORED = -100


def make_model():
    """The next token from this one, by a norm and a table of its own."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Embedding(11, 8), nn.LayerNorm(8), nn.Linear(8, 11))


def make_documents():
    """Tokens, and the token after each: none for the first third, which is a prompt."""
    generator = torch.Generator().manual_seed(2)
    documents = []
    for length in LENGTHS:
        tokens = torch.randint(0, 11, (length + 1,), generator=generator)
        labels = tokens[1:].clone()
        labels[: length // 3] = IGNORED
        documents.append((tokens[:-1], labels))
    return documents


def collate(documents):
    """Padded to the longest of the rank's own documents, so that ranks have other shapes."""
    tokens, labels = zip(*documents, strict=True)
    pad = partial(nn.utils.rnn.pad_sequence, batch_first=True)
    return pad(tokens), pad(labels, padding_value=IGNORED)


def losses_of(model, tokens, labels):
    """A loss for each token; 0 where there is no label."""
    logits = model(tokens).flatten(0, 1)
    losses = F.cross_entropy(logits, labels.flatten(), reduction="none", ignore_index=IGNORED)
    return losses.view_as(labels)


def count_labels(batch):
    """Which tokens of a batch have a label."""
    return batch[1] != IGNORED


def reference(per):
    """Parameters after an epoch of one process, which takes the documents of a group at once."""
    model, documents = make_model(), make_documents()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for start in range(0, len(documents), SIZE * NUM_STEPS):
        tokens, labels = collate(documents[start : start + SIZE * NUM_STEPS])
        losses = losses_of(model, tokens, labels)
        number = (labels != IGNORED).sum() if per == "token" else len(labels)
        optimizer.zero_grad()
        (losses.sum() / number).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def wrap_ddp(model):
    """Replicate."""
    return nn.parallel.DistributedDataParallel(model)


def wrap_fsdp(model):
    """Shard."""
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model)


def train(strategy, wrap):
    """The same epochs, distributed; the largest difference to the reference, by what is divided."""
    worst = {}
    for per in ("token", "example"):
        model = wrap(make_model())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        dataset = strategy.distribute_dataset(
            make_documents(), global_batch_size=SIZE, collate_fn=collate
        )
        for group in tdi.accumulate(dataset.steps(), NUM_STEPS, weights=count_labels):
            optimizer.zero_grad()
            for step in group:
                loss = step.average(losses_of(model, *step.batch), per=per)
                (loss * strategy.num_workers).backward()
            optimizer.step()
        found = [getattr(p, "full_tensor", lambda p=p: p)().detach() for p in model.parameters()]
        pairs = zip(reference(per), found, strict=True)
        worst[per] = max((a - b).abs().max().item() for a, b in pairs)
        del model, optimizer, found, pairs
        gc.collect()
    return worst


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [wrap_ddp, wrap_fsdp])
def test_training_equals_one_process(wrap):
    """A rank without a document in the last step, which ends a short group."""
    for worst in run_ranks(partial(train, wrap=wrap), 2):
        assert {"token": pytest.approx(0, abs=1e-6), "example": pytest.approx(0, abs=1e-6)} == worst


def refused(strategy):
    """Per step what comes of it that the second rank has a negative weight in the first."""
    found = []
    dataset = strategy.distribute_dataset(torch.ones(8, 3), global_batch_size=4)
    for step in dataset.steps():
        is_wrong = strategy.worker_index == 1 and not step.index
        weights = torch.full((2, 3), -1.0 if is_wrong else 1.0)
        try:
            found.append(step.average(step.batch, weights=weights).item())
        except (ValueError, tdi.PeerFailedError) as error:
            found.append(str(error))
    return found


def test_no_rank_is_left_in_a_collective():
    """Both hear what is wrong with whose weights, and go on with the next step."""
    words = "Expected weights of 0 or more, got 6 others, the first of them -1."
    first, second = run_ranks(refused, 2)
    assert f"worker 1 failed: ValueError: {words}" in first[0]
    assert second[0].startswith(words)
    assert [0.5] == first[1:] == second[1:]
