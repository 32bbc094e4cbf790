"""DeepSpeed's engine over a distributed dataset: exact gradients, whatever the ranks and the stage.

    torchrun --standalone --nproc-per-node 2 train_deepspeed.py --folder checkpoints --stop-after 2
    torchrun --standalone --nproc-per-node 3 train_deepspeed.py --folder checkpoints

The first command stops inside the epoch, the second one goes on behind it. Rank 0 prints which
examples were trained, and the weights. Without a GPU it runs with DS_ACCELERATOR=cpu.
"""

from __future__ import annotations

import argparse
import gc
import json
from itertools import islice
from pathlib import Path

import deepspeed
import torch

import torch_distinput as tdi

NUM_ACCUMULATED = 3


def main() -> None:
    """Train what is left of the epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="of the checkpoint")
    parser.add_argument("--stop-after", type=int, help="steps of the optimizer; default: the epoch")
    parser.add_argument("--zero-stage", type=int, default=0, help="of DeepSpeed's ZeRO")
    args = parser.parse_args()

    deepspeed.init_distributed()
    strategy = tdi.MultiWorkerMirroredStrategy()
    torch.manual_seed(0)
    features = torch.randn(41, 4)
    train = strategy.distribute_dataset(
        (features, features.sum(1, keepdim=True)), global_batch_size=4, shuffle=True, seed=0
    )
    engine, *_ = deepspeed.initialize(model=torch.nn.Linear(4, 1), config=config_of(args))
    if (args.folder / "latest").exists():
        _, client_state = engine.load_checkpoint(str(args.folder))
        train.load_state_dict(client_state["data"])

    trained = []
    criterion = torch.nn.MSELoss(reduction="none")
    for group in islice(tdi.accumulate(train.steps(), NUM_ACCUMULATED), args.stop_after):
        for step in group:
            engine.set_gradient_accumulation_boundary(step is group[-1])
            x, y = step.batch
            loss = step.average(criterion(engine(x), y))
            # DeepSpeed divides by the number of ranks, and would by the steps of a full group.
            engine.backward(loss * strategy.num_workers, scale_wrt_gas=False)
            engine.step()
            trained += step.ids.tolist()
        state = group.state_dict()
    engine.save_checkpoint(str(args.folder), client_state={"data": state})

    ids = strategy.gather(torch.tensor(trained, dtype=torch.int64))
    if strategy.worker_index == 0:
        weights = engine.module.weight.flatten().tolist()
        print(json.dumps({"trained": ids.tolist(), "weights": weights}))
    engine.destroy()
    del engine  # drop what holds process groups before they are destroyed
    gc.collect()
    torch.distributed.destroy_process_group()


def config_of(args: argparse.Namespace) -> dict[str, object]:
    """Make DeepSpeed's configuration."""
    return {
        "train_micro_batch_size_per_gpu": 1,  # read by DeepSpeed's reports only
        "gradient_accumulation_steps": NUM_ACCUMULATED,
        "gradient_clipping": 0.0,  # DeepSpeed clips at 1.0 unless it is told not to
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": args.zero_stage},
        "zero_allow_untested_optimizer": True,  # SGD
    }


if __name__ == "__main__":
    main()
