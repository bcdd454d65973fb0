"""Use heedful's native kernel behind PyTorch's own attention, for as long as an `Acceleration` is active."""

from __future__ import annotations

import threading
from collections import Counter

import torch
from torch.compiler import config as compiler_config

from heedful.acceleration import function, fused, module
from heedful.acceleration.originals import Replacement, replace_operators, restore_operators
from heedful.acceleration.report import AccelerationReport, CallKind, counted_calls
from heedful.errors import KernelError
from heedful.kernels import native

_REPLACEMENTS: tuple[Replacement, ...] = (
    # Tensors made in inference mode have no autograd key.
    Replacement(function.OPERATOR, ("AutogradCPU", "CPU"), function.attend),
    Replacement(fused.FORWARD, ("CPU",), fused.forward),
    Replacement(fused.BACKWARD, ("CPU",), fused.backward),
    Replacement(module.OPERATOR, ("CPU", "NestedTensorCPU"), module.attend_self),
)


def accelerate() -> Acceleration:
    """Use heedful's native kernel for PyTorch's own attention on CPUs, forward and backward.

    It applies to the whole process, in every thread, until `remove` is called or a ``with`` block ends::

        heedful.accelerate()                        # every model from now on

        with heedful.accelerate() as acceleration:  # or only in this block
            model(tokens)
        print(acceleration.report())

    It serves `torch.nn.functional.scaled_dot_product_attention` with all of its arguments, and the inference path of
    `nn.MultiheadAttention` and `nn.TransformerEncoder`, whose padded tokens are skipped as in PyTorch. Results keep
    PyTorch's meaning, dtypes and memory layout. If a mask leaves each query at most two key ranges, it is recognized,
    and hidden blocks are skipped. In detail:

    - For the same seed, dropout drops other weights than PyTorch's own kernel. It draws from torch's generator, so
      `torch.manual_seed` determines it, and checkpointing drops the same weights in both of its runs.
    - The transforms of `torch.func` and forward-mode derivatives run on PyTorch's kernels. Gradients of gradients take
      memory for all scores, as they do in PyTorch.
    - A query that sees no key gets 0. In the inference path, PyTorch returns NaN for it.
    - `torch.compile` takes calls with dropout, with a mask that requires gradients, or of sizes that PyTorch's fused
      kernels refuse, into the graph as they are when it compiles: compile after `accelerate`, and call
      `torch.compiler.reset` after `remove`. The report does not count such calls. Other calls follow the handles.

    Calls that the kernel does not support are passed on to PyTorch's kernel, and the report states the reason: those in
    float64, the gradients of fewer than 64 queries, which PyTorch computes faster, those whose attention weights are
    returned, and those whose kernel is chosen by `torch.nn.attention.sdpa_kernel`. Several handles can be active at the
    same time. PyTorch's own kernels return when all of them are removed.

    Returns:
        The handle, with `remove` and `report`. It is also a context manager.

    Raises:
        KernelError: the native library is missing, for the reason given in the message.

    Examples:
        >>> import heedful, torch
        >>> x = torch.randn(1, 2, 64, 16)
        >>> with heedful.accelerate() as acceleration:
        ...     output = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        >>> report = acceleration.report()
        >>> report.served + report.passed_on
        1
    """
    if native.library.missing:
        raise KernelError(f"accelerate() has no kernel to use: {native.library.missing}")
    return Acceleration()


class Acceleration:
    """A handle that keeps the native kernel active behind PyTorch's attention. `accelerate` creates it."""

    def __init__(self) -> None:
        with _lock:
            self._before = counted_calls()
            self._counted: Counter[CallKind] | None = None  # set when the handle is removed
            _active.add(self)
            _update_operators()

    def __repr__(self) -> str:
        return f"Acceleration({'active' if self in _active else 'removed'}; report() has its calls)"

    def remove(self) -> None:
        """Deactivate the handle. PyTorch's own kernels return when no other handle is active. It may be repeated."""
        with _lock:
            if self in _active:
                self._counted = counted_calls() - self._before
                _active.remove(self)
                _update_operators()

    def report(self) -> AccelerationReport:
        """Return the calls since the handle was created, until now or until it was removed.

        It names the reason for each kind of call that PyTorch's kernel computed. Calls inside of `torch.func`'s
        `vmap` never reach us, and calls that compiled graphs contain as our own operator are not counted.
        """
        with _lock:
            counted = counted_calls() - self._before if self._counted is None else self._counted
            return AccelerationReport(tuple(counted.most_common()))

    def __enter__(self) -> Acceleration:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


_lock: threading.RLock = threading.RLock()
_active: set[Acceleration] = set()
_CACHE_TAG: str = "heedful.accelerate"
_replaced: list[torch.library.Library] = []


def _update_operators() -> None:
    """Replace the operators if a handle is active, and restore them otherwise.

    PyTorch keeps compiled graphs on disk. Graphs with our operators get a tag there, so that they are not taken for
    graphs without them.
    """
    if _active and not _replaced:
        _replaced.extend(replace_operators(_REPLACEMENTS))
        compiler_config.cache_key_tag += _CACHE_TAG
    elif _replaced and not _active:
        restore_operators(_replaced)
        compiler_config.cache_key_tag = compiler_config.cache_key_tag.replace(_CACHE_TAG, "")
