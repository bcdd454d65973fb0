"""The library's functions as functions of tensors, which allocate the results and raise errors."""

import math

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.kernels.native import library, structs
from heedful.shapes import broadcasts, read_sizes
from heedful.statistics import Statistics


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    start: Tensor | None,
    stop: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    seed: Tensor | None,
    scale: float,
    softcap: float,
    dropout_p: float,
    *,
    wants_lse: bool,
    output: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention.

    Args:
        query: (B, Hq, Tq, D), float32, bfloat16 or float16, of any strides.
        key: (B, Hkv, Tk, D), likewise.
        value: (B, Hkv, Tk, Dv), likewise.
        start: int32 (B or 1, Tq, R), the first key of each range of keys that a query sees; None: all keys.
        stop: int32 (B or 1, Tq, R), one past the last key of each range.
        mask: Boolean, 4 dimensions that broadcast to (B, Hq, Tq, Tk), True = attend.
        bias: float32, 4 dimensions that broadcast likewise.
        sinks: float32 (Hq,).
        seed: int64 (), whose 64 bits are the seed; None without dropout.
        scale: the factor of the dot products.
        softcap: 0 for none.
        dropout_p: the probability of dropping a weight.
        wants_lse: whether to compute the log-sum-exp.
        output: memory for the output; None: it is allocated in the query's memory order.

    Returns:
        The output (B, Hq, Tq, Dv) in the query's dtype, and the log-sum-exp (B, Hq, Tq) in
        float32 or None.

    The shapes, dtypes and devices of the tensors must fit together. `AttentionProblem` and PyTorch's own attention
    ensure this, and for the operators, the check functions below do.

    Raises:
        KernelError: memory ran out, or the library refuses a size.
    """
    query, key, value = contiguous_rows(query), contiguous_rows(key), contiguous_rows(value)
    sinks = None if sinks is None else sinks.contiguous()
    if output is None:
        output = empty_output(query, value)
    lse = query.new_empty(query.shape[:3], dtype=torch.float32) if wants_lse else None
    problem = structs.pack_problem(
        *(query, key, value, output, lse, start, stop, mask, bias, sinks),
        *(scale, softcap, dropout_p, _seed_bits(seed)),
        library.parallel_for,
    )
    library.check(library.library.heedful_forward(problem))
    return output, lse


def backward(
    grad_output: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor,
    start: Tensor | None,
    stop: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    seed: Tensor | None,
    scale: float,
    softcap: float,
    dropout_p: float,
    wants_bias: bool,
    wants_sinks: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients of `forward`'s tensors.

    Args:
        grad_output: (B, Hq, Tq, Dv), in the query's dtype.
        grad_lse: float32 (B, Hq, Tq); None if the log-sum-exp was not used.
        query: as in `forward`, like all arguments from key to dropout_p.
        output: the output of `forward`.
        lse: the log-sum-exp of `forward`.
        wants_bias: whether to compute the gradient of bias.
        wants_sinks: whether to compute the gradient of sinks.

    Returns:
        The gradients of query, key, value, bias and sinks; the last two are empty if they are not wanted.

    The shapes, dtypes and devices of the tensors must fit together. `AttentionProblem` and PyTorch's own attention
    ensure this, and for the operators, the check functions below do.

    Raises:
        KernelError: memory ran out, or the library refuses a size.
    """
    wants_bias = wants_bias and bias is not None
    query, key, value = contiguous_rows(query), contiguous_rows(key), contiguous_rows(value)
    sinks = None if sinks is None else sinks.contiguous()
    gradients = empty_gradients(query, key, value, bias, sinks, wants_bias, wants_sinks)
    grad_query, grad_key, grad_value, grad_bias, grad_sinks = gradients
    grad_output = contiguous_rows(grad_output)
    if grad_lse is not None:
        grad_lse = grad_lse.contiguous()
    problem = structs.pack_problem(
        *(query, key, value, contiguous_rows(output), lse.contiguous()),
        *(start, stop, mask, bias, sinks),
        *(scale, softcap, dropout_p, _seed_bits(seed)),
        library.parallel_for,
    )
    gradient = structs.pack_gradient(
        problem,
        key.shape[2],
        *(grad_lse, grad_output, grad_query, grad_key, grad_value),
        grad_bias.zero_() if wants_bias else None,
        grad_sinks.zero_() if wants_sinks else None,  # an empty batch leaves it as it is
    )
    library.check(library.library.heedful_backward(gradient))
    return gradients


