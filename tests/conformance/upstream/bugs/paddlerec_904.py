"""The interests of a user as capsules, to which the clicked items are routed (MIND)."""

import torch
import torch.nn.functional as F
from torch import nn


def sequence_mask(lengths, maxlen):
    """Return 1 at items, 0 at padding, of shape (batch, maxlen)."""
    return (torch.arange(maxlen, device=lengths.device)[None, :] < lengths[:, None]).float()


class CapsuleLayer(nn.Module):
    """Behaviour to interest (B2I) dynamic routing.

    Args:
        input_units: size of an item.
        out_units: size of an interest.
        max_len: the most items of a user.
        k_max: number of interests.
        iters: rounds of routing.
        init_std: spread of the first routing logits, which are drawn once and not trained.
    """

    def __init__(self, input_units, out_units, max_len, k_max, iters=3, init_std=1.0):
        super().__init__()
        self.iters = iters
        self.max_len = max_len
        self.k_max = k_max
        self.input_units = input_units
        self.out_units = out_units
        routing_logits = torch.randn(1, k_max, max_len) * init_std
        self.register_buffer("B_matrix", routing_logits)
        self.bilinear_mapping_matrix = nn.Parameter(torch.empty(input_units, out_units))
        nn.init.xavier_normal_(self.bilinear_mapping_matrix)

    def squash(self, inputs):
        """Keep the direction, squeeze the length to (0, 1)."""
        vec_squared_norm = torch.sum(torch.square(inputs), dim=-1, keepdim=True)
        scalar_factor = (
            vec_squared_norm / (1 + vec_squared_norm) / torch.sqrt(vec_squared_norm + 1e-8)
        )
        return scalar_factor * inputs

    def forward(self, item_his_emb, seq_len):
        """
        item_his_emb: (batch, items, input_units). seq_len: (batch,), how many items are real.
        """
        batch_size, length, _ = item_his_emb.shape
        mask = sequence_mask(seq_len, length).unsqueeze(1)
        mask = mask.repeat(1, self.k_max, 1)
        B = self.B_matrix[:, :, :length].repeat(batch_size, 1, 1)

        low_capsule_new = torch.matmul(item_his_emb, self.bilinear_mapping_matrix)
        low_capsule_new_nograd = low_capsule_new.detach()
        pad = torch.ones_like(mask) * (-(2**32) + 1)

        for i in range(self.iters):
            B_mask = torch.where(mask == 0, pad.to(B.dtype), B)
            # before
            W = F.softmax(B_mask, dim=1)
            # after
            W = F.softmax(B_mask, dim=2)
            # end
            if i < self.iters - 1:
                # the rounds before the last one are only for routing
                high_capsule_tmp = torch.matmul(W, low_capsule_new_nograd)
                high_capsule = self.squash(high_capsule_tmp)
                B_delta = torch.matmul(high_capsule, low_capsule_new_nograd.transpose(1, 2))
                B = B + B_delta
            else:
                high_capsule = self.squash(torch.matmul(W, low_capsule_new))
        return high_capsule
