"""DeepSpeed's pipeline engine over a distributed dataset, in whole groups of micro-batches.

    torchrun --standalone --nproc-per-node 4 train_deepspeed_pipeline.py

Two stages; the ranks of a stage are data-parallel, and form the group of a strategy. The stages
read the same, and leave the loop together. Rank 0 prints which examples were trained, and the loss
of each step. Without a GPU it runs with DS_ACCELERATOR=cpu.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator

import deepspeed
import torch
from deepspeed.pipe import PipelineModule

import torch_distinput as tdi

NUM_STAGES, NUM_MICRO_BATCHES = 2, 3


def weighted_loss(outputs: torch.Tensor, labels: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Add up the losses of the rows that count, each with its weight."""
    y, weights = labels
    return ((outputs - y).square().squeeze(1) * weights).sum()


def micro_batches(group: tdi.StepGroup, num_workers: int) -> Iterator[tuple[object, ...]]:
    """Yield as many as the engine takes, each with the weights of its rows.

    The engine divides by their number, and by that of the ranks.
    """
    weight = NUM_MICRO_BATCHES * num_workers / group.num_examples
    for step in group:
        (x, y), mask = step.batch
        yield x, (y, mask * weight)
    for _ in range(NUM_MICRO_BATCHES - len(group)):  # the engine takes no fewer
        yield x, (y, mask * 0.0)


def main() -> None:
    """Train an epoch."""
    deepspeed.init_distributed()
    torch.manual_seed(0)
    features = torch.randn(41, 4)
    layers = [torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)]
    model = PipelineModule(layers=layers, num_stages=NUM_STAGES, loss_fn=weighted_loss)
    engine, *_ = deepspeed.initialize(model=model, config=config_of())

    strategy = tdi.MultiWorkerMirroredStrategy(process_group=engine.mpu.get_data_parallel_group())
    train = strategy.distribute_dataset(
        (features, features.sum(1, keepdim=True)),
        global_batch_size=4,
        shuffle=True,
        seed=0,
        options=tdi.InputOptions(partial_batch="pad"),  # what stages send has one shape
    )
    trained, losses = [], []
    for group in tdi.accumulate(train.steps(), NUM_MICRO_BATCHES):
        loss = engine.train_batch(micro_batches(group, strategy.num_workers))
        losses.append(float(loss))
        trained += [x for step in group for x in step.ids.tolist()]

    ids = strategy.gather(torch.tensor(trained, dtype=torch.int64))
    if engine.global_rank == 0:
        print(json.dumps({"trained": ids.tolist(), "losses": losses}))
    engine.destroy()
    del engine, model  # drop what holds process groups before they are destroyed
    gc.collect()
    torch.distributed.destroy_process_group()


def config_of() -> dict[str, object]:
    """Make DeepSpeed's configuration."""
    return {
        "train_micro_batch_size_per_gpu": 1,  # read by DeepSpeed's reports only
        "gradient_accumulation_steps": NUM_MICRO_BATCHES,
        "gradient_clipping": 0.0,  # DeepSpeed clips at 1.0 unless it is told not to
        "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
    }


if __name__ == "__main__":
    main()
