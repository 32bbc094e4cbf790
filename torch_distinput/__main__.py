"""The command ``torch-distinput``, also as ``python -m torch_distinput``."""

from __future__ import annotations

import sys

from torch_distinput.inspect.command import main

if __name__ == "__main__":
    sys.exit(main())
