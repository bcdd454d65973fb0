"""The interaction of the fields of a recommender: attention between the embeddings of one example."""

import torch
import torch.nn.functional as F
from torch import nn


class InteractingLayer(nn.Module):
    """
    Input shape: (batch_size, field_size, embedding_size). Output shape: the same.
    """

    def __init__(self, embedding_size, head_num=2, use_res=True):
        super().__init__()
        self.att_embedding_size = embedding_size // head_num
        self.head_num = head_num
        self.use_res = use_res
        self.W_Query = nn.Parameter(torch.randn(embedding_size, embedding_size) * 0.3)
        self.W_key = nn.Parameter(torch.randn(embedding_size, embedding_size) * 0.3)
        self.W_Value = nn.Parameter(torch.randn(embedding_size, embedding_size) * 0.3)
        self.W_Res = nn.Parameter(torch.randn(embedding_size, embedding_size) * 0.3)

    def forward(self, inputs):
        querys = torch.tensordot(inputs, self.W_Query, dims=([-1], [0]))
        keys = torch.tensordot(inputs, self.W_key, dims=([-1], [0]))
        values = torch.tensordot(inputs, self.W_Value, dims=([-1], [0]))
        querys = torch.stack(torch.split(querys, self.att_embedding_size, dim=2))
        keys = torch.stack(torch.split(keys, self.att_embedding_size, dim=2))
        values = torch.stack(torch.split(values, self.att_embedding_size, dim=2))
        inner_product = torch.einsum("bnik,bnjk->bnij", querys, keys)
        inner_product /= self.att_embedding_size**0.5
        normalized_att_scores = F.softmax(inner_product, dim=-1)
        result = torch.matmul(normalized_att_scores, values)
        result = torch.cat(torch.split(result, 1), dim=-1)
        result = torch.squeeze(result, dim=0)
        if self.use_res:
            result = result + torch.tensordot(inputs, self.W_Res, dims=([-1], [0]))
        return F.relu(result)
