"""The attention within the windows of a Swin transformer of version 2: by cosines, with a learned temperature."""

import torch
import torch.nn as nn


class WindowMultiHeadAttention(nn.Module):
    """
    This class implements window-based Multi-Head-Attention.
    """

    def __init__(
        self,
        in_features: int,
        window_size: int,
        number_of_heads: int,
        dropout_attention: float = 0.0,
        dropout_projection: float = 0.0,
        meta_network_hidden_features: int = 32,
    ) -> None:
        """
        Constructor method
        :param in_features: (int) Number of input features
        :param window_size: (int) Window size
        :param number_of_heads: (int) Number of attention heads
        :param dropout_attention: (float) Dropout rate of attention map
        :param dropout_projection: (float) Dropout rate after projection
        :param meta_network_hidden_features: (int) Number of hidden features in the position network
        """
        super().__init__()
        assert (in_features % number_of_heads) == 0, "The features are not divisible by the heads."
        self.in_features: int = in_features
        self.window_size: int = window_size
        self.number_of_heads: int = number_of_heads
        self.mapping_qkv = nn.Linear(in_features, in_features * 3, bias=True)
        self.attention_dropout = nn.Dropout(dropout_attention)
        self.projection = nn.Linear(in_features, in_features, bias=True)
        self.projection_dropout = nn.Dropout(dropout_projection)
        self.meta_network = nn.Sequential(
            nn.Linear(2, meta_network_hidden_features),
            nn.ReLU(),
            nn.Linear(meta_network_hidden_features, number_of_heads),
        )
        self.register_parameter("tau", nn.Parameter(torch.ones(1, number_of_heads, 1, 1)))
        indexes = torch.arange(window_size)
        coordinates = torch.stack(torch.meshgrid([indexes, indexes], indexing="ij"), dim=0)
        coordinates = torch.flatten(coordinates, start_dim=1)
        relative = (coordinates[:, :, None] - coordinates[:, None, :]).permute(1, 2, 0).float()
        relative_log = torch.sign(relative) * torch.log(1.0 + relative.abs())
        self.register_buffer("relative_coordinates_log", relative_log)

    def __get_relative_positional_encodings(self) -> torch.Tensor:
        """
        :return: (torch.Tensor) Positional encodings of shape [1, heads, window size ** 2, window size ** 2]
        """
        encodings = self.meta_network(self.relative_coordinates_log)
        return encodings.permute(2, 0, 1).unsqueeze(0)

    def __self_attention(self, query, key, value) -> torch.Tensor:
        """
        :return: (torch.Tensor) Output of shape [batch size * windows, tokens, channels]
        """
        # scaled cosine attention
        attention_map: torch.Tensor = torch.einsum("bhqd, bhkd -> bhqk", query, key)
        norm_query = torch.norm(query, dim=-1, keepdim=True)
        norm_key = torch.norm(key, dim=-1, keepdim=True)
        eps = torch.tensor(1e-06, device=query.device, dtype=query.dtype)
        # before
        attention_map = attention_map / torch.maximum(norm_query * norm_key, eps)
        # after
        attention_map = attention_map / torch.maximum(norm_query @ norm_key.transpose(-2, -1), eps)
        # end
        attention_map = attention_map / self.tau.clamp(min=0.01)
        attention_map = attention_map + self.__get_relative_positional_encodings()
        attention_map = attention_map.softmax(dim=-1)
        attention_map = self.attention_dropout(attention_map)
        output = torch.einsum("bhal, bhlv -> bhav", attention_map, value)
        return output.permute(0, 2, 1, 3).flatten(start_dim=2)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """
        Forward pass
        :param input: (torch.Tensor) Input of shape [batch size * windows, channels, height, width]
        :return: (torch.Tensor) Output of the same shape
        """
        batch_windows, channels, height, width = input.shape
        tokens = height * width
        shape: tuple[int, ...] = (batch_windows, tokens, 3, self.number_of_heads, -1)
        qkv = self.mapping_qkv(input.flatten(start_dim=2).permute(0, 2, 1))
        query, key, value = qkv.view(*shape).permute(2, 0, 3, 1, 4)
        output = self.__self_attention(query, key, value)
        output = self.projection_dropout(self.projection(output))
        return output.permute(0, 2, 1).view(batch_windows, channels, height, width)
