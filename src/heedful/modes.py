"""Checks of what PyTorch does besides computing: tracing, compiling, transforming, profiling."""

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import NoneType
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import (
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    peek_interpreter_stack,
)
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad, profiler
from torch.overrides import TorchFunctionMode

_PLAIN = {Tensor, torch.nn.Parameter, NoneType}


def eager(*tensors: Tensor | None) -> bool:
    """Check whether all tensors are plain and nothing observes, traces or transforms operations.

    Plain tensors hold their values in memory. If so, a result may be computed directly from their memory, without
    PyTorch's dispatcher. Gradients are not considered.
    """
    return (
        not torch.compiler.is_compiling()
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._len_torch_function_stack()
        and peek_interpreter_stack() is None
        and forward_ad._current_level < 0
        and torch._C._get_tracing_state() is None
        and not profiler._is_profiler_enabled
        and _PLAIN.issuperset(map(type, tensors))
        and not _any_lazy(tensors)
    )


# wanted: whether function modes of this thread see operations instead of whole calls
_detail = threading.local()


def in_function_mode() -> bool:
    """Check whether a `TorchFunctionMode` wants to see the call of a function of ours as one: not while compiling."""
    if torch.compiler.is_compiling() or not torch._C._is_torch_function_mode_enabled():
        return False
    return not getattr(_detail, "wanted", False)


@contextmanager
def operation_by_operation() -> Iterator[None]:
    """Let function modes of this thread see each operation of PyTorch within our functions, instead of one call."""
    before = getattr(_detail, "wanted", False)
    _detail.wanted = True
    try:
        yield
    finally:
        _detail.wanted = before


@contextmanager
def unnoticed(mode: TorchFunctionMode, *namespaces: Any) -> Iterator[None]:
    """Let PyTorch's own code take the same path as without a function mode.

    nn.MultiheadAttention, nn.TransformerEncoder and its layers leave their fused path, which changes the last bits of
    their results, if `has_torch_function` reports that a mode is active.

    Args:
        mode: the mode. It sees no less: functions that do not ask whether it is there run under it.
        namespaces: the modules of PyTorch whose code asks by this name.
    """
    original = torch.overrides.has_torch_function

    def ignoring_mode(tensors: Iterable[Any]) -> bool:
        depth = torch._C._len_torch_function_stack()
        if depth and torch._C._get_function_stack_at(depth - 1) is mode:
            with torch.overrides._pop_mode_temporarily():
                return original(tensors)
        return original(tensors)

    with ExitStack() as restored:
        for namespace in namespaces:
            restored.callback(
                setattr, namespace, "has_torch_function", namespace.has_torch_function
            )
            namespace.has_torch_function = ignoring_mode
        yield


def _any_lazy(tensors: tuple[Tensor | None, ...]) -> bool:
    """Check whether the values of any tensor differ from those in its memory, which the dispatcher resolves.

    Views such as `x.conj().imag` are negated when they are read, and PyTorch's derivatives create zeros that have no
    memory. A complex conjugate is no input of attention.
    """
    # A loop, because small calls notice the time of a generator.
    for tensor in tensors:  # noqa: SIM110
        if tensor is not None and (tensor.is_neg() or tensor._is_zerotensor()):
            return True
    return False


def transforming() -> bool:
    """Check whether `torch.func` transforms operations, or forward-mode differentiation is active."""
    if torch.compiler.is_compiling():
        return False
    return peek_interpreter_stack() is not None or differentiating_forward()


def differentiating_forward() -> bool:
    """Check whether forward-mode differentiation is active."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def is_causal_bias(tensor: Tensor | None) -> bool:
    """Check whether a tensor is a `torch.nn.attention.bias.CausalBias`, whose memory holds no values.

    That module takes seconds to import, and there is no such tensor before it is imported.
    """
    if type(tensor) in _PLAIN:
        return False
    module = sys.modules.get("torch.nn.attention.bias")
    return module is not None and isinstance(tensor, module.CausalBias)


def any_set(flags: Tensor, *, when_tracing: bool) -> bool:
    """Check whether any of the Boolean flags is set.

    Args:
        flags: Boolean, of any shape.
        when_tracing: the answer where values are unknown, as `values_known` says.
    """
    return bool(flags.any()) if values_known(flags) else when_tracing


def values_known(tensor: Tensor) -> bool:
    """Check whether a tensor has values: not under `torch.compile` or `vmap`, nor if it is fake or on "meta"."""
    if torch.compiler.is_compiling() or tensor.is_meta or isinstance(tensor, FakeTensor):
        return False
    while is_functorch_wrapped_tensor(tensor):
        if is_batchedtensor(tensor):
            return False
        tensor = get_unwrapped(tensor)
    return True
