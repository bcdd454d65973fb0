"""Bugs, each a small edit of a right attention, as they were reported of real code or are easily made."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

BASES = Path(__file__).parent / "bases"

# What a user would say of each; constructor arguments are left to be guessed.
OPTIONS: dict[str, dict[str, Any]] = {
    "single": {"causal": True},
    "split": {"causal": True},
    "packed": {"causal": True},
    "einsums": {"causal": True},
    "fused": {"causal": True},
    "listed": {"causal": True},
    "folded": {"causal": True},
    "cached": {"causal": True},
    "encoder": {},
    "windowed": {"causal": True},
    "annotated": {},
    "padded": {},
    "decoder": {"causal": True},
    "slots": {"causal": True},
    "cross": {"arguments": {"context_dim": 20}},
    "circuits": {"causal": True},
    "alibi": {"causal": True},
}


@dataclass(frozen=True)
class Mutant:
    """A base with one bug.

    Attributes:
        base: the stem of its file.
        bug: the name of the finding that says it.
        old, new: the edit; `old` stands in the base once.
        known_as: other names that say the same, or are a fair reading of the same edit.
    """

    base: str
    bug: str
    old: str
    new: str
    known_as: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return self.bug, *self.known_as

    @property
    def source(self) -> str:
        """The base's source with the bug.

        Raises:
            ValueError: the edit does not fit the base, or not in one place.
        """
        source = (BASES / f"{self.base}.py").read_text()
        if source.count(self.old) != 1:
            raise ValueError(
                f"{self.base}: {self.old!r} stands there {source.count(self.old)} times"
            )
        return source.replace(self.old, self.new)

    @property
    def line(self) -> int | None:
        """The line that the bug sits on; None if it takes several, or is one that is missing."""
        before = (BASES / f"{self.base}.py").read_text().splitlines()
        after = self.source.splitlines()
        if len(before) != len(after):
            return None
        differing = [n for n, (a, b) in enumerate(zip(before, after, strict=True), 1) if a != b]
        return differing[0] if len(differing) == 1 else None


def load(path: Path) -> type[nn.Module]:
    """The class of a base's or a mutant's file that is meant: the last one."""
    module = _imported(path)
    classes = [
        it for it in vars(module).values() if isinstance(it, type) and issubclass(it, nn.Module)
    ]
    return [it for it in classes if it.__module__ == module.__name__][-1]


def _imported(path: Path) -> ModuleType:
    name = f"conformance_corpus_{path.stem}_{abs(hash(path))}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def built(mutant: Mutant, folder: Path) -> type[nn.Module]:
    """The mutant's class, from a file of its own."""
    path = folder / f"{mutant.base}_{MUTANTS.index(mutant)}.py"
    path.write_text(mutant.source)
    torch.manual_seed(0)
    return load(path)


def _edits() -> Iterator[Mutant]:
    for base, edits in EDITS.items():
        for bug, old, new, *known_as in edits:
            yield Mutant(base, bug, old, new, tuple(known_as))


