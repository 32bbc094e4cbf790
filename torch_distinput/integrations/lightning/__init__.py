"""Lightning: every example trained once an epoch, also after a restart on another world.

    data = DataModule(train=table, val=other, global_batch_size=256, shuffle=True)
    trainer.fit(model, datamodule=data)

The loss of a step: ``self.trainer.datamodule.average_loss(losses)`` in ``training_step``.

Lightning reads a step ahead where it does not know how many there are, and looks at a loader before
it needs it. A state is that of the step that was trained last, whatever was delivered since:

    delivered   0  1  2  3
    trained     0  1  2        the checkpoint: after 2

For both names of Lightning, ``lightning.pytorch`` and ``pytorch_lightning``: see ``framework``.
"""

from torch_distinput.integrations.lightning.data_module import DataModule
from torch_distinput.integrations.lightning.loader import Loader
from torch_distinput.integrations.lightning.signals import InputState

__all__ = ["DataModule", "InputState", "Loader"]
