"""Engines by the names that the fixture gives."""

from __future__ import annotations

from torch_distinput.coordinator.engines.engine import Engine
from torch_distinput.coordinator.engines.local import LocalEngine
from torch_distinput.coordinator.engines.ray import RayEngine

SECONDS = 280.0
"""For a process to start, on the busiest machine."""


def new_engine(name: str) -> Engine:
    return {"local": LocalEngine, "ray": RayEngine}[name](timeout=SECONDS)
