"""Local attention: each window of tokens attends to itself and to the windows around it."""

import torch
import torch.nn.functional as F
from torch import einsum, nn


def default(value, d):
    return d if value is None else value


def max_neg_value(tensor):
    return -torch.finfo(tensor.dtype).max


def look_around(x, backward=1, forward=0, pad_value=-1, dim=2):
    # next to each window, the windows before and after it
    windows = x.shape[1]
    inner = (0, 0) * (x.ndim - dim)
    padded = F.pad(x, (*inner, backward, forward), value=pad_value)
    around = [padded.narrow(1, start, windows) for start in range(backward + 1 + forward)]
    return torch.cat(around, dim=dim)


class LocalAttention(nn.Module):
    """
    window_size: length of a window
    causal: whether a token sees no token after it
    look_backward: how many windows before its own a token sees
    look_forward: how many windows after its own a token sees
    exact_windowsize: whether a causal token sees no further back than window_size * look_backward tokens
    """

    def __init__(
        self,
        window_size,
        causal=False,
        look_backward=1,
        look_forward=None,
        dropout=0.0,
        exact_windowsize=False,
    ):
        super().__init__()
        self.look_forward = default(look_forward, 0 if causal else 1)
        assert self.look_forward == 0 or not causal, "a causal token sees no window after its own"
        self.window_size = window_size
        self.causal = causal
        self.look_backward = look_backward
        self.exact_windowsize = exact_windowsize
        self.dropout = nn.Dropout(dropout)

    def forward(self, q, k, v, input_mask=None):
        """q, k, v: (batch, n, dim). input_mask: True at tokens, (batch, n)."""
        b, t, e = q.shape
        window_size, causal = self.window_size, self.causal
        look_backward, look_forward = self.look_backward, self.look_forward
        assert t % window_size == 0, f"{t} tokens are no whole windows of {window_size}"
        windows = t // window_size

        b_t = torch.arange(t, device=q.device).reshape(1, windows, window_size)
        bq, bk, bv = (x.reshape(b, windows, window_size, -1) for x in (q, k, v))

        look_around_kwargs = {"backward": look_backward, "forward": look_forward}
        bk = look_around(bk, **look_around_kwargs)
        bv = look_around(bv, **look_around_kwargs)

        bq_t = b_t
        bq_k = look_around(b_t, **look_around_kwargs)

        dots = einsum("bhie,bhje->bhij", bq, bk) * (e**-0.5)
        mask_value = max_neg_value(dots)

        if causal:
            mask = bq_t[:, :, :, None] < bq_k[:, :, None, :]
            if self.exact_windowsize:
                max_causal_window_size = window_size * look_backward
                # before
                mask = mask & (bq_t[:, :, :, None] > (bq_k[:, :, None, :] + max_causal_window_size))
                # after
                mask = mask | (bq_t[:, :, :, None] > (bq_k[:, :, None, :] + max_causal_window_size))
                # end
            dots.masked_fill_(mask, mask_value)
            del mask

        # there are no windows before the first and after the last
        mask = bq_k[:, :, None, :] == -1
        dots.masked_fill_(mask, mask_value)
        del mask

        if input_mask is not None:
            input_mask = input_mask.reshape(b, windows, window_size)
            mk = look_around(input_mask, pad_value=False, **look_around_kwargs)
            dots.masked_fill_(~mk[:, :, None, :], mask_value)
            del mk

        attn = dots.softmax(dim=-1)
        attn = self.dropout(attn)

        out = einsum("bhij,bhje->bhie", attn, bv)
        return out.reshape(b, t, -1)
