"""Where an epoch stands, in a file of its own beside Trainer's, in the folder of a checkpoint."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FILE_NAME = "torch_distinput.json"


@dataclass(frozen=True, kw_only=True)
class SavedPosition:
    """The position after the last step that the optimizer has taken.

    Attributes:
        state: of the dataset.
        epoch: whose state it is.
        delivered: steps of the dataset until then, in its epoch.
        update_steps: steps of the optimizer until then, in that epoch.
        global_step: steps of the optimizer in all epochs.
        has_ended: whether that was the last step of the epoch.
    """

    state: dict[str, Any]
    epoch: int
    delivered: int
    update_steps: int
    global_step: int
    has_ended: bool

    @property
    def policy(self) -> Any:
        """How the dataset was dealt out to the processes; None where the state does not say."""
        return dict(self.state.get("recipe", ())).get("auto_shard_policy")

    def write(self, folder: Path) -> None:
        """Write it into the folder of a checkpoint, which need not be there yet."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE_NAME).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> SavedPosition:
        """Read it from the folder of a checkpoint.

        Raises:
            ValueError: if there is none.
        """
        if not folder.is_dir():
            kind = "a file" if folder.exists() else "nothing there"
            msg = (
                f"Expected the folder of a checkpoint, got {folder}: {kind}. Pass a folder such as "
                "output_dir/checkpoint-500, or True for the last one of output_dir."
            )
            raise ValueError(msg)
        path = folder / FILE_NAME
        try:
            return cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            found = f"got {folder} without it: another Trainer has saved it"
        except (TypeError, ValueError) as error:
            found = f"got something else there ({error})"
        msg = (
            f"Expected a checkpoint with {FILE_NAME}, where the epoch stands, {found}. Resume a "
            "checkpoint of this Trainer, or pass ignore_data_skip=True to start its epoch again."
        )
        raise ValueError(msg)