EDITS: dict[str, list[tuple[str, ...]]] = {
    "single": [
        ("mask-unused", "attn_scores.masked_fill_(", "attn_scores.masked_fill("),
        ("mask-unused", "ahead = torch.triu(torch.ones(context_length, context_length), diagonal=1)", "ahead = torch.zeros(context_length, context_length)", "future-leak"),
        ("mask-inverted", "self.mask.bool()[", "~self.mask.bool()["),
        ("mask-inverted", "torch.triu(torch.ones(context_length, context_length), diagonal=1)", "torch.tril(torch.ones(context_length, context_length), diagonal=-1)"),
        ("future-leak", "diagonal=1", "diagonal=2"),
        ("self-hidden", "diagonal=1", "diagonal=0"),
        ("mask-fill-too-small", "-torch.inf", "-1e4"),
        ("mask-fill-too-small", "-torch.inf", "-20.0"),
        ("mask-fill-too-small", "-torch.inf", "0.0"),
        ("mask-not-a-buffer", 'self.register_buffer("mask", ahead)', "self.mask = ahead"),
        ("softmax-wrong-dim", "keys.shape[-1] ** 0.5, dim=-1)", "keys.shape[-1] ** 0.5, dim=1)"),
        ("softmax-wrong-dim", "keys.shape[-1] ** 0.5, dim=-1)", "keys.shape[-1] ** 0.5, dim=0)"),
        ("rows-not-normalised", "torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)", "torch.sigmoid(attn_scores / keys.shape[-1] ** 0.5)"),
        ("rows-not-normalised", "torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)", "torch.exp(attn_scores / keys.shape[-1] ** 0.5)"),
        ("scale-missing", "attn_scores / keys.shape[-1] ** 0.5", "attn_scores"),
        ("scale-wrong", "/ keys.shape[-1] ** 0.5", "* keys.shape[-1] ** 0.5"),
        ("scale-wrong", "/ keys.shape[-1] ** 0.5", "/ keys.shape[-2] ** 0.5"),
        ("scale-wrong", "/ keys.shape[-1] ** 0.5", "/ keys.shape[-1]"),
        ("batch-mixed", "b, num_tokens, d_in = x.shape", "b, num_tokens, d_in = x.shape; x = x + x.mean(0)"),
        ("keys-values-swapped", "queries @ keys.transpose(1, 2)", "queries @ values.transpose(1, 2)", "projection-unused"),
        ("dropout-in-eval", "self.dropout(attn_weights)", "torch.dropout(attn_weights, 0.2, True)"),
        ("dropout-misplaced", "attn_weights = self.dropout(attn_weights)\n        context_vec = attn_weights @ values", "context_vec = attn_weights @ values\n        context_vec = self.dropout(context_vec)"),
        ("dropout-misplaced", "queries @ keys.transpose(1, 2)", "self.dropout(queries @ keys.transpose(1, 2))"),
        ("dropout-rescale", "self.dropout(attn_weights)", "attn_weights * (torch.rand_like(attn_weights) > 0.25) if self.training else attn_weights"),
        ("projection-unused", "values = x @ self.W_value", "values = x @ self.W_key"),
        ("gradient-wrong", "queries @ keys.transpose(1, 2)", "queries @ keys.detach().transpose(1, 2)"),
        ("gradient-wrong", "attn_weights @ values", "attn_weights.data @ values"),
        ("undefined-or-global-name", "attn_weights @ values", "attn_weight @ values"),
        ("undefined-or-global-name", "self.mask.bool()[:num_tokens, :num_tokens]", "self.mask.bool()[:num_token, :num_token]"),
        ("stale-state", "return context_vec", "self.calls = getattr(self, 'calls', 0) + 1; return context_vec * self.calls"),
        ("length-dependent", "return context_vec", "return context_vec * (1.0 if num_tokens < 9 else 1.1)"),
        ("crashes", "num_tokens, d_in = x.shape", "num_tokens, d_in, h = x.shape"),
    ],
    "split": [
        ("mask-unused", "attn_scores = attn_scores.masked_fill(", "attn_scores.masked_fill("),
        ("mask-inverted", "masked_fill(mask_bool,", "masked_fill(~mask_bool,"),
        ("mask-inverted", "torch.triu(ones, diagonal=1)", "torch.tril(ones, diagonal=-1)"),
        ("future-leak", "diagonal=1", "diagonal=2"),
        ("self-hidden", "torch.triu(ones, diagonal=1)", "torch.triu(ones)"),
        ("mask-fill-too-small", "-torch.inf", "-1e4"),
        ("mask-fill-too-small", "-torch.inf", "1e-9"),
        ("mask-not-a-buffer", 'self.register_buffer("mask", torch.triu(ones, diagonal=1))', "self.mask = torch.triu(ones, diagonal=1)"),
        ("softmax-wrong-dim", "keys.shape[-1] ** 0.5, dim=-1)", "keys.shape[-1] ** 0.5, dim=1)"),
        ("softmax-wrong-dim", "keys.shape[-1] ** 0.5, dim=-1)", "keys.shape[-1] ** 0.5, dim=2)"),
        ("rows-not-normalised", "torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1)", "torch.relu(attn_scores / keys.shape[-1] ** 0.5)"),
        ("scale-missing", "attn_scores / keys.shape[-1] ** 0.5", "attn_scores"),
        ("scale-wrong", "keys.shape[-1] ** 0.5", "self.d_out ** 0.5"),
        ("scale-wrong", "keys.shape[-1] ** 0.5", "self.num_heads ** 0.5"),
        ("scale-wrong", "keys.shape[-1] ** 0.5", "keys.shape[1]"),
        ("heads-mixed-split", "keys = keys.view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)", "keys = keys.view(b, self.num_heads, num_tokens, self.head_dim)"),
        ("heads-mixed-split", "queries = queries.view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)", "queries = queries.view(b, self.num_heads, num_tokens, self.head_dim)"),
        ("heads-mixed-split", "values = values.view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)", "values = values.view(b, self.num_heads, num_tokens, self.head_dim)"),
        ("heads-mixed-merge", "context_vec.transpose(1, 2).reshape(", "context_vec.reshape("),
        ("heads-mixed-merge", "context_vec.transpose(1, 2).reshape(", "context_vec.transpose(1, 3).reshape("),
        ("keys-values-swapped", "queries @ keys.transpose(2, 3)", "queries @ values.transpose(2, 3)", "projection-unused"),
        ("dropout-in-eval", "self.dropout(attn_weights)", "torch.dropout(attn_weights, 0.2, True)"),
        ("dropout-misplaced", "attn_weights = self.dropout(attn_weights)\n        context_vec = attn_weights @ values", "context_vec = attn_weights @ values\n        context_vec = self.dropout(context_vec)"),
        ("dropout-misplaced", "queries @ keys.transpose(2, 3)", "self.dropout(queries @ keys.transpose(2, 3))"),
        ("dropout-rescale", "self.dropout(attn_weights)", "attn_weights * (torch.rand_like(attn_weights) > 0.25) if self.training else attn_weights"),
        ("projection-unused", "values = self.W_value(x)", "values = self.W_key(x)"),
        ("gradient-wrong", "queries @ keys.transpose(2, 3)", "queries @ keys.transpose(2, 3).detach()"),
        ("gradient-wrong", "values = self.W_value(x)", "values = self.W_value(x).data"),
        ("undefined-or-global-name", "attn_weights @ values", "attn_weight @ values"),
        ("batch-mixed", "context_vec = attn_weights @ values", "context_vec = attn_weights @ values.flip(0)"),
        ("stale-state", "return self.out_proj(context_vec)", "self.seen = getattr(self, 'seen', 0) + 1; return self.out_proj(context_vec) / self.seen"),
        ("length-dependent", "b, num_tokens, d_in = x.shape", "b, num_tokens, d_in = x.shape; x = x[:, :8] if num_tokens == 16 else x", "crashes"),
        ("stride-dependent", "keys = self.W_key(x)", "keys = self.W_key(torch.as_strided(x, x.shape, (num_tokens * d_in, d_in, 1)))"),
    ],
    "packed": [
        ("mask-unused", "att = att.masked_fill(", "att.masked_fill("),
        ("mask-inverted", "== 0, float", "== 1, float"),
        ("mask-inverted", "torch.tril(", "torch.triu("),
        ("future-leak", "torch.tril(torch.ones(block_size, block_size))", "torch.tril(torch.ones(block_size, block_size), 1)"),
        ("self-hidden", "torch.tril(torch.ones(block_size, block_size))", "torch.tril(torch.ones(block_size, block_size), -1)"),
        ("mask-fill-too-small", 'float("-inf")', "-1e4"),
        ("mask-fill-too-small", 'att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))', "att * self.bias[:, :, :T, :T]"),
        ("mask-after-softmax", 'att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))\n        att = F.softmax(att, dim=-1)', "att = F.softmax(att, dim=-1)\n        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, 0.0)"),
        ("mask-after-softmax", 'att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))\n        att = F.softmax(att, dim=-1)', "att = F.softmax(att, dim=-1)\n        att = att * self.bias[:, :, :T, :T]"),
        ("mask-not-a-buffer", 'self.register_buffer("bias", lower.view(1, 1, block_size, block_size))', "self.bias = lower.view(1, 1, block_size, block_size)"),
        ("softmax-wrong-dim", "F.softmax(att, dim=-1)", "F.softmax(att, dim=-2)"),
        ("softmax-wrong-dim", "F.softmax(att, dim=-1)", "F.softmax(att, dim=1)"),
        ("rows-not-normalised", "F.softmax(att, dim=-1)", "torch.exp(att)"),
        ("scale-missing", " * (1.0 / math.sqrt(k.size(-1)))", ""),
        ("scale-wrong", "math.sqrt(k.size(-1))", "math.sqrt(C)"),
        ("scale-wrong", "(1.0 / math.sqrt(k.size(-1)))", "math.sqrt(k.size(-1))"),
        ("heads-mixed-split", "k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)", "k = k.reshape(B, self.n_head, T, C // self.n_head)"),
        ("heads-mixed-split", "q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)", "q = q.reshape(B, self.n_head, T, C // self.n_head)"),
        ("heads-mixed-merge", "y.transpose(1, 2).contiguous().view(B, T, C)", "y.contiguous().view(B, T, C)"),
        ("keys-values-swapped", "(q @ k.transpose(-2, -1))", "(q @ v.transpose(-2, -1))", "projection-unused"),
        ("keys-values-swapped", "y = att @ v", "y = att @ k", "projection-unused"),
        ("dropout-in-eval", "self.attn_dropout(att)", "F.dropout(att, 0.2)"),
        ("dropout-misplaced", "att = self.attn_dropout(att)\n        y = att @ v", "y = att @ v\n        y = self.attn_dropout(y)"),
        ("dropout-misplaced", "att = F.softmax(att, dim=-1)\n        att = self.attn_dropout(att)", "att = self.attn_dropout(att)\n        att = F.softmax(att, dim=-1)"),
        ("dropout-rescale", "self.attn_dropout(att)", "att * (torch.rand_like(att) > 0.25) if self.training else att"),
        ("dropout-rescale", "self.attn_dropout(att)", "self.attn_dropout(att) / 0.75 if self.training else att"),
        ("gradient-wrong", "y = att @ v", "y = att @ v.detach()"),
        ("undefined-or-global-name", "y = att @ v", "y = atn @ v"),
        ("batch-mixed", "y = att @ v", "y = att.roll(1, 0) @ v"),
        ("stale-state", "att = self.attn_dropout(att)", "self.bias.mul_(torch.ones_like(self.bias).tril(-1)); att = self.attn_dropout(att)"),
        ("length-dependent", "return y", "return y if T % 8 else y.flip(-1)"),
    ],
    "einsums": [
        ("mask-unused", "sim = sim.masked_fill(", "sim.masked_fill("),
        ("mask-inverted", "masked_fill(causal_mask,", "masked_fill(~causal_mask,"),
        ("mask-inverted", ".triu(1)", ".tril(-1)"),
        ("future-leak", ".triu(1)", ".triu(2)"),
        ("self-hidden", ".triu(1)", ".triu()"),
        ("mask-fill-too-small", "-torch.finfo(sim.dtype).max", "torch.finfo(sim.dtype).tiny"),
        ("mask-fill-too-small", "-torch.finfo(sim.dtype).max", "-1e3"),
        ("softmax-wrong-dim", "softmax(dim=-1)", "softmax(dim=0)"),
        ("softmax-wrong-dim", "softmax(dim=-1)", "softmax(dim=1)"),
        ("softmax-wrong-dim", "softmax(dim=-1)", "softmax(dim=-2)"),
        ("rows-not-normalised", "sim.softmax(dim=-1)", "sim.sigmoid()"),
        ("scale-missing", "q = q * self.scale", "q = q * 1"),
        ("scale-wrong", "self.scale = dim_head**-0.5", "self.scale = dim**-0.5"),
        ("scale-wrong", "self.scale = dim_head**-0.5", "self.scale = heads**-0.5"),
        ("scale-wrong", "self.scale = dim_head**-0.5", "self.scale = dim_head**0.5"),
        ("scale-wrong", "q = q * self.scale", "q, k = q * self.scale, k * self.scale"),
        ("heads-mixed-split", "t.reshape(b, n, self.heads, -1)", "t.reshape(b, self.heads, n, -1).transpose(1, 2)"),
        ("heads-mixed-merge", '"bhij,bjhd->bihd"', '"bhij,bjhd->bhid"'),
        ("keys-values-swapped", '"bihd,bjhd->bhij", q, k)', '"bihd,bjhd->bhij", q, v)', "projection-unused"),
        ("keys-values-swapped", "attn, v)", "attn, k)", "projection-unused"),
        ("batch-mixed", "out = out.reshape(b, n, -1)", "out = out.transpose(0, 1).reshape(b, n, -1)", "heads-mixed-merge"),
        ("dropout-in-eval", "self.dropout(attn)", "torch.dropout(attn, 0.2, True)"),
        ("dropout-misplaced", "attn = sim.softmax(dim=-1)\n        attn = self.dropout(attn)", "attn = self.dropout(sim)\n        attn = attn.softmax(dim=-1)"),
        ("dropout-rescale", "self.dropout(attn)", "attn * (torch.rand_like(attn) > 0.25) if self.training else attn"),
        ("projection-unused", "q = self.to_q(x)", "q = self.to_kv(x).chunk(2, dim=-1)[0]", "keys-values-swapped"),
        ("gradient-wrong", "attn = sim.softmax(dim=-1)", "attn = sim.detach().softmax(dim=-1)"),
        ("undefined-or-global-name", "out = out.reshape(b, n, -1)", "out = out.reshape(b, m, -1)"),
        ("stale-state", "return self.to_out(out)", "self.scale = self.scale * 0.9; return self.to_out(out)"),
    ],
    "fused": [
        ("future-leak", "is_causal=True", "is_causal=False"),
        ("mask-inverted", "is_causal=True", "attn_mask=q.new_ones(seq, seq).triu(1).bool()"),
        ("mask-inverted", "is_causal=True", "attn_mask=q.new_ones(seq, seq).triu().bool()"),
        ("self-hidden", "is_causal=True", "attn_mask=q.new_ones(seq, seq).tril(-1).bool()"),
        ("future-leak", "is_causal=True", "attn_mask=q.new_ones(seq, seq).tril(1).bool()"),
        ("mask-fill-too-small", "is_causal=True", "attn_mask=q.new_ones(seq, seq).triu(1) * -1e4"),
        ("mask-fill-too-small", "is_causal=True", "attn_mask=q.new_ones(seq, seq).tril()", "future-leak"),
        ("scale-missing", "is_causal=True", "is_causal=True, scale=1.0"),
        ("scale-wrong", "is_causal=True", "is_causal=True, scale=dim**-0.5"),
        ("scale-wrong", "is_causal=True", "is_causal=True, scale=self.head_dim**0.5"),
        ("scale-wrong", "k = k.repeat_interleave", "k = k / self.head_dim**0.5; k = k.repeat_interleave"),
        ("heads-mixed-split", "q = self.q_proj(x).view(bsz, seq, self.num_heads, self.head_dim).transpose(1, 2)", "q = self.q_proj(x).view(bsz, self.num_heads, seq, self.head_dim)"),
        ("heads-mixed-split", "k = self.k_proj(x).view(bsz, seq, self.num_kv_heads, self.head_dim).transpose(1, 2)", "k = self.k_proj(x).view(bsz, self.num_kv_heads, seq, self.head_dim)"),
        ("heads-mixed-merge", "out.transpose(1, 2).reshape", "out.reshape"),
        ("group-order", "k = k.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1)", "k = k.repeat(1, self.num_heads // self.num_kv_heads, 1, 1)"),
        ("group-order", "v = v.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1)", "v = v.repeat(1, self.num_heads // self.num_kv_heads, 1, 1)"),
        ("undefined-or-global-name", "v = v.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1)", "v = torch.cat([v] * (self.num_heads // self.num_kv_heads), dim=1)"),
        ("keys-values-swapped", "attention(q, k, v,", "attention(q, v, k,"),
        ("dropout-in-eval", "p = self.dropout if self.training else 0.0", "p = self.dropout"),
        ("dropout-in-eval", "dropout_p=p", "dropout_p=0.1"),
        ("projection-unused", "v = self.v_proj(x)", "v = self.k_proj(x)"),
        ("gradient-wrong", "attention(q, k, v,", "attention(q, k.detach(), v,"),
        ("undefined-or-global-name", "return self.o_proj(out)", "return self.o_proj(output)"),
        ("batch-mixed", "attention(q, k, v,", "attention(q, k, v.roll(1, 0),"),
    ],
    "listed": [
        ("mask-unused", "wei = wei.masked_fill(", "wei.masked_fill("),
        ("mask-inverted", "== 0, float", "!= 0, float"),
        ("mask-inverted", "torch.tril(torch.ones(block_size, block_size))", "torch.triu(torch.ones(block_size, block_size))"),
        ("future-leak", "torch.ones(block_size, block_size))", "torch.ones(block_size, block_size), 1)"),
        ("self-hidden", "torch.ones(block_size, block_size))", "torch.ones(block_size, block_size), -1)"),
        ("mask-fill-too-small", 'float("-inf")', "-1e4"),
        ("mask-not-a-buffer", 'self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))', "self.tril = torch.tril(torch.ones(block_size, block_size))"),
        ("softmax-wrong-dim", "F.softmax(wei, dim=-1)", "F.softmax(wei, dim=1)"),
        ("softmax-wrong-dim", "F.softmax(wei, dim=-1)", "F.softmax(wei, dim=0)"),
        ("rows-not-normalised", "F.softmax(wei, dim=-1)", "wei.exp()"),
        ("scale-missing", " * k.shape[-1] ** -0.5", ""),
        ("scale-wrong", "k.shape[-1] ** -0.5", "C**-0.5"),
        ("scale-wrong", "k.shape[-1] ** -0.5", "k.shape[-1] ** 0.5"),
        ("keys-values-swapped", "out = wei @ v", "out = wei @ k", "projection-unused"),
        ("dropout-in-eval", "self.dropout(wei)", "F.dropout(wei, 0.2)"),
        ("dropout-misplaced", "wei = F.softmax(wei, dim=-1)\n        wei = self.dropout(wei)", "wei = self.dropout(wei)\n        wei = F.softmax(wei, dim=-1)"),
        ("dropout-rescale", "self.dropout(wei)", "wei * (torch.rand_like(wei) > 0.25) if self.training else wei"),
        ("projection-unused", "v = self.value(x)", "v = self.key(x)"),
        ("gradient-wrong", "wei = q @ k", "wei = q.detach() @ k"),
        ("undefined-or-global-name", "out = wei @ v", "out = weights @ v"),
        ("batch-mixed", "out = wei @ v", "out = wei.flip(0) @ v"),
    ],
    "folded": [
        ("mask-unused", "attn_weights = attn_weights + future", "attn_weights + future"),
        ("mask-inverted", ".triu(1)", ".tril(-1)"),
        ("future-leak", ".triu(1)", ".triu(2)"),
        ("self-hidden", 'torch.full((tgt_len, tgt_len), float("-inf"), dtype=q.dtype).triu(1)', 'torch.full((tgt_len, tgt_len), float("-inf"), dtype=q.dtype).triu()'),
        ("mask-fill-too-small", 'float("-inf")', "-1e4"),
        ("mask-fill-too-small", 'float("-inf")', "-1.0"),
        ("softmax-wrong-dim", "F.softmax(attn_weights, dim=-1)", "F.softmax(attn_weights, dim=1)"),
        ("softmax-wrong-dim", "F.softmax(attn_weights, dim=-1)", "F.softmax(attn_weights, dim=0)"),
        ("scale-missing", "q = self.q_proj(x) * self.scaling", "q = self.q_proj(x)"),
        ("scale-wrong", "self.scaling = self.head_dim**-0.5", "self.scaling = embed_dim**-0.5"),
        ("scale-wrong", "self.scaling = self.head_dim**-0.5", "self.scaling = num_heads**-0.5"),
        ("heads-mixed-split", "k = k.contiguous().view(tgt_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)", "k = k.contiguous().view(bsz * self.num_heads, tgt_len, self.head_dim)", "batch-mixed"),
        ("heads-mixed-merge", "attn.transpose(0, 1).contiguous().view", "attn.contiguous().view", "batch-mixed"),
        ("keys-values-swapped", "torch.bmm(q, k.transpose(1, 2))", "torch.bmm(q, v.transpose(1, 2))", "projection-unused"),
        ("keys-values-swapped", "torch.bmm(attn_weights, v)", "torch.bmm(attn_weights, k)", "projection-unused"),
        ("dropout-in-eval", ", training=self.training)", ")"),
        ("dropout-misplaced", "attn_weights = torch.bmm(q, k.transpose(1, 2))", "attn_weights = F.dropout(torch.bmm(q, k.transpose(1, 2)), self.dropout, self.training)"),
        ("projection-unused", "v = self.v_proj(x)", "v = self.k_proj(x)"),
        ("gradient-wrong", "attn = torch.bmm(attn_weights, v)", "attn = torch.bmm(attn_weights.detach(), v)"),
        ("batch-mixed", "attn = torch.bmm(attn_weights, v)", "attn = torch.bmm(attn_weights, v.roll(self.num_heads, 0))"),
        ("undefined-or-global-name", "return self.out_proj(attn)", "return self.out_proj(attn_output)"),
    ],
    "cached": [
        ("mask-unused", "scores = scores.masked_fill(", "scores.masked_fill("),
        ("mask-inverted", "masked_fill(mask,", "masked_fill(~mask,"),
        ("future-leak", "triu(start_pos + 1)", "triu(start_pos + 2)"),
        ("self-hidden", "triu(start_pos + 1)", "triu(start_pos)"),
        ("causal-alignment", "triu(start_pos + 1)", "triu(1)"),
        ("causal-alignment", "scores = scores.masked_fill(mask, float(\"-inf\"))", "scores = scores.masked_fill(mask, float(\"-inf\")) if start_pos == 0 else scores", "cache-mismatch"),
        ("mask-fill-too-small", 'float("-inf")', "-1e4"),
        ("softmax-wrong-dim", "F.softmax(scores, dim=-1)", "F.softmax(scores, dim=1)"),
        ("scale-missing", " / self.head_dim**0.5", ""),
        ("scale-wrong", "/ self.head_dim**0.5", "/ (self.n_heads * self.head_dim) ** 0.5"),
        ("group-order", "keys = keys.repeat_interleave(self.n_rep, dim=2)", "keys = keys.repeat(1, 1, self.n_rep, 1)"),
        ("group-order", "values = values.repeat_interleave(self.n_rep, dim=2)", "values = values.repeat(1, 1, self.n_rep, 1)"),
        ("heads-mixed-merge", "output.transpose(1, 2).reshape", "output.reshape"),
        ("heads-mixed-split", "xq = self.wq(x).view(bsz, seqlen, self.n_heads, self.head_dim)", "xq = self.wq(x).view(bsz, self.n_heads, seqlen, self.head_dim).transpose(1, 2)"),
        ("rotary-offset", "xk = rotate(xk, start_pos)", "xk = rotate(xk, 0)"),
        ("rotary-offset", "xq = rotate(xq, start_pos)", "xq = rotate(xq, 0)"),
        ("rotary-offset", "positions = torch.arange(start_pos, start_pos + x.shape[1], dtype=torch.float64)", "positions = torch.arange(x.shape[1], dtype=torch.float64)"),
        ("cache-mismatch", "self.cache_v[:bsz, start_pos:total] = xv", "self.cache_v[:bsz, start_pos:total] = xk"),
        ("cache-mismatch", "self.cache_k[:bsz, start_pos:total] = xk", "self.cache_k[:bsz, :seqlen] = xk"),
        ("cache-garbage-read", "keys = torch.cat([self.cache_k[:bsz, :start_pos], xk], dim=1)", "keys = torch.cat([self.cache_k[:bsz, 1 : start_pos + 1], xk], dim=1)", "cache-mismatch"),
        ("cache-garbage-read", "values = torch.cat([self.cache_v[:bsz, :start_pos], xv], dim=1)", "values = torch.cat([self.cache_v[:bsz, 1 : start_pos + 1], xv], dim=1)", "cache-mismatch"),
        ("rotary-precision", "angles = torch.outer(positions, 10000.0**-pairs)", "angles = torch.outer(positions.to(x.dtype), (10000.0**-pairs).to(x.dtype))"),
        ("rotary-mismatch", "even * sin + odd * cos]", "odd * sin + even * cos]"),
        ("keys-values-swapped", "output = torch.matmul(scores, values)", "output = torch.matmul(scores, keys)", "projection-unused"),
        ("projection-unused", "xv = self.wv(x)", "xv = self.wk(x)"),
        ("gradient-wrong", "dim=2).transpose(1, 2)\n        scores", "dim=2).transpose(1, 2).detach()\n        scores"),
        ("stale-state", "positions = torch.arange(start_pos, start_pos + x.shape[1], dtype=torch.float64)", "positions = rotate.__dict__.setdefault('table', torch.arange(start_pos, start_pos + x.shape[1], dtype=torch.float64))", "crashes", "length-dependent", "rotary-offset"),
        ("undefined-or-global-name", "return self.wo(output)", "return self.wo(out)"),
    ],
    "encoder": [
        ("mask-unused", "scores = scores.masked_fill(", "scores.masked_fill("),
        ("mask-unused", "if attention_mask is not None:", "if attention_mask is None and False:"),
        ("mask-inverted", "attention_mask[:, None, None, :] == 0", "attention_mask[:, None, None, :] == 1"),
        ("mask-inverted", "attention_mask[:, None, None, :] == 0", "attention_mask[:, None, None, :] > 0"),
        ("mask-broadcast", "attention_mask[:, None, None, :]", "attention_mask[:, None, :, None]"),
        ("mask-broadcast", "attention_mask[:, None, None, :] == 0", "attention_mask.flip(0)[:, None, None, :] == 0"),
        ("padding-leak", "attention_mask[:, None, None, :] == 0", "attention_mask[:, None, None, :].roll(1, -1) == 0", "mask-broadcast"),
        ("padding-leak", "attention_mask[:, None, None, :] == 0", "(attention_mask[:, None, None, :] == 0) & (attention_mask[:, None, :, None] == 0)", "mask-broadcast", "mask-unused"),
        ("mask-fill-too-small", "torch.finfo(scores.dtype).min", "-1e4"),
        ("mask-fill-too-small", "torch.finfo(scores.dtype).min", "0.0"),
        ("mask-after-softmax", "probs = self.dropout(probs)", "probs = self.dropout(probs) * (1 if attention_mask is None else attention_mask[:, None, None, :].roll(1, -1))", "padding-leak"),
        ("softmax-wrong-dim", "softmax(scores, dim=-1)", "softmax(scores, dim=1)"),
        ("softmax-wrong-dim", "softmax(scores, dim=-1)", "softmax(scores, dim=-2)"),
        ("rows-not-normalised", "nn.functional.softmax(scores, dim=-1)", "torch.exp(scores)"),
        ("scale-missing", "scores = scores / math.sqrt(self.head_size)", "scores = scores / 1"),
        ("scale-wrong", "math.sqrt(self.head_size)", "math.sqrt(self.num_heads)"),
        ("scale-wrong", "math.sqrt(self.head_size)", "math.sqrt(self.head_size * self.num_heads)"),
        ("scale-wrong", "scores / math.sqrt(self.head_size)", "scores * math.sqrt(self.head_size)"),
        ("heads-mixed-split", "tensor.view(batch, length, self.num_heads, self.head_size).permute(0, 2, 1, 3)", "tensor.view(batch, self.num_heads, length, self.head_size)"),
        ("heads-mixed-split", ".permute(0, 2, 1, 3)\n\n", "\n\n"),
        ("heads-mixed-merge", "context.permute(0, 2, 1, 3).contiguous()", "context.contiguous()"),
        ("batch-mixed", ".permute(0, 2, 1, 3)\n\n", ".permute(1, 2, 0, 3)\n\n", "heads-mixed-split"),
        ("keys-values-swapped", "key_layer = self.split_heads(self.key(hidden_states))\n        value_layer = self.split_heads(self.value(hidden_states))", "key_layer = self.split_heads(self.value(hidden_states))\n        value_layer = self.split_heads(self.key(hidden_states))"),
        ("keys-values-swapped", "torch.matmul(probs, value_layer)", "torch.matmul(probs, key_layer)", "projection-unused"),
        ("dropout-in-eval", "self.dropout(probs)", "nn.functional.dropout(probs, 0.2)"),
        ("dropout-rescale", "self.dropout(probs)", "probs * (torch.rand_like(probs) > 0.25) if self.training else probs"),
        ("projection-unused", "self.split_heads(self.value(hidden_states))", "self.split_heads(self.key(hidden_states))"),
        ("gradient-wrong", "torch.matmul(probs, value_layer)", "torch.matmul(probs.detach(), value_layer)"),
        ("undefined-or-global-name", "return self.dense(context)", "return self.dense(context_layer)"),
        ("self-hidden", "probs = nn.functional", "scores = scores - torch.eye(scores.shape[-1]) * 1e9; probs = nn.functional"),
    ],
    "windowed": [
        ("mask-unused", "logits = logits.masked_fill(", "logits.masked_fill("),
        ("mask-unused", "visible = visible & padding_mask[:, None, None, :]", "visible & padding_mask[:, None, None, :]", "padding-leak"),
        ("mask-inverted", "masked_fill(~visible,", "masked_fill(visible,"),
        ("mask-broadcast", "padding_mask[:, None, None, :]", "padding_mask[:, None, :, None]"),
        ("mask-fill-too-small", "-1e9", "-1e4"),
        ("mask-fill-too-small", "-1e9", "-1.0"),
        ("nan-on-masked-rows", "-1e9", 'float("-inf")'),
        ("window-off-by-one", "(distance < self.window)", "(distance <= self.window)"),
        ("window-off-by-one", "(distance < self.window)", "(distance < self.window - 1)"),
        ("window-missing", "(distance >= 0) & (distance < self.window)", "distance >= 0"),
        ("future-leak", "(distance >= 0)", "(distance >= -1)"),
        ("future-leak", "(distance >= 0) & (distance < self.window)", "distance.abs() < self.window"),
        ("self-hidden", "(distance >= 0)", "(distance > 0)"),
        ("causal-alignment", "distance = positions[:, None]", "distance = torch.arange(T)[:, None]"),
        ("softmax-wrong-dim", "logits.softmax(dim=-1)", "logits.softmax(dim=-2)"),
        ("scale-missing", " * self.head_dim**-0.5", ""),
        ("scale-wrong", "self.head_dim**-0.5", "C**-0.5"),
        ("heads-mixed-merge", "(weights @ v).transpose(1, 2).reshape", "(weights @ v).reshape"),
        ("heads-mixed-split", "qkv = self.qkv(x).view(B, T, 3, self.num_heads, self.head_dim)\n        q, k, v = qkv.permute(2, 0, 3, 1, 4)", "qkv = self.qkv(x).view(B, 3, self.num_heads, T, self.head_dim)\n        q, k, v = qkv.permute(1, 0, 2, 3, 4)"),
        ("rotary-offset", "positions = torch.arange(past, past + T)", "positions = torch.arange(T)", "causal-alignment"),
        ("rotary-offset", "q, k = self.rotary(q, positions), self.rotary(k, positions)", "q, k = self.rotary(q, positions), self.rotary(k, torch.arange(T))"),
        ("rotary-offset", "positions = torch.arange(past, past + T)", "positions = torch.arange(past, past + T) + (past > 0)", "causal-alignment", "window-off-by-one"),
        ("rotary-mismatch", "turned = torch.cat([-second, first], dim=-1)", "turned = torch.stack([-second, first], dim=-1).flatten(-2)"),
        ("rotary-mismatch", "turned = torch.cat([-second, first], dim=-1)", "turned = torch.cat([second, first], dim=-1)"),
        ("cache-mismatch", "v = torch.cat([past_kv[1], v], dim=2)", "v = torch.cat([v, past_kv[1]], dim=2)"),
        ("cache-mismatch", "k = torch.cat([past_kv[0], k], dim=2)", "k = torch.cat([past_kv[1], k], dim=2)"),
        ("keys-values-swapped", "logits = q @ k.transpose(-1, -2)", "logits = q @ v.transpose(-1, -2)", "projection-unused"),
        ("mask-not-a-buffer", 'self.register_buffer("cos", angles.cos(), persistent=False)', "self.cos = angles.cos()", "table-not-a-buffer"),
        ("rotary-precision", "return x * cos + turned * sin", "angle = (positions.to(x.dtype)[:, None] * 10000.0 ** (-torch.arange(0, self.head_dim, 2).to(x.dtype) / self.head_dim)).repeat(1, 2); return x * angle.cos() + turned * angle.sin()"),
        ("gradient-wrong", "y = (weights @ v)", "y = (weights @ v.detach())"),
        ("stale-state", "past = 0 if past_kv is None else past_kv[0].shape[2]", "past = 0 if past_kv is None else past_kv[0].shape[2]; self.window += 1", "window-off-by-one", "length-dependent"),
        ("undefined-or-global-name", "return self.out(y), (k, v)", "return self.out(out), (k, v)"),
    ],
    "annotated": [
        ("mask-unused", "scores = scores.masked_fill(", "scores.masked_fill("),
        ("mask-unused", "mask=mask, dropout=self.dropout", "mask=None, dropout=self.dropout"),
        ("mask-broadcast", "mask = mask.unsqueeze(1)", "mask = mask.unsqueeze(1).transpose(-2, -1)"),
        ("mask-fill-too-small", "-1e9", "-1e3"),
        ("mask-fill-too-small", "-1e9", "1e-9"),
        ("mask-fill-too-small", "scores = scores.masked_fill(mask == 0, -1e9)", "scores = scores * mask"),
        ("mask-after-softmax", "        scores = scores.masked_fill(mask == 0, -1e9)\n    p_attn = scores.softmax(dim=-1)", "        p_attn = scores.softmax(dim=-1).masked_fill(mask == 0, 0.0)\n    else:\n        p_attn = scores.softmax(dim=-1)"),
        ("softmax-wrong-dim", "scores.softmax(dim=-1)", "scores.softmax(dim=-2)"),
        ("softmax-wrong-dim", "scores.softmax(dim=-1)", "scores.softmax(dim=1)"),
        ("rows-not-normalised", "scores.softmax(dim=-1)", "scores.sigmoid()"),
        ("scale-missing", " / math.sqrt(d_k)", ""),
        ("scale-wrong", "math.sqrt(d_k)", "math.sqrt(query.size(1) * d_k)"),
        ("scale-wrong", "/ math.sqrt(d_k)", "* math.sqrt(d_k)"),
        ("scale-wrong", "math.sqrt(d_k)", "d_k"),
        ("scale-wrong", "d_k = query.size(-1)", "d_k = query.size(-2)"),
        ("heads-mixed-split", "self.linears[0](query).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)", "self.linears[0](query).view(nbatches, self.h, -1, self.d_k)"),
        ("heads-mixed-split", "self.linears[1](key).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)", "self.linears[1](key).view(nbatches, self.h, -1, self.d_k)"),
        ("heads-mixed-split", "self.linears[2](value).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)", "self.linears[2](value).view(nbatches, self.h, -1, self.d_k)"),
        ("heads-mixed-merge", "x.transpose(1, 2).contiguous()", "x.contiguous()"),
        ("batch-mixed", "torch.matmul(p_attn, value), p_attn", "torch.matmul(p_attn.mean(0, keepdim=True), value), p_attn"),
        ("keys-values-swapped", "key = self.linears[1](key)", "key = self.linears[1](value)", "projection-unused"),
        ("keys-values-swapped", "torch.matmul(p_attn, value), p_attn", "torch.matmul(p_attn, key), p_attn", "projection-unused"),
        ("dropout-in-eval", "p_attn = dropout(p_attn)", "p_attn = nn.functional.dropout(p_attn, dropout.p)"),
        ("dropout-misplaced", "p_attn = scores.softmax(dim=-1)\n    if dropout is not None:\n        p_attn = dropout(p_attn)", "if dropout is not None:\n        scores = dropout(scores)\n    p_attn = scores.softmax(dim=-1)"),
        ("dropout-rescale", "p_attn = dropout(p_attn)", "p_attn = dropout(p_attn) * (1 - dropout.p)", "rows-not-normalised"),
        ("projection-unused", "self.linears[2](value)", "self.linears[1](value)"),
        ("gradient-wrong", "torch.matmul(query, key.transpose(-2, -1))", "torch.matmul(query, key.data.transpose(-2, -1))"),
        ("undefined-or-global-name", "d_k = query.size(-1)", "d_k = q.size(-1)"),
        ("stale-state", "if mask is not None:\n            mask = mask.unsqueeze(1)", "if self.attn is not None and self.attn.shape[-1] == key.size(1):\n            key = key * (1 + self.attn.mean())\n        if mask is not None:\n            mask = mask.unsqueeze(1)"),
    ],
    "padded": [
        ("mask-inverted", "mask = ~key_padding_mask", "mask = key_padding_mask"),
        ("mask-unused", "attn_mask=mask", "attn_mask=None"),
        ("mask-broadcast", "key_padding_mask[:, None, None, :]", "key_padding_mask[:, None, :, None]"),
        ("mask-fill-too-small", "mask = ~key_padding_mask[:, None, None, :]", "mask = key_padding_mask[:, None, None, :].to(q.dtype) * -1e4"),
        ("mask-fill-too-small", "mask = ~key_padding_mask[:, None, None, :]", "mask = (~key_padding_mask)[:, None, None, :].to(q.dtype)"),
        ("padding-leak", "mask = ~key_padding_mask[:, None, None, :]", "mask = ~key_padding_mask[:1, None, None, :]", "mask-broadcast", "batch-mixed"),
        ("scale-missing", "dropout_p=dropout", "dropout_p=dropout, scale=1.0"),
        ("scale-wrong", "dropout_p=dropout", "dropout_p=dropout, scale=x.shape[-1] ** -0.5"),
        ("scale-wrong", "dropout_p=dropout", "dropout_p=dropout, scale=self.num_heads ** -0.5"),
        ("heads-mixed-split", "qkv.permute(2, 0, 3, 1, 4)", "qkv.view(x.shape[0], self.num_heads, x.shape[1], 3, -1).permute(3, 0, 1, 2, 4)"),
        ("heads-mixed-merge", "context.transpose(1, 2).flatten(2)", "context.reshape(x.shape)"),
        ("dropout-in-eval", "self.dropout if self.training else 0.0", "self.dropout"),
        ("dropout-misplaced", "attn_mask=mask, dropout_p=dropout)\n        context = context", "attn_mask=mask)\n        context = F.dropout(context, dropout)"),
        ("projection-unused", "attention(q, k, v,", "attention(q, k, k,", "keys-values-swapped"),
        ("projection-unused", "attention(q, k, v,", "attention(k, k, v,"),
        ("gradient-wrong", "return self.out_proj(context)", "return self.out_proj(context.detach())"),
        ("gradient-wrong", "attention(q, k, v,", "attention(q.data, k, v,"),
        ("undefined-or-global-name", "dropout_p=dropout", "dropout_p=dropout_p"),
        ("stride-dependent", "qkv = self.in_proj(x)", "x = x.as_strided(x.shape, (x.shape[1] * x.shape[2], x.shape[2], 1)); qkv = self.in_proj(x)"),
        ("length-dependent", "attention(q, k, v, attn_mask=mask,", "attention(q, k[:, :, : max(8, k.shape[2] // 8 * 8)], v[:, :, : max(8, v.shape[2] // 8 * 8)], attn_mask=mask,"),
    ],
    "decoder": [
        ("mask-unused", "scores = scores.masked_fill(", "scores.masked_fill("),
        ("padding-leak", "allowed = allowed[None, None] & attention_mask.bool()[:, None, None, :]", "allowed = allowed[None, None]", "mask-unused"),
        ("mask-inverted", "& attention_mask.bool()", "& ~attention_mask.bool()"),
        ("mask-inverted", "masked_fill(~allowed,", "masked_fill(allowed,"),
        ("mask-broadcast", "attention_mask.bool()[:, None, None, :]", "attention_mask.bool()[:, None, past_len:, None]"),
        ("mask-fill-too-small", "torch.finfo(scores.dtype).min", "-100.0"),
        ("mask-fill-too-small", "torch.finfo(scores.dtype).min", "torch.finfo(scores.dtype).tiny"),
        ("nan-on-masked-rows", "torch.finfo(scores.dtype).min", 'float("-inf")'),
        ("future-leak", "<= queries", "<= queries + 1"),
        ("future-leak", "allowed = torch.arange(kv_len, device=scores.device)[None, :] <= queries", "allowed = torch.ones(q_len, kv_len, dtype=torch.bool, device=scores.device)"),
        ("self-hidden", "<= queries", "< queries"),
        ("mask-inverted", "<= queries", ">= queries"),
        ("causal-alignment", "queries = torch.arange(past_len, kv_len,", "queries = torch.arange(q_len,"),
        ("left-padding-positions", "(attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, past_len:]", "(attention_mask.long().cumsum(-1) - 1).clamp(min=0) if past_len == 0 else torch.arange(past_len, kv_len).expand(bsz, -1)", "rotary-offset"),
        ("rotary-offset", "clamp(min=0)[:, past_len:]", "clamp(min=0)[:, :q_len]"),
        ("rotary-offset", "query, key = apply_rotary_pos_emb(query, key, cos, sin)", "query, key = query, apply_rotary_pos_emb(query, key, cos, sin)[1]", "rotary-mismatch"),
        ("rotary-mismatch", "k_embed = (k * cos) + (rotate_half(k) * sin)", "k_embed = (k * cos) - (rotate_half(k) * sin)", "rotary-offset"),
        ("rotary-mismatch", "k_embed = (k * cos) + (rotate_half(k) * sin)", "k_embed = (k * sin) + (rotate_half(k) * cos)", "rotary-offset"),
        ("rotary-mismatch", "emb = torch.cat((angles, angles), dim=-1)", "emb = torch.repeat_interleave(angles, 2, dim=-1)"),
        ("rotary-mismatch", "return torch.cat((-x2, x1), dim=-1)", "return torch.cat((x2, x1), dim=-1)"),
        ("rotary-precision", "angles = position_ids[..., None].float() * self.inv_freq.float()", "angles = position_ids[..., None].to(query.dtype) * self.inv_freq.to(query.dtype)"),
        ("rotary-precision", "angles = position_ids[..., None].float() * self.inv_freq.float()", "angles = (position_ids[..., None].bfloat16() * self.inv_freq.bfloat16()).float()"),
        ("group-order", "return hidden_states.reshape(batch, heads * n_rep, length, head_dim)", "return hidden_states.transpose(1, 2).reshape(batch, heads * n_rep, length, head_dim)"),
        ("group-order", "value = repeat_kv(value, self.groups)", "value = value.repeat(1, self.groups, 1, 1)"),
        ("cache-mismatch", "value = torch.cat([past_key_value[1], value], dim=2)", "value = torch.cat([value, past_key_value[1]], dim=2)"),
        ("cache-mismatch", "present = (key, value)", "present = (value, key)"),
        ("cache-mismatch", "present = (key, value)", "present = (key[:, :, -q_len:], value[:, :, -q_len:])"),
        ("softmax-wrong-dim", "torch.softmax(scores, dim=-1)", "torch.softmax(scores, dim=-2)"),
        ("scale-missing", " * self.head_dim**-0.5", ""),
        ("scale-wrong", "self.head_dim**-0.5", "self.num_kv_heads**-0.5"),
        ("scale-wrong", "self.head_dim**-0.5", "self.head_dim**-1"),
        ("heads-mixed-merge", "output.transpose(1, 2).contiguous().reshape", "output.contiguous().reshape"),
        ("heads-mixed-split", "key = self.k_proj(hidden_states).view(bsz, q_len, self.num_kv_heads, -1).transpose(1, 2)", "key = self.k_proj(hidden_states).view(bsz, self.num_kv_heads, q_len, -1)"),
        ("keys-values-swapped", "output = torch.matmul(probs, value)", "output = torch.matmul(probs, key)", "projection-unused"),
        ("projection-unused", "value = self.v_proj(hidden_states)", "value = self.k_proj(hidden_states)"),
        ("gradient-wrong", "probs = torch.softmax(scores, dim=-1)", "probs = torch.softmax(scores.detach(), dim=-1)"),
        ("undefined-or-global-name", "self.o_proj(output), present", "self.o_proj(output), presents"),
        ("stale-state", "        angles = position_ids", "        self.inv_freq.mul_(1.01)\n        angles = position_ids"),
        ("batch-mixed", "self.o_proj(output), present", "self.o_proj(output - output.mean(0)), present"),
    ],
    "slots": [
        ("mask-unused", "scores = torch.where(mask,", "torch.where(mask,"),
        ("mask-inverted", "torch.where(mask,", "torch.where(~mask,"),
        ("mask-not-a-buffer", 'self.register_buffer("causal_mask", lower, persistent=False)', "self.causal_mask = lower"),
        ("future-leak", "torch.tril(torch.ones(max_seq_len, max_seq_len, dtype=torch.bool))", "torch.tril(torch.ones(max_seq_len, max_seq_len, dtype=torch.bool), diagonal=1)"),
        ("self-hidden", "torch.tril(torch.ones(max_seq_len, max_seq_len, dtype=torch.bool))", "torch.tril(torch.ones(max_seq_len, max_seq_len, dtype=torch.bool), diagonal=-1)"),
        ("causal-alignment", "self.causal_mask[start_pos:end]", "self.causal_mask[:seqlen]"),
        ("cache-garbage-read", "mask = self.causal_mask[start_pos:end]", "mask = self.causal_mask[start_pos:end] | (torch.arange(self.max_seq_len) > end)", "future-leak"),
        ("cache-mismatch", "v_cache[:, :, :start_pos], v, v_cache[:, :, end:]", "v_cache[:, :, :start_pos], k, v_cache[:, :, end:]", "keys-values-swapped", "projection-unused"),
        ("cache-mismatch", "k_cache = torch.cat([k_cache[:, :, :start_pos], k, k_cache[:, :, end:]], dim=2)", "k_cache = torch.cat([k, k_cache[:, :, seqlen:]], dim=2)"),
        ("cache-mismatch", "return self.wo(y), k_cache, v_cache", "return self.wo(y), v_cache, k_cache"),
        ("mask-fill-too-small", "torch.finfo(scores.dtype).min", "-1e4"),
        ("mask-fill-too-small", "torch.finfo(scores.dtype).min", "0.0"),
        ("softmax-wrong-dim", "scores.softmax(-1)", "scores.softmax(1)"),
        ("scale-missing", " / self.head_dim**0.5", ""),
        ("scale-wrong", "self.head_dim**0.5", "dim**0.5"),
        ("scale-wrong", "self.head_dim**0.5", "k_cache.shape[-2]**0.5"),
        ("heads-mixed-split", "v = v.view(bsz, seqlen, self.n_heads, self.head_dim).transpose(1, 2)", "v = v.reshape(bsz, self.n_heads, seqlen, self.head_dim)"),
        ("heads-mixed-merge", "y.transpose(1, 2).contiguous()", "y.contiguous()"),
        ("keys-values-swapped", "y = attn @ v_cache", "y = attn @ k_cache", "projection-unused"),
        ("gradient-wrong", "y = attn @ v_cache", "y = attn @ v_cache.detach()"),
        ("undefined-or-global-name", "y = attn @ v_cache", "y = attn @ values"),
        ("batch-mixed", "q, k, v = self.wqkv(x).split(dim, dim=-1)", "q, k, v = (self.wqkv(x) + self.wqkv(x[:1])).split(dim, dim=-1)"),
    ],
    "cross": [
        ("mask-unused", "dots = dots.masked_fill(", "dots.masked_fill("),
        ("mask-inverted", "masked_fill(~context_mask", "masked_fill(context_mask"),
        ("mask-fill-too-small", "-torch.finfo(dots.dtype).max", "-1e4"),
        ("mask-fill-too-small", "-torch.finfo(dots.dtype).max", "-1.0"),
        ("mask-fill-too-small", "-torch.finfo(dots.dtype).max", "torch.finfo(dots.dtype).eps"),
        ("softmax-wrong-dim", "dots.softmax(dim=-1)", "dots.softmax(dim=-2)"),
        ("softmax-wrong-dim", "dots.softmax(dim=-1)", "dots.softmax(dim=0)"),
        ("rows-not-normalised", "dots.softmax(dim=-1)", "dots.sigmoid()"),
        ("scale-missing", "q, k) * self.scale", "q, k)"),
        ("scale-wrong", "(dim // heads) ** -0.5", "dim**-0.5"),
        ("scale-wrong", "(dim // heads) ** -0.5", "context_dim**-0.5"),
        ("scale-wrong", "(dim // heads) ** -0.5", "(dim // heads) ** 0.5"),
        ("heads-mixed-split", "k = self.to_k(context).reshape(b, m, self.heads, d // self.heads).permute(0, 2, 1, 3)", "k = self.to_k(context).reshape(b, self.heads, m, d // self.heads)"),
        ("heads-mixed-split", "q = self.to_q(x).reshape(b, n, self.heads, d // self.heads).permute(0, 2, 1, 3)", "q = self.to_q(x).reshape(b, self.heads, n, d // self.heads)"),
        ("heads-mixed-merge", "out.permute(0, 2, 1, 3).reshape(b, n, d)", "out.reshape(b, n, d)"),
        ("keys-values-swapped", '"b h i j, b h j d -> b h i d", attn, v)', '"b h i j, b h j d -> b h i d", attn, k)', "projection-unused"),
        ("dropout-in-eval", "self.attn_drop(dots.softmax(dim=-1))", "nn.functional.dropout(dots.softmax(dim=-1), 0.1)"),
        ("dropout-misplaced", "self.attn_drop(dots.softmax(dim=-1))", "self.attn_drop(dots).softmax(dim=-1)"),
        ("projection-unused", "v = self.to_v(context)", "v = self.to_k(context)"),
        ("gradient-wrong", "k = self.to_k(context)", "k = self.to_k(context.detach())"),
        ("undefined-or-global-name", "m = context.shape[1]", "m = ctx.shape[1]"),
        ("batch-mixed", "q, k) * self.scale", "q, k.roll(1, 0)) * self.scale"),
    ],
    "circuits": [
        ("mask-unused", "return attn_scores.masked_fill(mask, self.IGNORE)", "attn_scores.masked_fill(mask, self.IGNORE)\n        return attn_scores"),
        ("mask-unused", "attn_scores = self.apply_causal_mask(attn_scores / self.d_head**0.5)", "attn_scores = attn_scores / self.d_head**0.5; self.apply_causal_mask(attn_scores)"),
        ("mask-inverted", "masked_fill(mask,", "masked_fill(~mask,"),
        ("mask-inverted", "torch.triu(all_ones, diagonal=1)", "torch.tril(all_ones, diagonal=-1)"),
        ("future-leak", "diagonal=1", "diagonal=2"),
        ("self-hidden", "diagonal=1", "diagonal=0"),
        ("mask-fill-too-small", 'torch.tensor(float("-inf"))', "torch.tensor(-1e4)"),
        ("mask-fill-too-small", 'torch.tensor(float("-inf"))', "torch.tensor(1e-5)"),
        ("mask-after-softmax", "attn_scores = self.apply_causal_mask(attn_scores / self.d_head**0.5)\n        pattern = attn_scores.softmax(-1)", "pattern = (attn_scores / self.d_head**0.5).softmax(-1)\n        pattern = pattern.tril()"),
        ("softmax-wrong-dim", "attn_scores.softmax(-1)", "attn_scores.softmax(-2)"),
        ("softmax-wrong-dim", "attn_scores.softmax(-1)", "attn_scores.softmax(1)"),
        ("rows-not-normalised", "attn_scores.softmax(-1)", "attn_scores.exp()"),
        ("rows-not-normalised", "attn_scores.softmax(-1)", "attn_scores.softmax(-1) * resid.shape[1]"),
        ("scale-missing", "attn_scores / self.d_head**0.5", "attn_scores"),
        ("scale-wrong", "attn_scores / self.d_head**0.5", "attn_scores / resid.shape[-1]**0.5"),
        ("scale-wrong", "attn_scores / self.d_head**0.5", "attn_scores * self.d_head**0.5"),
        ("heads-mixed-merge", '"bknh,bnqk->bqnh", v, pattern', '"bknh,bnqk->bnqh", v, pattern).reshape(v.shape', ),
        ("keys-values-swapped", '"bknh,bnqk->bqnh", v, pattern', '"bknh,bnqk->bqnh", k, pattern', "projection-unused"),
        ("batch-mixed", '"bknh,bnqk->bqnh", v, pattern', '"bknh,cnqk->bqnh", v, pattern', "rows-not-normalised"),
        ("projection-unused", "resid, self.W_K) + self.b_K", "resid, self.W_Q) + self.b_K"),
        ("gradient-wrong", '"bqnh,bknh->bnqk", q, k)', '"bqnh,bknh->bnqk", q, k.detach())'),
        ("undefined-or-global-name", '"bqnh,nhm->bqm", z,', '"bqnh,nhm->bqm", out,'),
        ("stale-state", "pattern = attn_scores.softmax(-1)", "pattern = attn_scores.softmax(-1); self.d_head += 1"),
        ("softmax-wrong-dim", '"bknh,bnqk->bqnh", v, pattern', '"bqnh,bnqk->bknh", v, pattern', "rows-not-normalised", "mask-inverted"),
    ],
    "alibi": [
        ("mask-unused", "logits = torch.where(self.allowed", "torch.where(self.allowed"),
        ("mask-inverted", "torch.where(self.allowed[:seq_len, :seq_len],", "torch.where(~self.allowed[:seq_len, :seq_len],"),
        ("mask-inverted", "steps[None, :] <= steps[:, None]", "steps[None, :] >= steps[:, None]"),
        ("self-hidden", "steps[None, :] <= steps[:, None]", "steps[None, :] < steps[:, None]"),
        ("future-leak", "steps[None, :] <= steps[:, None]", "steps[None, :] <= steps[:, None] + 1"),
        ("mask-fill-too-small", 'float("-inf")', "-1e4"),
        ("mask-fill-too-small", 'float("-inf")', "0.0"),
        ("mask-not-a-buffer", 'self.register_buffer("allowed", steps[None, :] <= steps[:, None])', "self.allowed = steps[None, :] <= steps[:, None]"),
        ("mask-after-softmax", 'logits = torch.where(self.allowed[:seq_len, :seq_len], logits, float("-inf"))\n        attention = self.attention_dropout(torch.softmax(logits, dim=-1))', "attention = self.attention_dropout(torch.softmax(logits, dim=-1))\n        attention = attention * self.allowed[:seq_len, :seq_len]"),
        ("softmax-wrong-dim", "torch.softmax(logits, dim=-1)", "torch.softmax(logits, dim=-2)"),
        ("softmax-wrong-dim", "torch.softmax(logits, dim=-1)", "torch.softmax(logits, dim=1)"),
        ("rows-not-normalised", "torch.softmax(logits, dim=-1)", "torch.sigmoid(logits)"),
        ("scale-missing", ".div(self.head_dim**0.5)", ""),
        ("scale-wrong", ".div(self.head_dim**0.5)", ".mul(self.head_dim**0.5)"),
        ("scale-wrong", ".div(self.head_dim**0.5)", ".div(self.num_heads**0.5)"),
        ("heads-mixed-split", "query, key, value = self.qkv_proj(inputs).reshape(shape).unbind(dim=2)", "query, key, value = self.qkv_proj(inputs).reshape(batch_size, 3, seq_len, self.num_heads, self.head_dim).unbind(dim=1)"),
        ("heads-mixed-merge", "values = values.flatten(2)", "values = values.transpose(1, 2).reshape(inputs.shape)"),
        ("batch-mixed", '"bhqk,bkhd->bqhd", attention, value', '"bhqk,bkhd->bqhd", attention, value.flip(0)'),
        ("keys-values-swapped", '"bhqk,bkhd->bqhd", attention, value', '"bhqk,bkhd->bqhd", attention, key', "projection-unused"),
        ("dropout-in-eval", "self.attention_dropout(torch.softmax(logits, dim=-1))", "nn.functional.dropout(torch.softmax(logits, dim=-1), 0.1)"),
        ("dropout-misplaced", "self.attention_dropout(torch.softmax(logits, dim=-1))", "torch.softmax(self.attention_dropout(logits), dim=-1)"),
        ("dropout-misplaced", 'attention = self.attention_dropout(torch.softmax(logits, dim=-1))\n        values = torch.einsum("bhqk,bkhd->bqhd", attention, value)', 'attention = torch.softmax(logits, dim=-1)\n        values = self.attention_dropout(torch.einsum("bhqk,bkhd->bqhd", attention, value))'),
        ("dropout-rescale", "self.attention_dropout(torch.softmax(logits, dim=-1))", "self.attention_dropout(torch.softmax(logits, dim=-1)) * (1 - self.attention_dropout.p)", "rows-not-normalised"),
        ("gradient-wrong", '"bqhd,bkhd->bhqk", query, key)', '"bqhd,bkhd->bhqk", query.detach(), key)'),
        ("undefined-or-global-name", "return self.output(values)", "return self.output(context)"),
        ("length-dependent", "values = values.flatten(2)", "values = values.flatten(2) if seq_len <= 32 else values.flatten(2).roll(1, 1)", "future-leak"),
        ("stale-state", "logits = logits + self.alibi[:, :seq_len, :seq_len].to(logits.dtype)", "logits = logits + self.alibi[:, :seq_len, :seq_len].to(logits.dtype); self.alibi *= 2"),
    ],
}  # fmt: skip

MUTANTS: list[Mutant] = list(_edits())


@cache
def bugs() -> tuple[str, ...]:
    """The names of all bugs in the corpus."""
    return tuple(dict.fromkeys(mutant.bug for mutant in MUTANTS))
