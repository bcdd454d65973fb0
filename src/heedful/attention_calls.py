"""Which functions compute a whole attention, and the problem that the arguments of such a call stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from heedful.functional import as_problem, attention, problem_of, scaled_dot_product_attention
from heedful.kernels.torch_sdpa import pytorch_sdpa
from heedful.modes import is_causal_bias
from heedful.problem import AttentionProblem

NO_PART_OF_A_PROBLEM = ("kernel", "return_lse", "return_received_mass")


def reader_of(function: object) -> Callable[..., AttentionProblem | None] | None:
    """Return what reads the arguments of a function that computes attention; None for any other function.

    The reader returns the problem, or None if heedful cannot compute it. It raises `ArgumentError` or `TypeError` if
    the arguments do not fit together.
    """
    if function is attention:
        return _read_ours
    # Users may have replaced the one in torch.nn.functional.
    if function in (scaled_dot_product_attention, pytorch_sdpa, F.scaled_dot_product_attention):
        return _read_pytorchs
    return None


def _read_ours(*arguments: Any, **keywords: Any) -> AttentionProblem:
    options = {name: it for name, it in keywords.items() if name not in NO_PART_OF_A_PROBLEM}
    return problem_of(*arguments, **options)


def _read_pytorchs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> AttentionProblem | None:
    if is_causal_bias(attn_mask):
        return None
    return as_problem(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
