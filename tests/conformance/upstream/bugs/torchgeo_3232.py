"""CROMA: encoders of radar and optical images, with a bias of the scores by the distance of patches."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


def get_2dalibi(num_heads: int, num_patches: int) -> Tensor:
    """Compute 2D relative bias for attention.

    Args:
        num_heads: Number of heads.
        num_patches: Number of patches of an image, a square number.

    Returns:
        The bias, (1, num_heads, num_patches, num_patches).
    """
    side = math.isqrt(num_patches)
    rows, cols = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    points = torch.stack([rows.flatten(), cols.flatten()], dim=1).float()
    distances = (points[:, None] - points[None]).square().sum(-1).sqrt()
    start = 2 ** (-(2 ** -(math.log2(num_heads) - 3)))
    slopes = torch.tensor([start ** (i + 1) for i in range(num_heads)])
    return -(slopes[:, None, None] * distances)[None]


class FeedForward(nn.Sequential):
    def __init__(self, dim: int, mult: int = 4, dropout: float = 0.0) -> None:
        super().__init__(
            nn.LayerNorm(dim),
            nn.Linear(dim, dim * mult),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(dim * mult, dim),
            nn.Dropout(dropout),
        )


class Attention(nn.Module):
    """Attention of `x` to itself, or to `context`."""

    def __init__(self, dim: int, num_heads: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.input_norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, relative_position_bias: Tensor, context: Tensor | None = None
    ) -> Tensor:
        x = self.input_norm(x)
        context = x if context is None else self.input_norm(context)
        q = self.to_q(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        k, v = (
            t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for t in self.to_kv(context).chunk(2, dim=-1)
        )
        attention_scores = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale
        attn = self.dropout((attention_scores + relative_position_bias).softmax(dim=-1))
        out = torch.einsum("bhij,bhjd->bhid", attn, v)
        return self.to_out(out.transpose(1, 2).flatten(2))


class BaseTransformer(nn.Module):
    def __init__(self, dim: int, depth: int, num_heads: int, cross: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList()
        for _ in range(depth):
            layer = nn.ModuleDict({"attn": Attention(dim, num_heads), "ffn": FeedForward(dim)})
            if cross:
                layer["cross"] = Attention(dim, num_heads)
            self.layers.append(layer)
        self.norm_out = nn.LayerNorm(dim)

    def forward(self, x: Tensor, bias: Tensor, context: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            x = layer["attn"](x, bias) + x
            if context is not None:
                x = layer["cross"](x, bias, context) + x
            x = layer["ffn"](x) + x
        return self.norm_out(x)


class ViT(nn.Module):
    def __init__(
        self, dim: int, depth: int, num_heads: int, in_channels: int, patch_size: int
    ) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.linear_input = nn.Linear(in_channels * patch_size**2, dim)
        self.transformer = BaseTransformer(dim, depth, num_heads)

    def forward(self, images: Tensor, attn_bias: Tensor) -> Tensor:
        p = self.patch_size
        patches = images.unfold(2, p, p).unfold(3, p, p)
        patches = patches.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)
        return self.transformer(self.linear_input(patches), attn_bias)


class CROMA(nn.Module):
    """Pretrained CROMA model.

    Args:
        modalities: List of modalities used during forward pass, list can contain 'sar', 'optical', or both.
        encoder_dim: Dimension of the encoder.
        encoder_depth: Depth of the encoder.
        num_heads: Number of heads for the multi-head attention.
        patch_size: Size of the patches.
        image_size: Size of the input images, square.
    """

    valid_modalities = ("sar", "optical")

    def __init__(
        self,
        modalities: Sequence[str] = ("sar", "optical"),
        encoder_dim: int = 768,
        encoder_depth: int = 12,
        num_heads: int = 16,
        patch_size: int = 8,
        image_size: int = 120,
    ) -> None:
        super().__init__()
        for modality in modalities:
            if modality not in self.valid_modalities:
                raise ValueError(f"{modality} is not a valid modality")
        self.modalities = modalities
        num_patches = (image_size // patch_size) ** 2
        # before
        self.attn_bias = get_2dalibi(num_heads, num_patches)
        # after
        self.register_buffer("attn_bias", get_2dalibi(num_heads, num_patches))
        # end

        if "sar" in modalities:
            self.s1_encoder = ViT(encoder_dim, encoder_depth // 2, num_heads, 2, patch_size)
            self.s1_GAP_FFN = FeedForward(encoder_dim)
        if "optical" in modalities:
            self.s2_encoder = ViT(encoder_dim, encoder_depth, num_heads, 12, patch_size)
            self.s2_GAP_FFN = FeedForward(encoder_dim)
        if set(self.valid_modalities) <= set(modalities):
            self.joint_encoder = BaseTransformer(
                encoder_dim, encoder_depth // 2, num_heads, cross=True
            )

    def forward(
        self, x_sar: Tensor | None = None, x_optical: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Forward pass of the CROMA model.

        Args:
            x_sar: Input mini-batch of SAR images [B, 2, H, W].
            x_optical: Input mini-batch of optical images [B, 12, H, W].
        """
        return_dict: dict[str, Tensor] = {}
        if x_sar is not None:
            sar = self.s1_encoder(x_sar, self.attn_bias)
            return_dict["sar_encodings"] = sar
            return_dict["sar_GAP"] = self.s1_GAP_FFN(sar.mean(dim=1))
        if x_optical is not None:
            optical = self.s2_encoder(x_optical, self.attn_bias)
            return_dict["optical_encodings"] = optical
            return_dict["optical_GAP"] = self.s2_GAP_FFN(optical.mean(dim=1))
        if x_sar is not None and x_optical is not None:
            joint = self.joint_encoder(sar, self.attn_bias, optical)
            return_dict["joint_encodings"] = joint
            return_dict["joint_GAP"] = joint.mean(dim=1)
        return return_dict
