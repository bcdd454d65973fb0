"""Intercept the torch calls of a callable without changing what they do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from heedful.errors import ArgumentError
from heedful.modes import operation_by_operation, unnoticed
from heedful.observation.call_arguments import call_leaves
from heedful.observation.opening import FusedCall
from heedful.observation.reachable import ReachableTensors
from heedful.observation.source_location import is_position_arithmetic
from heedful.observation.step_names import TupleItem
from heedful.observation.trace import Trace
from heedful.observation.trace_builder import CallOutput, Limits, TorchCall, TraceBuilder

# These do not read a tensor's entries, so a tensor that only they look at stays unused.
METADATA: frozenset[str] = frozenset(
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
TENSOR_PROPERTIES: frozenset[str] = frozenset(
    {"T", "mT", "H", "mH", "real", "imag", "data", "grad", "_base"}
)
# These return an existing tensor instead of computing one.
NOT_COMPUTED: frozenset[str] = frozenset({"grad", "_base", "requires_grad_"})


def record(
    callable: Callable[..., Any],
    /,
    *inputs: Any,
    largest: int = 2**20,
    memory: int = 2**28,
    steps: int = 10_000,
    open_attention: bool = True,
    **keywords: Any,
) -> Trace:
    """Run a callable and keep the result of every torch call it makes, named after its source line.

    The callable needs no preparation, and recording changes nothing about the run: the result, torch's random state
    and the gradients that flow through the result are the same. An exception is raised unchanged, with a note about the
    last step. Recordings may be nested, in which case the outer one also contains the steps of the inner one.

    An attention that a single call computes, PyTorch's `scaled_dot_product_attention` or heedful's `attention`, is
    opened: the reference computes its scores, weights and all between beside the call, from the same queries and keys,
    and the step of the call says by how much the kernel's output differs (`Step.beside`, `Step.remark`). Of more scores
    than the limits keep, only the rows of a sample of queries are computed.

    The arithmetic with positions by which heedful's masks find the keys of a query is left out, unless the mask holds
    a tensor that the callable was given, or made.

    Only the calling thread is recorded, and nothing within TorchScript. Code compiled by `torch.compile` runs eagerly
    while it is recorded, because its kernels have no source lines.

    Args:
        callable: a module, a function, a method, or any other callable.
        inputs: its positional arguments.
        largest: the number of elements above which a value is kept as a `Summary`.
        memory: the number of bytes that all values together may take. Further values are kept as summaries.
        steps: the number of steps to keep. Further steps are counted in `Trace.dropped_steps`.
        open_attention: whether to open attentions; False: PyTorch's is the one step that ran, and heedful's the
            operations of its kernel.
        keywords: its keyword arguments. If one of them is called `largest`, `memory`, `steps` or `open_attention`, wrap
            the callable in a lambda.

    Returns:
        The trace, which also holds the callable's result.

    Raises:
        ArgumentError: `callable` is not callable, or a limit is not a nonnegative integer.

    Examples:
        >>> import torch
        >>> from heedful.textbook.simplified import attend
        >>> trace = record(attend, torch.zeros(2, 3))
        >>> trace.names
        ('scores·mT', 'scores', 'weights', 'context')
        >>> trace["weights"].value
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]])
    """
    _check_arguments(callable, largest=largest, memory=memory, steps=steps)
    reachable = ReachableTensors(callable, inputs, keywords)
    builder = TraceBuilder(reachable, Limits(largest, memory, steps), boundary=record.__code__)
    mode = _RecordingMode(builder, open_attention=open_attention)
    detail = nullcontext() if open_attention else operation_by_operation()
    with _uncompiled(), unnoticed(mode, torch.overrides), detail, mode:
        result = callable(*inputs, **keywords)
    return builder.build(result)


def _check_arguments(target: object, **limits: object) -> None:
    if not callable(target):
        raise ArgumentError(
            "callable",
            expected="a module, a function or any other callable",
            received=type(target).__name__,
            remedy="Pass the function and then its inputs: record(f, x), not record(f(x)).",
        )
    for name, limit in limits.items():
        if not isinstance(limit, int) or limit < 0:
            raise ArgumentError(
                name,
                expected="a nonnegative integer",
                received=repr(limit),
                remedy=f"If {name!r} is an argument of the callable, wrap the callable in a lambda.",
            )


class _RecordingMode(TorchFunctionMode):
    """Runs every torch call of this thread and passes it to a `TraceBuilder`."""

    def __init__(self, builder: TraceBuilder, *, open_attention: bool) -> None:
        super().__init__()
        self._builder = builder
        self._open_attention = open_attention

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name, keywords, frame = _torch_name(func), kwargs or {}, sys._getframe(1)
        if name in METADATA or _is_plain_property(func):
            return func(*args, **keywords)
        # The bookkeeping must be visible neither to an outer recording nor to the handlers of tensor subclasses.
        with torch._C.DisableTorchFunction():
            inputs = [leaf for leaf in call_leaves(args, keywords) if isinstance(leaf, Tensor)]
            of_positions = is_position_arithmetic(frame) and not self._builder.knows_any(inputs)
            versions = [_version(tensor) for tensor in inputs]
            fused = FusedCall.seen(func, args, keywords) if self._open_attention else None
        result = func(*args, **keywords)
        if of_positions:
            return result
        with torch._C.DisableTorchFunction(), _outside_inference_mode(), torch.no_grad():
            written = list(_written(name, inputs, versions))
            outputs = [] if name in NOT_COMPUTED else list(_outputs(result, written))
            opened = None if fused is None else fused.opened(result, self._builder.room)
            call = TorchCall(_operation(name), args, keywords, inputs, written, outputs, opened)
            self._builder.add(call, frame)
        return result

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        super().__exit__(exc_type, exc_val, exc_tb)
        self._builder.finish()
        if exc_val is not None:
            exc_val.add_note(f"heedful.record: {self._builder.describe_last_step()}")
            _hide_own_frames(exc_tb)


def _outside_inference_mode() -> AbstractContextManager[Any]:
    """Return a context in which tensors are made that count the writes to them."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