def summarize(
    query: Tensor,
    key: Tensor,
    lse: Tensor | None,
    start: Tensor | None,
    stop: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    region_start: Tensor | None,
    region_stop: Tensor | None,
    scale: float,
    softcap: float,
    shift: int,
    for_each_query: bool,
    for_each_key: bool,
    top_k: int,
    cell: list[int],
) -> tuple[Tensor, ...]:
    """Compute statistics of the weights.

    Args:
        query: (B, Hq, Tq, D), float32, bfloat16 or float16, of any strides.
        key: (B, Hkv, Tk, D), likewise.
        lse: float32 (B, Hq, Tq), the logarithms of the normalizers; None: those of these keys.
        start: as in `forward`, like all arguments up to sinks.
        region_start: int32 (B or 1, Tq, R), the first key of each region; None: there are none.
        region_stop: int32 (B or 1, Tq, R), one past its last key.
        scale: as in `forward`, like softcap.
        shift: the place of query 0 among the keys.
        for_each_query: whether to compute mass, entropy, largest and distance.
        for_each_key: whether to compute what each key receives.
        top_k: how many of the largest weights of each query to find.
        cell: how many queries and keys a cell of the map has, and the place of the first query and key in theirs.
            Empty: there is no map.

    Returns:
        The tensors of `Statistics`, in its order. Those that are not wanted have no numbers.

    The shapes, dtypes and devices of the tensors must fit together, as in `forward`.

    Raises:
        KernelError: memory ran out, or the library refuses a size.
    """
    query, key = contiguous_rows(query), contiguous_rows(key)
    lse, sinks = (None if tensor is None else tensor.contiguous() for tensor in (lse, sinks))
    arguments = (for_each_query, for_each_key, top_k, region_start, cell)
    statistics = Statistics(*empty_statistics(query, key, *arguments))
    for sums in (statistics.cell_sums, statistics.cell_maxima):
        sums.zero_()
    problem = structs.pack_problem(
        *(query, key, key, query, statistics.lse, start, stop, mask, bias, sinks),
        *(scale, softcap, 0.0, 0),
        library.parallel_for,
    )
    queries = statistics[1:5] if for_each_query else (None, None, None, None)
    regions = None
    if region_start is not None and region_stop is not None:
        regions = region_start, region_stop, statistics.region_mass
    summary = structs.pack_summary(
        problem,
        lse,
        shift,
        (*queries, statistics.received if for_each_key else None),
        (top_k, statistics.top_weights, statistics.top_keys),
        regions,
        cell,
        (statistics.cell_sums, statistics.cell_maxima),
    )
    library.check(library.library.heedful_summarize(summary))
    return tuple(statistics)


