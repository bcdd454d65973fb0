"""Whether PyTorch does anything with an operation beside computing it."""

from types import NoneType

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad, profiler

_PLAIN = {Tensor, torch.nn.Parameter, NoneType}


def eager(*tensors: Tensor | None) -> bool:
    """Whether plain tensors meet nothing that watches, traces or transforms operations.

    Then a result may be computed from their memory, past PyTorch's dispatcher; gradients are another matter.
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
    )


def transforming() -> bool:
    """Whether operations are transformed as they run: by `torch.func`, or by differentiation in forward mode."""
    if torch.compiler.is_compiling():
        return False
    return peek_interpreter_stack() is not None or forward_ad._current_level >= 0
