"""Plans of tensor parallelism, for PyTorch's `parallelize_module`: each rank has some heads, and some features."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from heedful.errors import ArgumentError
from heedful.parallel.forwarding import run_within
from heedful.sharded import heads_from


def tensor_parallel_plan(module: nn.Module) -> dict[str, ParallelStyle]:
    """Return the plan by which `parallelize_module` splits `heedful.nn.MultiHeadAttention` and a GPT over ranks.

    Each rank computes some heads of each attention, and some features of each MLP, of all tokens; what ranks add to the
    residual stream is summed over them (Shoeybi et al. 2019, Megatron-LM, arXiv 1909.08053, section 3). All else is on
    every rank: the ranks need the same tokens and, for dropout, the same random numbers
    (`torch.manual_seed`). Dropout of attention weights drops those of one process.

    A module of your own takes part if its class names its layers, as MultiHeadAttention does:
    ``column_parallel = ("W_query", …)`` are split by their outputs, ``row_parallel = ("out_proj",)`` by their inputs.

    Args:
        module: an attention, or a model that contains attentions.

    Returns:
        The styles by the names of submodules. `parallelize_module` raises `ArgumentError`, before it changes anything,
        if the number of ranks does not divide the key heads or the features of an MLP.

    Raises:
        ArgumentError: nothing in the module can be split.

    Examples:
        >>> from heedful.nn import MultiHeadAttention
        >>> plan = tensor_parallel_plan(MultiHeadAttention(8, num_heads=4, num_kv_heads=2))
        >>> list(plan)
        ['', 'W_query', 'W_key', 'W_value', 'out_proj']
    """
    whole: dict[str, ParallelStyle] = {}
    layers: dict[str, ParallelStyle] = {}
    for path, part in module.named_modules():
        names = _split_layers(part)
        if not names:
            continue
        whole[path] = _Split()
        layers |= {
            f"{path}.{name}" if path else name: ColwiseParallel()
            if by_columns
            else RowwiseParallel()
            for name, by_columns in names.items()
        }
    if not whole:
        raise ArgumentError(
            "module",
            expected="one with heedful.nn.MultiHeadAttention, or a GPT of heedful",
            received=type(module).__name__,
            remedy="A class takes part if it names its layers as column_parallel and row_parallel.",
        )
    return whole | layers  # all checks come first


def _split_layers(module: nn.Module) -> dict[str, bool]:
    """Return the names of the layers that are split, and whether by columns: by their outputs."""
    columns: tuple[str, ...] = getattr(module, "column_parallel", ())
    rows: tuple[str, ...] = getattr(module, "row_parallel", ())
    named = dict.fromkeys(columns, True) | dict.fromkeys(rows, False)
    return {name: by_columns for name, by_columns in named.items() if hasattr(module, name)}


class _Split(ParallelStyle):
    """Checks that a module can be split, and tells an attention which of all heads it has."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        ranks = device_mesh.size()
        for name, by_columns in _split_layers(module).items():
            layer: Any = getattr(module, name)
            heads = _heads_of(module, name)
            count = heads or (layer.out_features if by_columns else layer.in_features)
            if count % ranks:
                raise ArgumentError(
                    f"{type(module).__name__}.{name}",
                    expected=f"{'heads' if heads else 'features'} in a number that {ranks} ranks divide",
                    received=f"{count}",
                    remedy="Use fewer ranks for tensor parallelism; context_parallel() takes any number.",
                )
        num_heads = getattr(module, "num_heads", None)
        if num_heads is not None:
            first = device_mesh.get_local_rank() * num_heads // ranks
            run_within(module, lambda **_: heads_from(first))
        return module


def _heads_of(module: nn.Module, name: str) -> int | None:
    """Return how many heads a layer has outputs or inputs of; None in a module without heads."""
    grouped = name in ("W_key", "W_value")
    return getattr(module, "num_kv_heads" if grouped else "num_heads", None)