def empty_statistics(
    query: Tensor,
    key: Tensor,
    for_each_query: bool,
    for_each_key: bool,
    top_k: int,
    regions: Tensor | None,
    cell: list[int],
) -> tuple[Tensor, ...]:
    """Allocate the tensors of `Statistics`. Those that are not wanted have no numbers."""
    B, Hq, Tq, _ = query.shape
    Tk = key.shape[2]
    rows = columns = 0
    if cell:
        cell_queries, cell_keys, first_query, first_key = cell
        rows, columns = -(-(first_query + Tq) // cell_queries), -(-(first_key + Tk) // cell_keys)
    queries = (B, Hq, Tq) if for_each_query else (0,)
    shapes: Statistics[tuple[int, ...]] = Statistics(
        *((B, Hq, Tq), queries, queries, queries, queries),
        received=(B, Hq, Tk) if for_each_key else (0,),
        top_weights=(B, Hq, Tq, top_k),
        top_keys=(B, Hq, Tq, top_k),
        region_mass=(B, Hq, Tq, 0 if regions is None else regions.shape[2]),
        cell_sums=(B, Hq, rows, columns),
        cell_maxima=(B, Hq, rows, columns),
    )
    return tuple(
        query.new_empty(shape, dtype=torch.int64 if name == "top_keys" else torch.float32)
        for name, shape in shapes._asdict().items()
    )


def check_summary(
    query: Tensor,
    key: Tensor,
    lse: Tensor | None,
    start: Tensor | None,
    stop: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    region_start: Tensor | None,
    region_stop: Tensor | None,
    scale: float,
    softcap: float,
    cell: list[int],
) -> None:
    """Check what the library cannot see of a summary's arguments."""
    check_inputs(query, key, key, start, stop, mask, bias, sinks)
    check_numbers(None, scale, softcap, 0.0)
    if lse is not None:
        _check_tensor("lse", lse, torch.float32, tuple(query.shape[:3]))
    # The ranges of regions and of a mask have the same form, except for their number.
    check_inputs(query, key, key, region_start, region_stop, None, None, None)
    if len(cell) not in (0, 4) or (cell and min(cell[:2]) < 1):
        raise ArgumentError(
            "cell",
            expected="no numbers, or 4: queries and keys of a cell, at least 1, and the places of the first ones",
            received=str(cell),
            remedy="heedful.summarize() prepares the arguments of this operator.",
        )


def check_inputs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    start: Tensor | None,
    stop: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
) -> None:
    """Check what the library cannot see: the shape, dtype and device of every tensor."""
    B, Hq, _, Tq, Tk, _, _ = read_sizes(query, key, value)
    if query.dtype not in structs.DTYPES:
        raise _refusal("query", query, "float32, bfloat16 or float16")
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dtype != query.dtype or not tensor.is_cpu:
            raise _refusal(name, tensor, f"{query.dtype} on the CPU")
    if start is not None or stop is not None:
        if start is None or stop is None:
            raise ArgumentError(
                "start, stop",
                expected="both or neither",
                received="one of them",
                remedy="Key ranges have a start and a stop.",
            )
        if start.dim() != 3 or start.shape[0] not in (1, B) or not start.shape[2]:
            raise _refusal("start", start, f"(1, {Tq}, R) or ({B}, {Tq}, R) with R of at least 1")
        ranges = (start.shape[0], Tq, start.shape[2])
        for name, tensor in (("start", start), ("stop", stop)):
            _check_tensor(name, tensor, torch.int32, ranges)
            if not tensor.is_contiguous():
                raise _refusal(name, tensor, "a contiguous tensor")
    for name, tensor, dtype in (("mask", mask, torch.bool), ("bias", bias, torch.float32)):
        if tensor is None:
            continue
        _check_tensor(name, tensor, dtype)
        if tensor.dim() != 4 or not broadcasts(tensor.shape, (B, Hq, Tq, Tk)):
            raise _refusal(name, tensor, f"4 dimensions that expand to ({B}, {Hq}, {Tq}, {Tk})")
    if sinks is not None:
        _check_tensor("sinks", sinks, torch.float32, (Hq,))


def check_devices(*arguments: Tensor | float | None) -> None:
    """Raise ArgumentError unless all tensors are on one device: with one on "meta", nothing would be computed."""
    tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
    if len({tensor.device for tensor in tensors}) > 1:
        raise ArgumentError(
            "the operator's tensors",
            expected="one device",
            received=", ".join(str(tensor.device) for tensor in tensors),
            remedy="Move them to the query's device by .to(query.device).",
        )


