"""The attention of a decoder whose layers are global or local, with a mask for each kind of kernel."""

import enum

import torch
import torch.nn.functional as F
from torch import nn


class AttentionType(enum.Enum):
    GLOBAL = "global"
    LOCAL_SLIDING = "local_sliding"


class LocalMask:
    """A band around the diagonal; window_size counts the tokens to the left and to the right, None for all."""

    def __init__(self, shape, window_size):
        self.shape = shape
        self.window_size = window_size

    def __call__(self, device):
        q = torch.arange(self.shape[0], device=device)[:, None]
        k = torch.arange(self.shape[1], device=device)[None, :]
        left, right = self.window_size
        mask = torch.ones(self.shape, dtype=torch.bool, device=device)
        if left is not None:
            mask &= q - left <= k
        if right is not None:
            mask &= q + right >= k
        return mask


class AttentionOp(nn.Module):
    """Scores, mask, softmax, context.

    Args:
        attention_type: whether a token sees everything before it or a window of it.
        sliding_window_size: how many tokens a local layer sees, the token itself among them.
    """

    def __init__(self, attention_type, sliding_window_size=None):
        super().__init__()
        if attention_type is AttentionType.LOCAL_SLIDING and sliding_window_size is None:
            raise ValueError("sliding_window_size must be set if the attention is local")
        self.attention_type = attention_type
        self.sliding_window_size = sliding_window_size

    def create_mask(self, query, key):
        shape = (query.shape[2], key.shape[2])
        mask = LocalMask(shape, (None, 0))(query.device)
        if self.attention_type is AttentionType.LOCAL_SLIDING:
            # before
            window_size = (self.sliding_window_size, self.sliding_window_size)
            # after
            window_size = (self.sliding_window_size - 1, self.sliding_window_size - 1)
            # end
            mask &= LocalMask(shape, window_size)(query.device)
        return mask

    def forward(self, query, key, value):
        mask = self.create_mask(query, key)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)


class Attention(nn.Module):
    def __init__(
        self,
        emb_dim,
        num_query_heads,
        num_kv_heads,
        head_dim,
        attention_type=AttentionType.LOCAL_SLIDING,
        sliding_window_size=4,
    ):
        super().__init__()
        self.num_query_heads = num_query_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.query = nn.Linear(emb_dim, num_query_heads * head_dim, bias=False)
        self.key = nn.Linear(emb_dim, num_kv_heads * head_dim, bias=False)
        self.value = nn.Linear(emb_dim, num_kv_heads * head_dim, bias=False)
        self.out = nn.Linear(num_query_heads * head_dim, emb_dim, bias=False)
        self.attention_op = AttentionOp(attention_type, sliding_window_size)

    def forward(self, inputs):
        batch, length, _ = inputs.shape
        query = self.query(inputs).view(batch, length, self.num_query_heads, self.head_dim)
        key = self.key(inputs).view(batch, length, self.num_kv_heads, self.head_dim)
        value = self.value(inputs).view(batch, length, self.num_kv_heads, self.head_dim)
        out = self.attention_op(*(x.transpose(1, 2) for x in (query, key, value)))
        return self.out(out.transpose(1, 2).reshape(batch, length, -1))
