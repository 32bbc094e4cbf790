"""What servers must know of optimizers: which parameters are in which group, and sparse gradients.

A server's optimizer sees the rows that the server holds. So what comes out is the same as in one
process for each optimizer that treats elements by themselves, as SGD, Adam and Adagrad do, and
for others as long as what they look at together, a parameter, lies whole on one server.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeAlias

from torch import Tensor, nn, optim

from torch_distinput.errors import ConfigurationError
from torch_distinput.options import check_function

_log = logging.getLogger(__name__)
OptimizerFn: TypeAlias = Callable[[list[nn.Parameter]], optim.Optimizer]

_READERS = (optim.SGD, optim.Adam, optim.AdamW, optim.Adagrad, optim.RMSprop)
"""Classes of torch.optim that do not write into gradients, unless an option lets them."""
_OPTIMIZER_MODULE = import_module("torch.optim.optimizer")  # torch.optim does not name it
_BY_PARAMETER = {"Adafactor", "Muon"}
"""Classes of torch.optim whose update of an element depends on other elements of its parameter."""


def make_optimizer(
    optimizer_fn: OptimizerFn, parameters: Mapping[str, nn.Parameter]
) -> tuple[optim.Optimizer, tuple[tuple[str, ...], ...]]:
    """Call ``optimizer_fn``; return the optimizer, and the names in each of its groups.

    Raises:
        TypeError: it is no function, or returned no optimizer.
        ConfigurationError: an optimizer of something else, or one that needs a closure.
    """
    check_function("optimizer_fn", optimizer_fn, "a list of parameters")
    optimizer = optimizer_fn(list(parameters.values()))
    if not isinstance(optimizer, optim.Optimizer):
        msg = (
            "Expected optimizer_fn(parameters) to return a torch.optim.Optimizer, got "
            f"{type(optimizer).__name__}. Return for example torch.optim.SGD(parameters, lr=0.1)."
        )
        raise TypeError(msg)
    names = {id(parameter): name for name, parameter in parameters.items()}
    groups = [group["params"] for group in optimizer.param_groups]
    num_others = sum(id(parameter) not in names for group in groups for parameter in group)
    if num_others or not any(groups):
        msg = (
            "Expected optimizer_fn(parameters) to return an optimizer of the parameters it is "
            f"given, got a {type(optimizer).__name__} of {sum(map(len, groups))} parameters, "
            f"{num_others} of which are others. Pass the function's argument to the optimizer: "
            "the parameters that are trained live on the servers."
        )
        raise ConfigurationError(msg)
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        msg = (
            "Expected an optimizer whose step() needs gradients alone, got "
            f"{type(optimizer).__name__}, which calls the model again: a server has none. Use "
            "one whose step() works without a closure."
        )
        raise ConfigurationError(msg)
    return optimizer, tuple(tuple(names[id(one)] for one in group) for group in groups)


def check_sharded(optimizer: optim.Optimizer, sharded: Sequence[str]) -> None:
    """Refuse optimizers that look at whole parameters where some of these are cut into rows.

    Those are torch's own, and what inherits their ``step``.
    """
    name, rule = type(optimizer).__name__, type(optimizer).step
    if sharded and _is_of_torch(rule) and rule.__qualname__.partition(".")[0] in _BY_PARAMETER:
        msg = (
            f"Expected parameters that stay whole for {name}, whose update of a row depends on "
            f"other rows, got {len(sharded)} that are cut into rows, among them {sharded[0]!r}. "
            "Pass partitioner=lambda name, shape, dtype, num_servers: 1."
        )
        raise ConfigurationError(msg)


def warn_of_rows(optimizer: optim.Optimizer, sharded: Sequence[str]) -> None:
    """Say that rows get an update of their own, where the optimizer is not torch's."""
    if sharded and not _is_of_torch(type(optimizer).step):
        _log.warning(
            "%s gets the rows of a server as a parameter: %d parameters are cut into rows, among "
            "them %r. If it looks at elements together, as by the norm of a parameter, it "
            "trains otherwise than in one process: pass partitioner=lambda name, shape, dtype, "
            "num_servers: 1. If it treats each element by itself, as Adam does, all is well.",
            type(optimizer).__name__,
            len(sharded),
            sharded[0],
        )


def takes_sparse(optimizer: optim.Optimizer, group: Mapping[str, Any]) -> bool:
    """Whether a sparse gradient is applied as it is: torch's own optimizers refuse most.

    One that is not torch's is given it as it is, to take it or to raise.
    """
    if not _is_of_torch(type(optimizer)) or type(optimizer) is optim.SparseAdam:
        return True
    return type(optimizer) in (optim.SGD, optim.Adagrad) and group["weight_decay"] == 0


def changes_only_rows(optimizer: optim.Optimizer, group: Mapping[str, Any]) -> bool:
    """Whether the update by a sparse gradient leaves all other rows as they are.

    Known of those that have no momentum, and of whom nothing else is called at each step.
    """
    if _has_hooks(optimizer):
        return False
    if type(optimizer) is optim.SGD:
        return bool(group["weight_decay"] == 0 and group["momentum"] == 0)
    if type(optimizer) is optim.Adagrad:
        return bool(group["weight_decay"] == 0)
    return type(optimizer) is optim.SparseAdam


def only_reads_gradients(optimizer: optim.Optimizer) -> bool:
    """Whether a step leaves the gradients as they are: then they may lie in shared memory.

    Known of torch's own that go through one parameter at a time, and of whom nothing else is called
    at each step. Those that take all at once save memory by writing into the gradients, and those
    with options that are trained add the decay of the weights there.
    """
    writes = any(
        group.get(option)
        for group in optimizer.param_groups
        for option in ("foreach", "fused", "differentiable")
    ) or any(
        isinstance(option, Tensor) and option.requires_grad
        for group in optimizer.param_groups
        for option in group.values()
    )
    return type(optimizer) in _READERS and not writes and not _has_hooks(optimizer)


def _has_hooks(optimizer: optim.Optimizer) -> bool:
    """Whether a step calls anything that is not of the optimizer's class."""
    names = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    of_all = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
    return (
        "step" in vars(optimizer)
        or any(getattr(optimizer, name, None) for name in names)
        or any(getattr(_OPTIMIZER_MODULE, name, None) for name in of_all)
    )


def _is_of_torch(defined: type | Callable[..., Any]) -> bool:
    """Whether a class, or a method that may be inherited, was defined in torch.optim."""
    return f"{defined.__module__}.".startswith("torch.optim.")