def check_numbers(seed: Tensor | None, scale: float, softcap: float, dropout_p: float) -> None:
    """Check the seed, and that the numbers are those that `AttentionProblem` accepts."""
    if seed is not None:
        _check_tensor("seed", seed, torch.int64, ())
    elif dropout_p > 0:
        raise ArgumentError(
            "seed",
            expected="torch.int64 on the CPU with shape ()",
            received=f"None with dropout_p={dropout_p}",
            remedy="Draw one by torch.randint(2**63 - 1, ()).",
        )
    for name, number, allowed, expected in (
        ("scale", scale, math.isfinite(scale), "a finite number"),
        ("softcap", softcap, 0 <= softcap < math.inf, "a finite number above 0, or 0 for no cap"),
        ("dropout_p", dropout_p, 0 <= dropout_p <= 1, "a probability from 0 to 1"),
    ):
        if not allowed:
            raise ArgumentError(
                name,
                expected=expected,
                received=repr(number),
                remedy="heedful.attention() checks the numbers of this operator.",
            )


def _seed_bits(seed: Tensor | None) -> int:
    """Return the 64 bits of an int64 seed as a number that is not negative; 0 without a seed."""
    return 0 if seed is None else int(seed) % 2**64


def check_results(
    grad_output: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor,
) -> None:
    """Check the shapes, dtypes and devices of the forward pass's results and of their gradients."""
    outputs, rows = (*query.shape[:3], value.shape[3]), query.shape[:3]
    _check_tensor("output", output, query.dtype, outputs)
    _check_tensor("grad_output", grad_output, query.dtype, outputs)
    _check_tensor("lse", lse, torch.float32, rows)
    if grad_lse is not None:
        _check_tensor("grad_lse", grad_lse, torch.float32, rows)


def _check_tensor(
    name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...] | None = None
) -> None:
    """Raise ArgumentError unless a tensor is on the CPU and has the dtype, and the shape if there is one."""
    if tensor.dtype != dtype or not tensor.is_cpu:
        raise _refusal(name, tensor, f"{dtype} on the CPU")
    if shape is not None and tensor.shape != shape:
        raise _refusal(name, tensor, f"shape {tuple(shape)}")


def _refusal(name: str, tensor: Tensor, expected: str) -> ArgumentError:
    return ArgumentError(
        name,
        expected=expected,
        received=f"{tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()} on {tensor.device}",
        remedy="heedful.attention() prepares the tensors of this operator.",
    )


def empty_gradients(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    sinks: Tensor | None,
    wants_bias: bool,
    wants_sinks: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Allocate the gradients of tensors with contiguous rows; the last two are empty if they are not wanted."""
    nothing = query.new_empty(0, dtype=torch.float32)
    return (
        _empty_rows(query, query.shape[3]),
        _empty_rows(key, key.shape[3]),
        _empty_rows(value, value.shape[3]),
        bias.new_empty(bias.shape) if wants_bias and bias is not None else nothing,
        sinks.new_empty(sinks.shape) if wants_sinks and sinks is not None else nothing.clone(),
    )


def contiguous_rows(tensor: Tensor) -> Tensor:
    """Return the tensor, or a contiguous copy unless its last dimension is contiguous."""
    return tensor if tensor.stride(3) == 1 else tensor.contiguous()


def empty_output(query: Tensor, value: Tensor) -> Tensor:
    """Allocate an output (B, Hq, Tq, Dv) in the query's memory order.

    If tokens come before heads there, the next step of a model, ``output.transpose(1, 2).flatten(2)``, copies nothing.
    """
    return _empty_rows(query, value.shape[3])


def _empty_rows(tensor: Tensor, size: int) -> Tensor:
    """Allocate (B, H, T, size) in a tensor's memory order of batch, heads and tokens.

    `torch.empty_like` has the same order, but its last dimension is not contiguous if the tensor's rows overlap.
    """
    if tensor.is_contiguous() and tensor.shape[3] == size:  # the usual case, and the fastest
        return torch.empty_like(tensor)
    *shape, _ = tensor.shape
    batch, head, token, _ = tensor.stride()
    # An expanded axis has stride 0, which says nothing about its place: it stays before the axes that follow it.
    strides = batch or max(head, token), head or token, token
    if strides[0] >= strides[1] >= strides[2]:
        return tensor.new_empty((*shape, size))
    order = sorted(range(3), key=strides.__getitem__, reverse=True)
    memory = tensor.new_empty((*(shape[axis] for axis in order), size))
    return memory.permute(*(order.index(axis) for axis in range(3)), 3)
