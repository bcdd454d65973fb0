"""The attention of a transformer for tables, over the columns of a row."""

from torch import einsum, nn


class Residual(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.fn = fn

    def forward(self, x, **kwargs):
        return self.fn(x, **kwargs) + x


class PreNorm(nn.Module):
    def __init__(self, dim, fn):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fn = fn

    def forward(self, x, **kwargs):
        return self.fn(self.norm(x), **kwargs)


class Attention(nn.Module):
    def __init__(self, dim, heads=8, dim_head=16, dropout=0.0):
        super().__init__()
        inner_dim = dim_head * heads
        self.heads = heads
        self.scale = dim_head**-0.5
        self.to_qkv = nn.Linear(dim, inner_dim * 3, bias=False)
        self.to_out = nn.Linear(inner_dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = (
            t.reshape(b, n, self.heads, -1).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1)
        )
        sim = einsum("b h i d, b h j d -> b h i j", q, k) * self.scale
        # before
        attn = sim.softmax(dim=-1)
        # after
        attn = self.dropout(sim.softmax(dim=-1))
        # end
        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        return self.to_out(out.transpose(1, 2).reshape(b, n, -1))


class Transformer(nn.Module):
    """x: the embedded columns, of shape (batch, columns, dim)."""

    def __init__(self, dim, depth, heads, dim_head, attn_dropout):
        super().__init__()
        self.layers = nn.ModuleList(
            [
                PreNorm(dim, Residual(Attention(dim, heads, dim_head, attn_dropout)))
                for _ in range(depth)
            ]
        )

    def forward(self, x):
        for attn in self.layers:
            x = attn(x)
        return x
