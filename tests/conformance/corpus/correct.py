"""Correct attentions, written in many ways. A check must not report a bug in any of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from corpus import designs, unusual
from corpus.mutants import BASES, OPTIONS, load
from torch import Tensor, nn

import heedful
from heedful import textbook
from heedful.gpt.config import GPTConfig
from heedful.gpt.model import GPT
from heedful.nn import MultiHeadAttention, RotaryEmbedding

Built = tuple[Any, dict[str, Any]]

# For each name a function that builds the target and the options of its check.
CORRECT: dict[str, Callable[[], Built]] = {}


def correct(name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Enter a function that builds a target, or a target and options, under a name."""

    def enter(build: Callable[[], Any]) -> Callable[[], Any]:
        def build_with_options() -> Built:
            target = build()
            return target if isinstance(target, tuple) else (target, {})

        CORRECT[name] = build_with_options
        return build

    return enter


for _base, _options in OPTIONS.items():
    correct(f"base {_base}")(
        lambda base=_base, options=_options: (load(BASES / f"{base}.py"), options)
    )

correct("nn.MultiheadAttention")(lambda: nn.MultiheadAttention(24, 4))
correct("nn.MultiheadAttention, batch first")(
    lambda: nn.MultiheadAttention(24, 4, batch_first=True)
)
correct("nn.MultiheadAttention with dropout")(
    lambda: nn.MultiheadAttention(24, 4, dropout=0.2, batch_first=True)
)
correct("nn.TransformerEncoderLayer")(lambda: nn.TransformerEncoderLayer(24, 4, 32))
correct("nn.TransformerEncoderLayer, batch and norm first")(
    lambda: nn.TransformerEncoderLayer(24, 4, 32, batch_first=True, norm_first=True)
)
correct("nn.TransformerDecoderLayer")(
    lambda: nn.TransformerDecoderLayer(24, 4, 32, batch_first=True)
)
correct("nn.MultiheadAttention, keys and values of other sizes")(
    lambda: (
        nn.MultiheadAttention(24, 4, kdim=20, vdim=16, batch_first=True),
        {"example": tuple(torch.randn(2, 7, size) for size in (24, 20, 16))},
    )
)
correct("F.scaled_dot_product_attention")(lambda: F.scaled_dot_product_attention)
correct("heedful.attention")(lambda: heedful.attention)
for _definition in (
    textbook.SelfAttentionV1, textbook.SelfAttentionV2, textbook.CausalAttention,
    textbook.MultiHeadAttentionWrapper, textbook.MultiHeadAttention, textbook.EinsumMultiHeadAttention,
):  # fmt: skip
    correct(f"textbook.{_definition.__name__}")(lambda definition=_definition: definition)
correct("heedful.nn.MultiHeadAttention")(lambda: MultiHeadAttention(24, 4))
correct("heedful.nn.MultiHeadAttention, grouped and rotary")(
    lambda: MultiHeadAttention(24, 4, num_kv_heads=2, rotary=RotaryEmbedding(6))
)
correct("heedful.nn.MultiHeadAttention, interleaved rotary and windowed")(
    lambda: MultiHeadAttention(24, 4, rotary=RotaryEmbedding(6, layout="interleaved"), window=3)
)
correct("heedful.nn.MultiHeadAttention, soft-capped")(
    lambda: MultiHeadAttention(24, 4, softcap=5.0)
)
correct("heedful.nn.MultiHeadAttention, bidirectional, with dropout")(
    lambda: MultiHeadAttention(24, 4, causal=False, dropout=0.2)
)
_TINY = {"vocab_size": 37, "context_length": 32, "d_model": 24, "num_layers": 2, "num_heads": 4}
correct("heedful.gpt.GPT as Llama")(lambda: GPT(GPTConfig.llama(**_TINY, num_kv_heads=2, d_mlp=32)))
correct("heedful.gpt.GPT as GPT-2")(lambda: GPT(GPTConfig.gpt2(**_TINY, num_kv_heads=4, d_mlp=32)))
correct("the attention of heedful.gpt.GPT")(
    lambda: next(
        module for module in GPT(GPTConfig.llama(**_TINY, num_kv_heads=2, d_mlp=32)).modules()
        if isinstance(module, MultiHeadAttention)
    )
)  # fmt: skip


# --- transformers ------------------------------------------------------------------------------------

