"""One module for several local devices: one set of parameters, a copy on each replica's device."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from torch_distinput.distribute.replicas.replica import get_replica_context


class ReplicatedModule(nn.Module):
    """Computes on the device of the replica that calls it; made by ``Strategy.replicate``.

    Inside ``Strategy.run`` the replica with index 0 uses ``module`` itself; the others use
    differentiable copies of its parameters, through which gradients flow back into the one set.
    Buffers (such as batch-norm statistics) are updated by replica 0 alone, which comes first: the
    others compute with what it has left in them.
    """

    def __init__(self, module: nn.Module) -> None:
        """Keep a module whose parameters are on the strategy's first device."""
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module on this replica's device."""
        context = get_replica_context()
        if context is None or context.local_replica == 0:
            return self.module(*args, **kwargs)
        device = context.device
        state: dict[str, torch.Tensor] = {
            name: parameter.to(device) for name, parameter in self.module.named_parameters()
        }
        for name, buffer in self.module.named_buffers():
            state[name] = buffer.detach().to(device, copy=True)
        return functional_call(self.module, state, args, kwargs)
