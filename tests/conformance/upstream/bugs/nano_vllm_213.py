"""Chunked prefill of an attention layer whose keys and values lie in the blocks of a cache."""

from dataclasses import dataclass, field
from math import ceil

import torch
from torch import nn


@dataclass
class Sequence:
    """A request: where its tokens are in the batch, and its blocks of the cache."""

    first_token: int
    num_tokens: int
    block_table: list = field(default_factory=list)
    num_cached_tokens: int = 0

    def __len__(self):
        return self.num_tokens


class BlockManager:
    """Hands out the blocks of the cache."""

    def __init__(self, block_size: int):
        self.block_size = block_size
        self.num_blocks = 0

    def allocate(self, seq: Sequence):
        n = ceil(len(seq) / self.block_size)
        seq.block_table = list(range(self.num_blocks, self.num_blocks + n))
        self.num_blocks += n

    def slots(self, seq: Sequence, start: int, end: int) -> torch.Tensor:
        """The slots of the tokens from start to end."""
        size = self.block_size
        return torch.tensor(
            [seq.block_table[i // size] * size + i % size for i in range(start, end)]
        )


def flash_attn_with_kvcache(q, k, v, scale):
    """
    Causal attention, aligned at the bottom right: the last query sees all keys.

    q: (seqlen_q, num_heads, head_dim). k, v: (seqlen_k, num_kv_heads, head_dim).
    """
    group = q.shape[1] // k.shape[1]
    k = k.repeat_interleave(group, dim=1)
    v = v.repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    mask = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device)
    mask = mask.tril(diagonal=scores.shape[2] - scores.shape[1])
    scores = scores.masked_fill(~mask, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), v)


class Attention(nn.Module):
    """
    Prefills the requests of a batch, each in chunks of at most `max_num_batched_tokens` tokens.

    hidden_states: (num_tokens, hidden_size), the tokens of all requests one after another.
    seqlens: (num_seqs,), the number of tokens of each request.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        block_size: int = 256,
        max_num_batched_tokens: int = 16384,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = hidden_size // num_heads
        self.scaling = self.head_dim**-0.5
        self.q_size = self.num_heads * self.head_dim
        self.kv_size = self.num_kv_heads * self.head_dim
        self.block_size = block_size
        self.max_num_batched_tokens = max_num_batched_tokens
        self.qkv_proj = nn.Linear(hidden_size, self.q_size + 2 * self.kv_size, bias=False)
        self.o_proj = nn.Linear(self.q_size, hidden_size, bias=False)

    def prefill(self, seq: Sequence, manager: BlockManager, qkv, kv_cache):
        q, k, v = qkv
        seqlen = len(seq)
        outputs = []
        while seq.num_cached_tokens < seqlen:
            start = seq.num_cached_tokens
            seqlen_q = min(seqlen - start, self.max_num_batched_tokens)
            # before
            seqlen_k = seqlen
            end = start + seqlen_q
            # after
            end = start + seqlen_q
            seqlen_k = end
            # end
            chunk = slice(seq.first_token + start, seq.first_token + end)
            slot_mapping = manager.slots(seq, start, end)
            kv_cache[0, slot_mapping] = k[chunk]
            kv_cache[1, slot_mapping] = v[chunk]
            k_seen, v_seen = kv_cache[:, manager.slots(seq, 0, seqlen_k)]
            outputs.append(flash_attn_with_kvcache(q[chunk], k_seen, v_seen, self.scaling))
            seq.num_cached_tokens = end
        return torch.cat(outputs)

    def forward(self, hidden_states: torch.Tensor, seqlens: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv_proj(hidden_states)
        q, k, v = qkv.split([self.q_size, self.kv_size, self.kv_size], dim=-1)
        q = q.view(-1, self.num_heads, self.head_dim)
        k = k.view(-1, self.num_kv_heads, self.head_dim)
        v = v.view(-1, self.num_kv_heads, self.head_dim)

        manager, seqs, first_token = BlockManager(self.block_size), [], 0
        for seqlen in seqlens.tolist():
            seqs.append(Sequence(first_token, seqlen))
            manager.allocate(seqs[-1])
            first_token += seqlen
        num_slots = manager.num_blocks * self.block_size
        kv_cache = k.new_zeros(2, num_slots, self.num_kv_heads, self.head_dim)

        o = torch.cat([self.prefill(seq, manager, (q, k, v), kv_cache) for seq in seqs])
        return self.o_proj(o.flatten(1))
