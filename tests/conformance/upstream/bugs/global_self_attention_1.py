"""Global self-attention over feature maps: an attention to content, and one to positions, columns first and then rows."""

import torch
from torch import einsum, nn

# helpers


def exists(val):
    return val is not None


def default(val, d):
    return val if exists(val) else d


def calc_reindexing_tensor(l, L, device):
    """
    1 at [x, i, r] where the offset of i from x is the r-th of the offsets from -(L - 1) to L - 1
    """
    x = torch.arange(l, device=device)[:, None, None]
    i = torch.arange(l, device=device)[None, :, None]
    r = torch.arange(2 * L - 1, device=device)[None, None, :]
    return (i - x) == (r - (L - 1))


# classes


class GSA(nn.Module):
    def __init__(
        self,
        dim,
        *,
        rel_pos_length=None,
        dim_out=None,
        heads=8,
        dim_key=64,
        norm_queries=False,
        batch_norm=True,
    ):
        super().__init__()
        dim_out = default(dim_out, dim)
        dim_hidden = dim_key * heads

        self.heads = heads
        self.dim_out = dim_out
        self.rel_pos_length = rel_pos_length
        self.norm_queries = norm_queries

        self.to_qkv = nn.Conv2d(dim, dim_hidden * 3, 1, bias=False)
        self.to_out = nn.Conv2d(dim_hidden, dim_out, 1)

        if exists(rel_pos_length):
            num_rel_shifts = 2 * rel_pos_length - 1
            self.norm = nn.BatchNorm2d(dim_key) if batch_norm else nn.Identity()
            self.rel_rows = nn.Parameter(torch.randn(num_rel_shifts, dim_key))
            self.rel_columns = nn.Parameter(torch.randn(num_rel_shifts, dim_key))

    def forward(self, img):
        b, c, x, y = img.shape
        h, L, device = self.heads, self.rel_pos_length, img.device

        qkv = self.to_qkv(img).chunk(3, dim=1)
        q, k, v = (t.reshape(b * h, -1, x, y) for t in qkv)

        # keys are normalized over all pixels

        k = k.flatten(2).softmax(dim=-1).reshape(k.shape)
        context = einsum("ndxy,nexy->nde", k, v)

        content_q = q if not self.norm_queries else q.softmax(dim=1)
        content_out = einsum("nde,ndxy->nexy", context, content_q)

        if exists(L):
            # column only: pixels with the same y

            Ix = calc_reindexing_tensor(x, L, device).to(q.dtype)
            Px = einsum("xir,rd->xid", Ix, self.rel_rows)
            Sx = einsum("ndxy,xid->nixy", q, Px)
            Yh = einsum("nixy,neiy->nexy", Sx, v)

            Yh = self.norm(Yh)

            # row only: pixels with the same x

            Iy = calc_reindexing_tensor(y, L, device).to(q.dtype)
            # before
            Py = einsum("xir,rd->xid", Iy, self.rel_columns)
            Sy = einsum("ndxy,xid->nixy", q, Py)
            rel_pos_out = einsum("nixy,neiy->nexy", Sy, Yh)
            # after
            Py = einsum("yir,rd->yid", Iy, self.rel_columns)
            Sy = einsum("ndxy,yid->nixy", q, Py)
            rel_pos_out = einsum("nixy,nexi->nexy", Sy, Yh)
            # end

            content_out = content_out + rel_pos_out

        content_out = content_out.reshape(b, -1, x, y)
        return self.to_out(content_out)
