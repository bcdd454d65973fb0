"""Attentions in the styles of public projects, and bugs that are planted in them one by one or two at a time.

They are another set than the planted corpus, in other styles. Each bug is one edit of a line of a base.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

BASES = Path(__file__).parent


@dataclass(frozen=True)
class Bug:
    """A bug that is planted into a base.

    Attributes:
        name: The name of the finding that describes it.
        old: The text that it replaces, which occurs once.
        new: The text in its place.
        known_as: The names of other findings that describe it fairly.
    """

    name: str
    old: str
    new: str
    known_as: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all findings that describe the bug."""
        return self.name, *self.known_as


@dataclass(frozen=True)
class Base:
    """A correct attention.

    Attributes:
        name: The stem of its file.
        entry: The name of its class.
        bugs: The bugs that can be planted in it.
        options: What a user would state: the options of check().
    """

    name: str
    entry: str
    bugs: tuple[Bug, ...]
    options: dict[str, Any]

    def source(self, *bugs: Bug) -> str:
        """Return the source with some bugs planted."""
        text = (BASES / f"{self.name}.py").read_text()
        for bug in bugs:
            assert text.count(bug.old) == 1, (self.name, bug.old)
            text = text.replace(bug.old, bug.new)
        return text

    def line(self, bug: Bug) -> int:
        """Return the line that a bug is planted on."""
        return self.source()[: self.source().index(bug.old)].count("\n") + 1

    def pairs(self) -> list[tuple[Bug, Bug]]:
        """Return every two bugs that stand on lines of their own and have different names."""
        return [
            (first, second)
            for first, second in combinations(self.bugs, 2)
            if self.line(first) != self.line(second) and not {*first.names} & {*second.names}
        ]

    def sample(self, count: int) -> list[tuple[Bug, Bug]]:
        """Return some of the pairs, spread evenly."""
        pairs = self.pairs()
        return pairs[:: max(len(pairs) // count, 1)][:count]


def _base(name: str, entry: str, *bugs: Bug, **options: Any) -> Base:
    return Base(name, entry, bugs, options)


B = Bug
SEVERAL: tuple[Base, ...] = (
    _base(
        "image", "PixelAttention",
        B("scale-wrong", "self.dim_head**-0.5", "(self.dim_head * self.heads) ** -0.5"),
        B("softmax-wrong-dim", "softmax(dim=-1)", "softmax(dim=-2)"),
        B("dropout-unused", "attn = self.drop(attn)", "attn = attn"),
        B("undefined-or-global-name", '"bhij,bhdj->bhdi", attn, v', '"bhij,bhdj->bhdi", atn, v'),
        B("heads-mixed-merge", '"bhij,bhdj->bhdi"', '"bhij,bhdj->bhid"'),
    ),
    _base(
        "annotated", "MultiHeadAttention",
        B("scale-wrong", "np.power(d_k, 0.5)", "np.power(d_model, 0.5)"),
        B("softmax-wrong-dim", "F.softmax(attn, dim=2)", "F.softmax(attn, dim=1)"),
        B("mask-unused", "mask=mask)\n        output = output.view", "mask=None)\n        output = output.view"),
        B("mask-broadcast", "mask.repeat(n_head, 1, 1)", "mask.repeat_interleave(n_head, 0)", ("padding-leak",)),
        B("dropout-misplaced", "attn = attn / self.temperature", "attn = self.dropout(attn / self.temperature)"),
        B("dropout-unused", "attn = self.dropout(attn)", "attn = attn", ("dropout-misplaced",)),
        B("projection-unused", "self.w_vs(v)", "self.w_ks(v)"),
        B("heads-mixed-merge", "output.permute(1, 2, 0, 3)", "output.permute(1, 0, 2, 3)"),
        B("undefined-or-global-name", "torch.bmm(attn, v), attn", "torch.bmm(attn, value), attn"),
    ),
    _base(
        "speech", "MultiHeadedAttention",
        B("scale-missing", " / self.d_k**0.5", ""),
        B("softmax-wrong-dim", "dim=-1", "dim=1"),
        B("mask-inverted", ">= lengths[:, None]", "< lengths[:, None]", ("padding-leak", "output-not-finite")),
        B("mask-broadcast", "mask[:, None, None, :]", "mask[:, None, :, None]", ("padding-leak",)),
        B("mask-fill-too-small", "torch.finfo(scores.dtype).min", "-1e-9"),
        B("mask-unused", "scores = scores.masked_fill(", "scores.masked_fill("),
        B("dropout-unused", "self.dropout(attn)", "attn"),
        B("heads-mixed-merge", "x.transpose(1, 2).contiguous()", "x.contiguous()"),
        B("projection-unused", "self.linear_k(key)", "self.linear_q(key)"),
        B("undefined-or-global-name", "return self.linear_out(x)", "return self.linear_out(xs)"),
    ),
    _base(
        "llama", "Attention",
        B("scale-wrong", "/ self.head_dim**0.5", "/ self.n_heads**0.5"),
        B("group-order", "repeat_kv(xk, self.n_rep)", "xk.repeat(1, 1, self.n_rep, 1)"),
        B("future-leak", "diagonal=1", "diagonal=2"),
        B("mask-unused", "F.softmax(scores + mask, dim=-1)", "F.softmax(scores, dim=-1)", ("future-leak",)),
        B("rotary-mismatch", "xk_ * freqs_cis", "xk_ * freqs_cis.conj()"),
        B("projection-unused", "return self.wo(output)", "return output"),
        B("heads-mixed-merge", "output.transpose(1, 2).contiguous()", "output.contiguous()"),
        B("undefined-or-global-name", "[:seqlen]", "[:seq_len]"),
        causal=True,
    ),
    _base(
        "bert", "BertSelfAttention",
        B("scale-wrong", "/ math.sqrt(self.attention_head_size)", "/ math.sqrt(self.all_head_size)"),
        B("mask-inverted", "(1.0 - attention_mask[:, None, None, :].to(hidden_states.dtype))", "attention_mask[:, None, None, :].to(hidden_states.dtype)"),
        B("mask-fill-too-small", "* -1e9", "* -1.0"),
        B("mask-unused", "attention_scores = attention_scores + extended", "attention_scores = attention_scores"),
        B("softmax-wrong-dim", "nn.Softmax(dim=-1)", "nn.Softmax(dim=-2)"),
        B("dropout-unused", "self.dropout(attention_probs)", "attention_probs"),
        B("keys-values-swapped", "torch.matmul(attention_probs, value_layer)", "torch.matmul(attention_probs, key_layer)", ("projection-unused",)),
        B("heads-mixed-split", "x = x.view(*new_x_shape)", "x = x.reshape(x.size(0), self.num_attention_heads, x.size(1), -1).permute(0, 2, 1, 3)"),
    ),
    _base(
        "window", "WindowAttention",
        B("scale-wrong", "** -0.5", "** 0.5"),
        B("softmax-wrong-dim", "softmax(dim=-1)", "softmax(dim=1)"),
        B("dropout-unused", "attn = self.attn_drop(attn)", "attn = attn"),
        B("heads-mixed-merge", "(attn @ v).transpose(1, 2)", "(attn @ v)"),
        B("heads-mixed-split", ".reshape(B_, N, 3, self.num_heads, C // self.num_heads)", ".reshape(B_, 3, N, self.num_heads, C // self.num_heads).transpose(1, 2)"),
        B("keys-values-swapped", "qkv[0], qkv[1], qkv[2]", "qkv[0], qkv[2], qkv[2]", ("projection-unused",)),
        B("undefined-or-global-name", "return self.proj(x)", "return self.proj(out)"),
    ),
    _base(
        "tokens_first", "SelfAttention",
        B("scale-wrong", "self.head_dim**-0.5", "embed_dim**-0.5"),
        B("self-hidden", ".triu(1)", ".triu(0)"),
        B("mask-broadcast", "[:, None, None, :]", "[:, None, :, None]", ("padding-leak",)),
        B("mask-unused", "weights = weights.masked_fill(future", "weights.masked_fill(future", ("future-leak",)),
        B("dropout-in-eval", "training=self.training", "training=True"),
        B("softmax-wrong-dim", "dim=-1)\n        weights = F.dropout", "dim=1)\n        weights = F.dropout"),
        B("heads-mixed-merge", "attn.transpose(0, 1).contiguous()", "attn.contiguous()", ("batch-mixed",)),
        causal=True,
    ),
    _base(
        "einops_cross", "CrossAttention",
        B("scale-wrong", "dim_head**-0.5", "inner_dim**-0.5"),
        B("mask-inverted", "~mask[:, None, None, :]", "mask[:, None, None, :]"),
        B("mask-unused", "sim = sim.masked_fill(", "sim.masked_fill("),
        B("mask-fill-positive", "-torch.finfo(sim.dtype).max", "torch.finfo(sim.dtype).max", ("mask-inverted",)),
        B("softmax-wrong-dim", "softmax(dim=-1)", "softmax(dim=-2)"),
        B("heads-mixed-split", "t.reshape(b, n, self.heads, -1).transpose(1, 2)", "t.reshape(b, self.heads, n, -1)"),
        B("heads-mixed-merge", "out.transpose(1, 2).flatten(2)", "out.reshape(x.shape[0], x.shape[1], -1)"),
        B("dropout-unused", "attn = self.dropout(attn)", "attn = attn"),
        B("undefined-or-global-name", "return self.to_out(out)", "return self.to_out(output)"),
    ),
    _base(
        "fields", "InteractingLayer",
        B("scale-missing", "inner_product /= self.att_embedding_size**0.5", "inner_product /= 1"),
        B("softmax-wrong-dim", "dim=-1)\n        result = torch.matmul", "dim=1)\n        result = torch.matmul"),
        B("keys-values-swapped", "torch.matmul(normalized_att_scores, values)", "torch.matmul(normalized_att_scores, keys)", ("projection-unused",)),
        B("projection-unused", "torch.tensordot(inputs, self.W_key", "torch.tensordot(inputs, self.W_Query"),
        B("undefined-or-global-name", "torch.squeeze(result", "torch.squeeze(results"),
    ),
    _base(
        "graph", "GraphTransformerLayer",
        B("scale-missing", " / self.d_k**0.5", ""),
        B("softmax-wrong-dim", "dim=-1", "dim=1"),
        B("mask-unused", "score = score.masked_fill(", "score.masked_fill("),
        B("heads-mixed-merge", ".transpose(1, 2).reshape(bs, n, -1)", ".reshape(bs, n, -1)"),
        B("projection-unused", "return self.o(h)", "return h"),
    ),
    _base(
        "cached", "CausalSelfAttention",
        B("scale-wrong", "k.size(-1) ** -0.5", "C**-0.5"),
        B("causal-alignment", "self.bias[S - T : S, :S]", "self.bias[:T, :S]"),
        B("cache-mismatch", "layer_past[0], k)", "k, layer_past[0])", ("causal-alignment",)),
        B("softmax-wrong-dim", "softmax(dim=-1)", "softmax(dim=-2)"),
        B("mask-fill-too-small", 'float("-inf")', "-10.0"),
        B("heads-mixed-split", "k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)", "k = k.reshape(B, self.n_head, T, C // self.n_head)"),
        B("heads-mixed-merge", "y.transpose(1, 2).contiguous()", "y.contiguous()"),
        B("dropout-unused", "att = self.attn_dropout(att)", "att = att"),
        causal=True,
    ),
    _base(
        "packed", "Attention",
        B("scale-wrong", "attn_mask=attn_mask, ", "attn_mask=attn_mask, scale=C**-0.5, "),
        B("dropout-in-eval", "self.attn_drop.p if self.training else 0.0", "self.attn_drop.p"),
        B("dropout-unused", "self.attn_drop.p if self.training else 0.0", "0.0"),
        B("mask-unused", "attn_mask=attn_mask", "attn_mask=None"),
        B("heads-mixed-merge", "x = x.transpose(1, 2).reshape(B, N, C)", "x = x.reshape(B, N, C)"),
        B("projection-unused", "self.proj_drop(self.proj(x))", "self.proj_drop(x)"),
        B("keys-values-swapped", "q, k, v = qkv.unbind(0)", "q, k, v = qkv[0], qkv[0], qkv[2]", ("projection-unused",)),
    ),
)  # fmt: skip
