"""The integration into transformers: after `register`, use ``model.set_attn_implementation("heedful")``."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from heedful.errors import ArgumentError, HeedfulError, MissingExtraError
from heedful.functional import attention
from heedful.integrations.lazy_mask import LazyMask
from heedful.integrations.sharded_tokens import check_sharded_call
from heedful.integrations.transformers_masks import make_mask, weights_error
from heedful.masks import Causal, Dense, Mask
from heedful.sharded import all_tokens

NAME: str = "heedful"
# Arguments of individual models that change the result and that heedful has no equivalent for.
_UNSUPPORTED: tuple[str, ...] = ("head_mask", "cache", "indices", "block_indices", "sinks")


def register(*, check: bool = False) -> None:
    """Make "heedful" available as an attention implementation in transformers.

    Every model whose implementation can be chosen can then use it: call ``model.set_attn_implementation("heedful")``,
    or pass ``attn_implementation="heedful"`` to ``from_pretrained``. A second registration has no effect.

    Padding on either side, packed sequences, sliding windows, chunks, caches (including static ones), soft-caps, sinks,
    position biases, grouped heads, cross-attention and dropout in training become masks and options of heedful. A mask
    of Tq x Tk entries is only computed for padding with holes, and if a model computes with its mask. `torch.compile`
    breaks the graph where a mask is made, and only there, so ``fullgraph=True`` is not possible.

    Within `heedful.parallel.context_parallel`, a model runs on the tokens of each rank: pass ``shard(…)`` of the token
    ids and of their positions (`position_ids`), the `attention_mask` of all tokens or none, and ``use_cache=False``.
    Its masks and windows are of all tokens. Labels are shifted before they are sharded (`shift_labels`).

    A forward pass raises `ArgumentError` for what heedful cannot compute: attention weights
    (``output_attentions=True``), masks from user-defined functions, and arguments that only individual models have.

    Args:
        check: whether to compare a tiny model with transformers' own eager attention, which takes about a second.

    Raises:
        MissingExtraError: transformers is not installed.
        HeedfulError: the check failed, because the installed version of transformers has another interface.

    Examples:
        >>> from heedful.integrations.transformers import register
        >>> register()
    """
    try:
        from transformers import (  # pyright: ignore[reportMissingImports] - an extra
            AttentionInterface,
            AttentionMaskInterface,
        )
    except ImportError as error:
        raise MissingExtraError("heedful.integrations.transformers", "transformers") from error

    AttentionInterface.register(NAME, attend)
    # torch.compile cannot create a tensor without memory inside a graph.
    AttentionMaskInterface.register(NAME, torch.compiler.disable(make_mask))
    if check:
        _check()


def attend(
    module: torch.nn.Module,
    query: Float[Tensor, "B Hq Tq D"],
    key: Float[Tensor, "B Hkv Tk D"],
    value: Float[Tensor, "B Hkv Tk Dv"],
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Float[Tensor, " Hq"] | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Float[Tensor, "B Tq Hq Dv"], None]:
    """Compute the attention of one layer, through the interface of transformers.

    Args:
        module: the layer. Dropout is only applied if it is in training mode.
        query: (B, Hq, Tq, D).
        key, value: (B, Hkv, Tk, D) and (B, Hkv, Tk, Dv), without repeated heads.
        attention_mask: the result of `make_mask`; or the user's mask (B, 1 or Hq, Tq, Tk), either Boolean (True =
            attend) or added to the scores; or None, which is causal if the layer is and there is more than one query.
        dropout, scaling, softcap, position_bias: `dropout_p`, `scale`, `softcap` and `bias` of `heedful.attention`.
        is_causal: whether the layer is causal. Default: the layer's attribute `is_causal`.
        s_aux: (Hq,), the sink logits.
        others: further arguments. A sliding window is already part of the mask, and arguments that no implementation
            reads are ignored.

    Returns:
        The output (B, Tq, Hq, Dv), contiguous, and None in place of the weights.

    Raises:
        ArgumentError: the layer asks for something that heedful does not compute.
    """
    check_sharded_call(attention_mask, others)
    if others:
        _check_others(others)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    mask, bias = _mask_and_bias(
        attention_mask, position_bias, causal and all_tokens(query.shape[2]) > 1
    )
    output = attention(
        *(query, key, value, mask),
        bias=bias,
        scale=scaling,
        softcap=softcap,
        sinks=s_aux,
        dropout_p=dropout if module.training else 0.0,
    )
    assert isinstance(output, Tensor)  # because the lse was not requested
    return output.transpose(1, 2).contiguous(), None


def _mask_and_bias(
    attention_mask: Tensor | None, position_bias: Tensor | None, causal: bool
) -> tuple[Mask | None, Tensor | None]:
    """Split transformers' mask and position bias into a heedful mask and a bias that is added to the scores."""
    if isinstance(attention_mask, LazyMask):
        return attention_mask.mask, position_bias
    if attention_mask is None:
        # If Tq and Tk differ, transformers' own implementations use this alignment.
        return (Causal(align="start") if causal else None), position_bias
    if attention_mask.dim() != 4:
        raise ArgumentError(
            "attention_mask",
            expected="4 dimensions (B, 1 or Hq, Tq, Tk) at an attention layer",
            received=f"shape {tuple(attention_mask.shape)}",
            remedy='The model creates its masks itself: use model.set_attn_implementation("eager").',
        )
    if attention_mask.dtype == torch.bool:
        return Dense(attention_mask), position_bias
    return None, attention_mask if position_bias is None else position_bias + attention_mask


def _check_others(others: dict[str, Any]) -> None:
    """Raise `ArgumentError` for arguments that would change the result."""
    if others.get("output_attentions"):
        raise weights_error()
    for name in _UNSUPPORTED:
        if others.get(name) is not None:
            raise ArgumentError(
                name,
                expected="None, because heedful has no equivalent",
                received=type(others[name]).__name__,
                remedy='Use model.set_attn_implementation("eager") for this model.',
            )


@torch.no_grad()
def _check() -> None:
    """Compare logits and generated tokens of a tiny model with grouped heads, a sliding window and left padding."""
    from transformers import (  # pyright: ignore[reportMissingImports] - an extra
        MistralConfig,
        MistralForCausalLM,
    )

    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 5}
    tokens = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = MistralForCausalLM(MistralConfig(**sizes, **heads, **tokens)).eval()
        ids = torch.randint(1, 50, (2, 12))
    real = (torch.arange(12) >= torch.tensor([[0], [4]])).long()
    logits, texts = {}, {}
    for name in ("eager", NAME):
        model.set_attn_implementation(name)
        logits[name] = model(ids, attention_mask=real).logits[real.bool()]
        texts[name] = model.generate(  # pyright: ignore[reportAttributeAccessIssue] - a mixin's
            ids, attention_mask=real, max_new_tokens=6, do_sample=False
        )
    difference = (logits["eager"] - logits[NAME]).abs().max().item()
    same_texts = torch.equal(texts["eager"], texts[NAME])
    if difference > 1e-4 or not same_texts:
        raise HeedfulError(
            f"the check of heedful in transformers failed: logits differ by up to {difference:.2g}, generated tokens "
            f"{'agree' if same_texts else 'differ'}"
        )
