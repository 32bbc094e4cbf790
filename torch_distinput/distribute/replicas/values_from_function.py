"""Values that a function of the user's makes for each local replica."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch_distinput.distribute.replicas.per_replica import regroup_values
from torch_distinput.distribute.static_shapes import make_values_error
from torch_distinput.options import check_function
from torch_distinput.plan.assignment.topology import ValueContext

if TYPE_CHECKING:
    from torch_distinput.distribute.session import Session


def make_values(session: Session, value_fn: Callable[[ValueContext], Any]) -> Any:
    """Call the function for each local replica and group what it returns."""
    check_function("value_fn", value_fn, "a ValueContext")
    if session.has_static_shapes:
        raise make_values_error()
    contexts = [
        ValueContext(
            replica_id_in_sync_group=session.topology.first_replica + local,
            num_replicas_in_sync=session.topology.num_replicas_in_sync,
        )
        for local in range(len(session.devices))
    ]
    return regroup_values([value_fn(context) for context in contexts])
