"""heedful inside transformers: `register`, and from then on ``model.set_attn_implementation("heedful")``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from heedful.errors import ArgumentError, HeedfulError, MissingExtraError
from heedful.functional import attention
from heedful.integrations.transformers_masks import make_mask, refused_weights
from heedful.integrations.unbuilt_mask import UnbuiltMask
from heedful.masks import Causal, Dense, Mask

NAME = "heedful"
# Arguments of single models that change what attention computes, and that we have no counterpart for.
_REFUSED = ("head_mask", "cache", "indices", "block_indices", "sinks")


def register(*, check: bool = False) -> None:
    """Make "heedful" an attention implementation of transformers, for every model that lets one choose::

        from heedful.integrations.transformers import register

        register()
        model.set_attn_implementation("heedful")    # or from_pretrained(…, attn_implementation="heedful")

    Padding on either side, packed sequences, sliding windows, chunks, caches (static ones too), soft-caps, sinks,
    position biases, grouped heads, cross-attention and dropout in training become heedful's masks and options; no
    mask of Tq x Tk entries is built, except for padding with holes and where a model computes with its mask.
    `torch.compile` breaks its graph where a mask is made, and only there: ``fullgraph=True`` is not to be had.
    A second time changes nothing.

    Args:
        check: also compare a tiny model with transformers' own eager attention, which takes about a second.

    Raises:
        MissingExtraError: transformers is not installed.
        HeedfulError: the check failed; this version of transformers does not say what we think it does.

    What it cannot serve, a forward pass refuses by an ArgumentError: attention weights (``output_attentions=True``),
    masks by functions of one's own, and arguments of single models that other implementations may know.
    """
    try:
        from transformers import (  # pyright: ignore[reportMissingImports] - an extra
            AttentionInterface,
            AttentionMaskInterface,
        )
    except ImportError as error:
        raise MissingExtraError("heedful.integrations.transformers", "transformers") from error

    AttentionInterface.register(NAME, attend)
    # to torch.compile, a tensor without entries is not to be made inside a graph
    AttentionMaskInterface.register(NAME, torch.compiler.disable(make_mask))
    if check:
        _check()


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: what each layer calls.

    Args:
        module: the layer; nothing is dropped unless it is in training.
        query: (B, Hq, Tq, D).
        key, value: (B, Hkv, Tk, D) and (B, Hkv, Tk, Dv); their heads are not repeated.
        attention_mask: what `make_mask` made; or the user's (B, 1 or Hq, Tq, Tk), Boolean (True = attend) or added to
            the scores; None: causal where the layer is, and there is more than one query.
        dropout, scaling, softcap, position_bias: `dropout_p`, `scale`, `softcap` and `bias` of `heedful.attention`.
        s_aux: (Hq,), the sink logits.
        others: a sliding window is in the mask already; what nobody else reads either is ignored.

    Returns:
        The output (B, Tq, Hq, Dv), contiguous, and None for the weights.

    Raises:
        ArgumentError: the layer asks for what we do not compute.
    """
    if others:
        _check_others(others)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    mask, bias = _mask_and_bias(attention_mask, position_bias, causal and query.shape[2] > 1)
    output = attention(
        *(query, key, value, mask),
        bias=bias,
        scale=scaling,
        softcap=softcap,
        sinks=s_aux,
        dropout_p=dropout if module.training else 0.0,
    )
    assert isinstance(output, Tensor)  # not asked for the lse
    return output.transpose(1, 2).contiguous(), None


def _mask_and_bias(
    attention_mask: Tensor | None, position_bias: Tensor | None, causal: bool
) -> tuple[Mask | None, Tensor | None]:
    """What is seen, and what is added to the scores."""
    if isinstance(attention_mask, UnbuiltMask):
        return attention_mask.mask, position_bias
    if attention_mask is None:
        # where Tq and Tk differ, transformers' own implementations align it so
        return (Causal(align="start") if causal else None), position_bias
    if attention_mask.dim() != 4:
        raise ArgumentError(
            "attention_mask",
            expected="4 dimensions (B, 1 or Hq, Tq, Tk) at an attention layer",
            received=f"shape {tuple(attention_mask.shape)}",
            remedy='The model makes its masks by itself: take model.set_attn_implementation("eager").',
        )
    if attention_mask.dtype == torch.bool:
        return Dense(attention_mask), position_bias
    return None, attention_mask if position_bias is None else position_bias + attention_mask


def _check_others(others: dict[str, Any]) -> None:
    """Raise ArgumentError where the layer asks for what would change the result."""
    if others.get("output_attentions"):
        raise refused_weights()
    for name in _REFUSED:
        if others.get(name) is not None:
            raise ArgumentError(
                name,
                expected="None: heedful has nothing that corresponds to it",
                received=type(others[name]).__name__,
                remedy='Take model.set_attn_implementation("eager") for this model.',
            )


@torch.no_grad()
def _check() -> None:
    """Compare logits and generated tokens of a tiny model: grouped heads, a sliding window, padding on the left."""
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
    apart = (logits["eager"] - logits[NAME]).abs().max().item()
    if apart > 1e-4 or not torch.equal(texts["eager"], texts[NAME]):
        raise HeedfulError(
            f"the check of heedful in transformers failed: logits differ by up to {apart:.2g}, generated tokens "
            f"{'agree' if torch.equal(texts['eager'], texts[NAME]) else 'differ'}"
        )