def _hide_own_frames(traceback: TracebackType | None) -> None:
    """Remove the frames of `_RecordingMode` from a traceback."""
    while traceback is not None:
        inner = traceback.tb_next
        if (
            inner is not None
            and inner.tb_frame.f_code is _RecordingMode.__torch_function__.__code__
        ):
            traceback.tb_next = inner.tb_next
        else:
            traceback = inner


@contextmanager
def _uncompiled() -> Iterator[None]:
    if "torch._dynamo" not in sys.modules:  # nothing can have been compiled, and the import is slow
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def _torch_name(func: Any) -> str:
    """Return the name of a torch function, or of the property that it reads."""
    name = getattr(func, "__name__", type(func).__name__)
    return func.__self__.__name__ if name == "__get__" else name.partition(".")[0]


def _is_plain_property(func: Any) -> bool:
    """Check whether a function reads a property that is not a tensor, such as `shape`."""
    is_getter = getattr(func, "__name__", "") == "__get__"
    return is_getter and func.__self__.__name__ not in TENSOR_PROPERTIES


def _operation(name: str) -> str:
    """Return the plain name of a torch function: "matmul" for both `__matmul__` and `__rmatmul__`."""
    plain = name.strip("_") + ("_" if name.endswith("_") and not name.endswith("__") else "")
    swapped = name.startswith("__r") and hasattr(Tensor, f"__{plain[1:]}__")
    return plain[1:] if swapped else plain


def _version(tensor: Tensor) -> int | None:
    """Return the number of in-place writes to a tensor, or None for an inference tensor, which does not count them."""
    return None if tensor.is_inference() else tensor._version


def _written(
    name: str, inputs: Sequence[Tensor], versions: Sequence[int | None]
) -> Iterator[Tensor]:
    """Yield the inputs that a call overwrote, given their versions before the call."""
    writes_first_input = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
    for tensor, version in zip(inputs, versions, strict=True):
        if version is None:
            if writes_first_input and tensor is inputs[0]:
                yield tensor
        elif tensor._version != version:
            yield tensor


def _outputs(result: object, written: Sequence[Tensor]) -> Iterator[CallOutput]:
    """Yield the tensors that a call returned or, if it returned none, the first one that it overwrote."""
    if isinstance(result, Tensor):
        yield CallOutput(None, result)
    elif isinstance(result, tuple | list) and any(isinstance(item, Tensor) for item in result):
        # torch's named tuples list their fields here; a plain tuple has none.
        fields = getattr(type(result), "__match_args__", ()) or [None] * len(result)
        for position, (field, tensor) in enumerate(zip(fields, result, strict=True)):
            if isinstance(tensor, Tensor):
                yield CallOutput(TupleItem(position, field), tensor)
    elif written:
        yield CallOutput(None, written[0])
