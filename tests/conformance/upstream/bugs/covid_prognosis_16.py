"""
Multiple image prediction (MIP): a prognosis from a sequence of chest X-rays that were taken at irregular times.
"""

import math

import torch
import torch.nn as nn
from torch import Tensor


class ContinuousPosEncoding(nn.Module):
    """
    Sinusoidal encoding of times that are real numbers, in hours relative to the prediction.
    """

    def __init__(self, dim: int, drop: float = 0.1, maxtime: int = 360, num_steps: int = 720):
        super().__init__()
        self.dropout = nn.Dropout(drop)
        position = torch.linspace(0, maxtime, steps=num_steps).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, dim, 2).float() * (-math.log(10000.0) / dim))
        self.register_buffer("position", position.squeeze(1))
        pe = torch.zeros(num_steps, dim)
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, xs: Tensor, times: Tensor) -> Tensor:
        # nearest entry of the table; xs is sequence first, times is batch first
        ids = (times.abs().unsqueeze(-1) - self.position).abs().argmin(dim=-1)
        return self.dropout(xs + self.pe[ids].transpose(0, 1).to(xs.dtype))


class ImageModel(nn.Module):
    def __init__(self, in_channels: int, features: int):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, 8, kernel_size=3, stride=2, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, features, kernel_size=3, stride=2, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.features(x).relu().mean(dim=(-2, -1))


class MIPModel(nn.Module):
    """
    Args:
        feature_dim: Number of features that the image model gives for an image.
        projection_dim: Size to which features are projected for the transformer.
        num_classes: Number of outcomes.
        nhead: Number of heads of the transformer.
        num_layers: Number of layers of the transformer.
        pool_method: How to pool the outputs of a sequence, one of 'sum', 'mean' and 'last'.
    """

    def __init__(
        self,
        feature_dim: int = 64,
        projection_dim: int = 32,
        num_classes: int = 4,
        nhead: int = 2,
        num_layers: int = 2,
        dim_feedforward: int = 64,
        in_channels: int = 1,
        transformer_drop: float = 0.1,
        pool_method: str = "sum",
    ):
        super().__init__()
        if pool_method not in ("sum", "mean", "last"):
            raise ValueError("pool_method not recognized")
        self.pool_method = pool_method
        self.image_model = ImageModel(in_channels, feature_dim)
        self.projection = nn.Linear(feature_dim, projection_dim)
        self.pos_encoding = ContinuousPosEncoding(projection_dim, drop=transformer_drop)
        layer = nn.TransformerEncoderLayer(
            projection_dim, nhead, dim_feedforward=dim_feedforward, dropout=transformer_drop
        )
        self.transformer = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.combine = nn.Linear(2 * projection_dim, projection_dim)
        self.classifier = nn.Linear(projection_dim, num_classes)

    def _apply_transformer(self, image_feats: Tensor, times: Tensor, lens: Tensor) -> Tensor:
        B, N, _ = image_feats.shape
        image_feats = image_feats.permute([1, 0, 2])  # [N, B, C]
        image_feats = self.pos_encoding(image_feats, times)
        # before
        feats_trans = self.transformer(image_feats)
        # after
        padding = torch.arange(N, device=lens.device).repeat(B, 1) >= lens.unsqueeze(1)
        feats_trans = self.transformer(image_feats, src_key_padding_mask=padding)
        # end
        return feats_trans.permute([1, 0, 2])  # [B, N, C]

    def _pool(self, image_feats: Tensor, lens: Tensor) -> Tensor:
        pooled_feats = []
        for b_idx in range(image_feats.shape[0]):
            feats = image_feats[b_idx, : int(lens[b_idx])]
            if self.pool_method == "sum":
                pooled_feats.append(feats.sum(0))
            elif self.pool_method == "mean":
                pooled_feats.append(feats.mean(0))
            else:
                pooled_feats.append(feats[-1])
        return torch.stack(pooled_feats)

    def forward(self, images: Tensor, times: Tensor, lens: Tensor) -> Tensor:
        """
        Args:
            images: Images of a patient in order of their times, padded with anything, [B, N, C, H, W].
            times: When they were taken, [B, N].
            lens: How many images there are, [B].
        """
        B, N, C, H, W = images.shape
        image_feats = self.image_model(images.reshape(B * N, C, H, W)).reshape(B, N, -1)
        image_feats = self.projection(image_feats)
        feats_trans = self._apply_transformer(image_feats, times, lens)
        feats = self.combine(torch.cat([image_feats, feats_trans], dim=2)).relu()
        return self.classifier(self._pool(feats, lens))
