"""The calls of `torch.distributed` as torch calls, so that recordings see what ranks send, and a log of them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.overrides import handle_torch_function
from torch.utils import _pytree as pytree

from heedful.observation.source_location import find_location

# What each call writes its result to, and what it reads, in any supported version of PyTorch.
WRITTEN: dict[str, str] = {
    "all_reduce": "tensor",
    "reduce": "tensor",
    "broadcast": "tensor",
    "all_gather": "tensor_list",
    "all_gather_into_tensor": "output_tensor",
    "all_gather_single": "output_tensor",
    "reduce_scatter": "output",
    "reduce_scatter_tensor": "output",
    "reduce_scatter_single": "output",
    "all_to_all": "output_tensor_list",
    "all_to_all_single": "output",
    "scatter": "tensor",
    "gather": "gather_list",
    "recv": "tensor",
    "irecv": "tensor",
    "send": "",
    "isend": "",
    "barrier": "",
}
READ: dict[str, str] = {
    "all_gather": "tensor",
    "all_gather_into_tensor": "input_tensor",
    "all_gather_single": "input_tensor",
    "reduce_scatter": "input_list",
    "reduce_scatter_tensor": "input",
    "reduce_scatter_single": "input",
    "all_to_all": "input_tensor_list",
    "all_to_all_single": "input",
    "scatter": "scatter_list",
    "gather": "tensor",
    "send": "tensor",
    "isend": "tensor",
}
BETWEEN_TWO: frozenset[str] = frozenset({"send", "recv", "isend", "irecv"})
DEFERRED: frozenset[str] = frozenset({"isend", "irecv"})


@dataclass(frozen=True)
class Collective:
    """One call of `torch.distributed`.

    Attributes:
        operation: the name of the function.
        shapes: the shapes and dtypes of what it reads, and of what it writes to.
        members: the number of ranks in its group.
        peer: the other rank, if it is a message between two; else None.
        file, line, source: the user's line that makes the call; None and "" if it is unknown.
    """

    operation: str
    shapes: tuple[str, ...]
    members: int
    peer: int | None
    file: str | None
    line: int | None
    source: str


Noticed = Callable[[Collective], None]


@contextmanager
def collectives_seen(notice: Noticed) -> Iterator[None]:
    """Show every call of `torch.distributed` to function modes, as those of `record`, and to a function.

    A call that returns before it is done is shown with its result when the caller waits for it. Code that has imported
    the functions before the block is not seen.

    Args:
        notice: is called before each call starts.
    """
    modules = (dist, dist.distributed_c10d)
    originals = {name: getattr(dist, name) for name in WRITTEN if hasattr(dist, name)}
    seen = {name: _seen(name, original, notice) for name, original in originals.items()}

    def replace(functions: dict[str, Any]) -> None:
        for module in modules:
            for name, function in functions.items():
                setattr(module, name, function)

    replace(seen)
    try:
        yield
    finally:
        replace(originals)


def _seen(name: str, original: Callable[..., Any], notice: Noticed) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @wraps(original)
    def call(*args: Any, **keywords: Any) -> Any:
        arguments = signature.bind(*args, **keywords).arguments
        with torch._C.DisableTorchFunction():
            notice(_described(name, arguments, sys._getframe(1)))
        written = _tensors(arguments.get(WRITTEN[name]))
        read = _tensors(arguments.get(READ.get(name, WRITTEN[name])))
        if name in DEFERRED or arguments.get("async_op"):
            work = original(*args, **keywords)
            return work and _Awaited(work, name, written)
        return _shown(name, lambda: original(*args, **keywords), read, written)

    return call


class _Awaited:
    """The work of a call that is not done; all but the wait is that of PyTorch's object."""

    def __init__(self, work: Any, name: str, written: list[Tensor]) -> None:
        self._work, self._name, self._written = work, name, written

    def wait(self, *args: Any, **keywords: Any) -> Any:
        written, self._written = self._written, []
        return _shown(self._name, lambda: self._work.wait(*args, **keywords), [], written)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _shown(
    name: str, run: Callable[[], Any], read: Sequence[Tensor], written: Sequence[Tensor]
) -> Any:
    """Make a call, and show it to function modes as one that returns the tensors that it writes to."""
    if not written:
        return run()
    results: list[Any] = []

    def collective(*tensors: Tensor) -> Any:
        if torch._C._len_torch_function_stack():  # each mode hands on to the next one
            return handle_torch_function(collective, tuple(written), *tensors)
        results.append(run())
        return written[0] if len(written) == 1 else tuple(written)

    collective.__name__ = name
    collective(*read)
    return results[0]


def _described(name: str, arguments: dict[str, Any], frame: Any) -> Collective:
    tensors = [
        *_tensors(arguments.get(READ.get(name, ""))),
        *_tensors(arguments.get(WRITTEN[name])),
    ]
    group = arguments.get("group")
    peer = None
    if name in BETWEEN_TWO:
        peers = ("dst", "src", "group_dst", "group_src")
        peer = next((arguments[it] for it in peers if arguments.get(it) is not None), None)
    location = find_location(frame, _NOWHERE)
    return Collective(
        name,
        tuple(f"{str(it.dtype).removeprefix('torch.')} {tuple(it.shape)}" for it in tensors),
        dist.get_world_size(group),
        peer,
        None if location is None else location.file,
        None if location is None else location.line,
        "" if location is None else " ".join(location.source.split()),
    )


_NOWHERE = (lambda: None).__code__


def _tensors(value: Any) -> list[Tensor]:
    return [it for it in pytree.tree_leaves(value) if isinstance(it, Tensor)]