_SIZES = {
    "hidden_size": 24, "num_attention_heads": 4, "intermediate_size": 32, "num_hidden_layers": 2,
    "vocab_size": 37, "bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip


def _llama(**changes: Any) -> Any:
    import transformers

    return transformers.LlamaConfig(**_SIZES, num_key_value_heads=2, **changes)


@correct("transformers' Llama attention")
def _() -> Any:
    from transformers.models.llama.modeling_llama import LlamaAttention

    return LlamaAttention(_llama(attn_implementation="eager"), 0)


@correct("transformers' Mistral attention")
def _() -> Any:
    import transformers
    from transformers.models.mistral.modeling_mistral import MistralAttention

    config = transformers.MistralConfig(
        **_SIZES, num_key_value_heads=2, head_dim=6, sliding_window=4, attn_implementation="eager"
    )
    return MistralAttention(config, 0)


@correct("transformers' GPT-2 attention")
def _() -> Any:
    import transformers
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

    config = transformers.GPT2Config(
        n_embd=24, n_head=4, n_positions=32, attn_implementation="eager"
    )
    return GPT2Attention(config, layer_idx=0)


@correct("transformers' BERT attention")
def _() -> Any:
    import transformers
    from transformers.models.bert.modeling_bert import BertSelfAttention

    return BertSelfAttention(transformers.BertConfig(**_SIZES, attn_implementation="eager"))


@correct("transformers' Gemma-2 attention, soft-capped")
def _() -> Any:
    import transformers
    from transformers.models.gemma2.modeling_gemma2 import Gemma2Attention

    config = transformers.Gemma2Config(
        **_SIZES, num_key_value_heads=2, head_dim=6, query_pre_attn_scalar=6, sliding_window=4,
        attn_implementation="eager",
    )  # fmt: skip
    return Gemma2Attention(config, 0)


@correct("transformers' T5 attention, with a learned bias and no scale")
def _() -> Any:
    import transformers
    from transformers.models.t5.modeling_t5 import T5Attention

    config = transformers.T5Config(d_model=24, d_kv=6, num_heads=4, d_ff=32, vocab_size=37)
    return T5Attention(config, has_relative_attention_bias=True)


@correct("transformers' GPT-Neo attention, with no scale")
def _() -> Any:
    import transformers
    from transformers.models.gpt_neo.modeling_gpt_neo import GPTNeoSelfAttention

    config = transformers.GPTNeoConfig(
        hidden_size=24, num_heads=4, num_layers=1, attention_types=[[["global"], 1]], vocab_size=37,
        max_position_embeddings=64, bos_token_id=0, eos_token_id=0, attn_implementation="eager",
    )  # fmt: skip
    return GPTNeoSelfAttention(config, "global", 0)


@correct("transformers' GPT-NeoX attention, partly rotated")
def _() -> Any:
    import transformers
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXAttention

    config = transformers.GPTNeoXConfig(
        **_SIZES | {"hidden_size": 32, "attn_implementation": "eager"}
    )
    return GPTNeoXAttention(config, 0)


@correct("transformers' BERT, with a padding token")
def _() -> Any:
    import transformers

    return transformers.BertModel(transformers.BertConfig(**_SIZES, attn_implementation="eager"))


@correct("transformers' Llama, eager")
def _() -> Any:
    import transformers

    return transformers.LlamaForCausalLM(_llama(attn_implementation="eager"))


@correct("transformers' Llama under heedful")
def _() -> Any:
    import transformers

    from heedful.integrations.transformers import register

    register()
    model = transformers.LlamaForCausalLM(_llama())
    model.set_attn_implementation("heedful")
    return model


@correct("transformers' Mistral under heedful")
def _() -> Any:
    import transformers

    from heedful.integrations.transformers import register

    register()
    config = transformers.MistralConfig(
        **_SIZES, num_key_value_heads=2, head_dim=6, sliding_window=4
    )
    model = transformers.MistralForCausalLM(config)
    model.set_attn_implementation("heedful")
    return model


# --- unusual ones ------------------------------------------------------------------------------------


for _module in (unusual, designs):
    for _name, _definition in vars(_module).items():
        if getattr(_definition, "__module__", None) == _module.__name__ and _name[0] != "_":
            correct(_definition.__doc__)(_definition)


class _Packed(nn.Module):
    """Packed projections around weights that a subclass computes."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(24, 72)
        self.out = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, 4, 6).permute(2, 0, 3, 1, 4)
        weights = self.weights(q, k)
        return self.out((weights @ v).transpose(1, 2).reshape(B, T, 24))

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        raise NotImplementedError


@correct("a constant that is added to all scores")
class _ShiftedScores(_Packed):
    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT / 6**0.5 + 3.0).softmax(-1)


@correct("soft-capped scores")
class _SoftCapped(_Packed):
    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        return (5 * torch.tanh(q @ k.mT / 6**0.5 / 5)).softmax(-1)


@correct("the scale split between queries and keys")
class _SplitScale(_Packed):
    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        return ((q * 6**-0.25) @ (k * 6**-0.25).mT).softmax(-1)


@correct("queries and keys of length 1")
class _UnitVectors(_Packed):
    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        return (10 * F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT).softmax(-1)


@correct("a softmax written out, with the maximum subtracted")
class _WrittenOutSoftmax(_Packed):
    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        scores = q @ k.mT / 6**0.5
        exponentials = torch.exp(scores - scores.amax(-1, keepdim=True))
        return exponentials / exponentials.sum(-1, keepdim=True)


@correct("a bias that falls with the distance")
class _Alibi(_Packed):
    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        T = q.shape[2]
        distance = torch.arange(T)[:, None] - torch.arange(T)[None, :]
        slopes = 2.0 ** -torch.arange(1, 5)[:, None, None]
        scores = q @ k.mT / 6**0.5 - slopes * distance
        return scores.masked_fill(distance < 0, -1e9).softmax(-1)


@correct("an additive mask of zeros and −∞")
class _AdditiveMask(_Packed):
    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        T = q.shape[2]
        mask = torch.full((T, T), float("-inf"), dtype=q.dtype).triu(1)
        return (q @ k.mT / 6**0.5 + mask).softmax(-1)


@correct("a residual connection and a norm around the attention")
class _ResidualBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(24)
        self.attention = textbook.MultiHeadAttention(24, 24, context_length=32, num_heads=4, dropout=0.1)  # fmt: skip
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.attention(self.norm(x)))


@correct("the scale folded into the query projection by the constructor")
class _FoldedScale(_Packed):
    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.qkv.weight[:24] /= 6**0.5
            self.qkv.bias[:24] /= 6**0.5

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT).softmax(-1)


@correct("a function on (B, H, T, D)")
def _function() -> Any:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value

    return attend
