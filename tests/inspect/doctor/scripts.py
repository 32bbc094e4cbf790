"""Scripts that the doctor runs."""

from __future__ import annotations

DIVIDED = """
import os, sys
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

rank, num_ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
dataset = TensorDataset(torch.arange(9))
sampler = DistributedSampler(dataset, num_ranks, rank)
loader = DataLoader(dataset, batch_size=2, sampler=sampler)
for epoch in range(int(sys.argv[1])):
    for (batch,) in loader:
        pass
print("the end of", __name__)
"""

UNEVEN = """
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
dataset = TensorDataset(torch.arange(9))
for batch in DataLoader(dataset, batch_size=2, sampler=DistributedSampler(dataset)):
    pass

class Files(IterableDataset):
    def __iter__(self):
        return iter(range(100 * rank, 100 * rank + 10 + 4 * rank))

for batch in DataLoader(Files(), batch_size=2):
    dist.all_reduce(batch.sum())  # of step 6, rank 1 waits for rank 0, which has ended
"""

ACCELERATE = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
loader = DataLoader(TensorDataset(torch.arange(float(SIZE))), batch_size=4, shuffle=True)
loader = accelerator.prepare(loader)
for epoch in range(2):
    for (batch,) in loader:
        pass
"""

LIGHTNING = """
import lightning, torch
from torch.utils.data import DataLoader, TensorDataset

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, index):
        return self.layer(batch[0].unsqueeze(1)).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)

loader = DataLoader(TensorDataset(torch.arange(float(SIZE))), batch_size=4, shuffle=True)
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", devices=2, strategy="ddp", logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Model(), loader)
"""
