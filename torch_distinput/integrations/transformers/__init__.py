"""Hugging Face Transformers: a Trainer whose datasets are distributed, exactly once each epoch.

class MyTrainer(DistributedInputMixin, Trainer): ...
"""

from torch_distinput.integrations.transformers.trainer import DistributedInputMixin

__all__ = ["DistributedInputMixin"]
