"""Watches the torch calls that a callable makes, and changes nothing about them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from heedful.errors import ArgumentError
from heedful.observation.ledger import Ledger, Limits, Output, TorchCall
from heedful.observation.naming import Part
from heedful.observation.surroundings import Surroundings
from heedful.observation.trace import Trace

# They tell about a tensor without reading its entries: what only they look at stays unused.
METADATA = frozenset(
    {
        "__len__",
        "__hash__",
        "size",
        "dim",
        "ndimension",
        "numel",
        "nelement",
        "element_size",
        "stride",
        "storage_offset",
        "is_contiguous",
        "get_device",
        "is_floating_point",
        "is_complex",
        "is_signed",
        "is_inference",
    }
)
TENSOR_PROPERTIES = frozenset({"T", "mT", "H", "mH", "real", "imag", "data", "grad", "_base"})
# They return a tensor, yet compute none.
NOT_COMPUTED = frozenset({"grad", "_base", "requires_grad_"})


def record(
    callable: Callable[..., Any],
    /,
    *inputs: Any,
    largest: int = 2**20,
    memory: int = 2**28,
    steps: int = 10_000,
    **keywords: Any,
) -> Trace:
    """Run a callable and keep the result of every torch call it makes, named by its source line.

    The callable needs no preparation. Its result and torch's random state afterwards are those of a
    run without recording, gradients flow through the result, and what it raises is raised unchanged,
    with a note that tells the last step. Recordings may be nested: the outer one sees the inner's
    steps too. Only the calling thread is watched, and nothing within TorchScript. What
    `torch.compile` has compiled runs uncompiled, since its kernels have no lines to show.

    Args:
        callable: a module, a function, a method; anything that can be called.
        inputs: its arguments, of any kind.
        largest: values of more elements than this are kept as summaries.
        memory: bytes that all values together may take; beyond, they are kept as summaries.
        steps: how many steps to keep; further ones are counted in `Trace.dropped_steps`.
        keywords: its keyword arguments. For one called `largest`, `memory` or `steps`, wrap the
            callable in a lambda.

    Raises:
        ArgumentError: what is to be called cannot be, or a limit is no whole number from 0 on.
    """
    _check(callable, largest=largest, memory=memory, steps=steps)
    surroundings = Surroundings(callable, inputs, keywords)
    ledger = Ledger(surroundings, Limits(largest, memory, steps), home=record.__code__)
    watch = _Watch(ledger)
    with _uncompiled(), _shortcuts_kept(watch), watch:
        result = callable(*inputs, **keywords)
    return ledger.trace(result)


def _check(target: object, **limits: object) -> None:
    if not callable(target):
        raise ArgumentError(
            "callable",
            expected="a module, a function or anything else that can be called",
            received=type(target).__name__,
            remedy="Pass the function and then its inputs: record(f, x), not record(f(x)).",
        )
    for name, limit in limits.items():
        if not isinstance(limit, int) or limit < 0:
            raise ArgumentError(
                name,
                expected="a whole number from 0 on",
                received=repr(limit),
                remedy=f"If {name!r} was meant for the callable, wrap that in a lambda.",
            )


class _Watch(TorchFunctionMode):
    """Makes every torch call of this thread and then enters it in a ledger."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name, keywords = _torch_name(func), kwargs or {}
        if name in METADATA or _is_plain_property(func):
            return func(*args, **keywords)
        # What is done beside the call itself must reach neither an outer recording nor the
        # handlers of tensor subclasses.
        with torch._C.DisableTorchFunction():
            taken = [it for it in pytree.tree_leaves((args, keywords)) if isinstance(it, Tensor)]
            versions = [_version(tensor) for tensor in taken]
        result = func(*args, **keywords)
        with torch._C.DisableTorchFunction(), torch.inference_mode(False), torch.no_grad():
            written = list(_written(name, taken, versions))
            outputs = [] if name in NOT_COMPUTED else list(_outputs(result, written))
            call = TorchCall(_operation(name), args, keywords, taken, written, outputs)
            self._ledger.enter(call, sys._getframe(1))
        return result

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        super().__exit__(exc_type, exc_val, exc_tb)
        self._ledger.close()
        if exc_val is not None:
            exc_val.add_note(f"heedful.record: {self._ledger.last_step()}")
            _hide_own_frames(exc_tb)


def _hide_own_frames(traceback: TracebackType | None) -> None:
    """Leave our part in a torch call out of a traceback below the frame that records."""
    while traceback is not None:
        inner = traceback.tb_next
        if inner is not None and inner.tb_frame.f_code is _Watch.__torch_function__.__code__:
            traceback.tb_next = inner.tb_next
        else:
            traceback = inner


@contextmanager
def _uncompiled() -> Iterator[None]:
    if "torch._dynamo" not in sys.modules:  # nothing can have been compiled; the import is slow
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


@contextmanager
def _shortcuts_kept(watch: _Watch) -> Iterator[None]:
    """Let torch's modules take the path that they take unwatched.

    nn.MultiheadAttention, nn.TransformerEncoder and its layers leave their fused path, and with it
    the last bits of their results, as soon as `has_torch_function` tells them of a watcher.
    """
    ask = torch.overrides.has_torch_function

    def ask_unwatched(tensors: Iterable[Any]) -> bool:
        depth = torch._C._len_torch_function_stack()
        if depth and torch._C._get_function_stack_at(depth - 1) is watch:
            with torch.overrides._pop_mode_temporarily():
                return ask(tensors)
        return ask(tensors)

    torch.overrides.has_torch_function = ask_unwatched
    try:
        yield
    finally:
        torch.overrides.has_torch_function = ask


def _torch_name(func: Any) -> str:
    """A torch function's own name; a property's for the function that reads it."""
    name = getattr(func, "__name__", type(func).__name__)
    return func.__self__.__name__ if name == "__get__" else name.partition(".")[0]


def _is_plain_property(func: Any) -> bool:
    """Whether a function reads a property that is no tensor, such as `shape`."""
    getter = getattr(func, "__name__", "") == "__get__"
    return getter and func.__self__.__name__ not in TENSOR_PROPERTIES


def _operation(name: str) -> str:
    """What a reader calls a torch function: "matmul" for `__matmul__` and `__rmatmul__` alike."""
    plain = name.strip("_") + ("_" if name.endswith("_") and not name.endswith("__") else "")
    swapped = name.startswith("__r") and hasattr(Tensor, f"__{plain[1:]}__")
    return plain[1:] if swapped else plain


def _version(tensor: Tensor) -> int | None:
    """How often a tensor was written to; inference tensors do not count that."""
    return None if tensor.is_inference() else tensor._version


def _written(
    name: str, taken: Sequence[Tensor], versions: Sequence[int | None]
) -> Iterator[Tensor]:
    writes_first = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
    for tensor, version in zip(taken, versions, strict=True):
        if version is None:
            if writes_first and tensor is taken[0]:
                yield tensor
        elif tensor._version != version:
            yield tensor


def _outputs(result: object, written: Sequence[Tensor]) -> Iterator[Output]:
    if isinstance(result, Tensor):
        yield Output(None, result)
    elif isinstance(result, tuple | list) and any(isinstance(it, Tensor) for it in result):
        # torch's named tuples tell their fields so; a plain tuple has none.
        fields = getattr(type(result), "__match_args__", ()) or [None] * len(result)
        for position, (field, tensor) in enumerate(zip(fields, result, strict=True)):
            if isinstance(tensor, Tensor):
                yield Output(Part(position, field), tensor)
    elif written:
        yield Output(None, written[0])
