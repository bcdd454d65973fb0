"""The Transformer layer for the behaviour sequences of users, as BST and DSIN use it."""

import torch
import torch.nn as nn


class Transformer(nn.Module):
    """A simplified version of the Transformer of "Attention Is All You Need".

    Input shape
        - queries: ``(batch_size, q_len, embedding_size)``
        - keys: ``(batch_size, k_len, embedding_size)``
        - keys_length: ``(batch_size,)``, how many of the keys are real.

    Output shape
        - ``(batch_size, 1, embedding_size)`` if ``output_type`` is ``'mean'`` or ``'sum'``, else
          ``(batch_size, q_len, embedding_size)``.

    Arguments
        - **embedding_size**: the size of an item.
        - **att_embedding_size**: the embedding size in each head.
        - **head_num**: the number of heads.
        - **dropout_rate**: float between 0 and 1.
        - **use_feed_forward**: bool. Whether or not to use the feed forward network.
        - **use_res**: bool. Whether or not to use residual connections.
        - **use_layer_norm**: bool. Whether or not to use layer normalization.
        - **blinding**: bool. Whether or not an item is hidden from itself.
    """

    def __init__(
        self,
        embedding_size,
        att_embedding_size=1,
        head_num=8,
        dropout_rate=0.0,
        use_feed_forward=True,
        use_res=True,
        use_layer_norm=False,
        blinding=False,
        output_type=None,
    ):
        super().__init__()
        if head_num <= 0:
            raise ValueError("head_num must be a int > 0")
        self.num_units = att_embedding_size * head_num
        if self.num_units != embedding_size:
            raise ValueError(
                "att_embedding_size * head_num must equal the last dimension size of inputs,"
                f" got {att_embedding_size} * {head_num} != {embedding_size}"
            )
        self.att_embedding_size = att_embedding_size
        self.head_num = head_num
        self.use_feed_forward = use_feed_forward
        self.use_res = use_res
        self.use_layer_norm = use_layer_norm
        self.blinding = blinding
        self.output_type = output_type

        self.W_Query = nn.Parameter(torch.empty(embedding_size, self.num_units))
        self.W_key = nn.Parameter(torch.empty(embedding_size, self.num_units))
        self.W_Value = nn.Parameter(torch.empty(embedding_size, self.num_units))
        weights = [self.W_Query, self.W_key, self.W_Value]
        if use_feed_forward:
            self.fw1 = nn.Parameter(torch.empty(self.num_units, 4 * self.num_units))
            self.fw2 = nn.Parameter(torch.empty(4 * self.num_units, self.num_units))
            weights += [self.fw1, self.fw2]
        for weight in weights:
            nn.init.xavier_normal_(weight)
        self.dropout = nn.Dropout(dropout_rate)
        if use_layer_norm:
            self.ln = nn.LayerNorm(self.num_units)

    def _split(self, x):
        # head_num*None T D
        return torch.cat(torch.split(x, self.att_embedding_size, dim=2), dim=0)

    def forward(self, queries, keys, keys_length=None):
        querys = torch.matmul(queries, self.W_Query)  # None T_q D*head_num
        # before
        keys = torch.matmul(keys, self.W_key)
        values = torch.matmul(keys, self.W_Value)
        # after
        values = torch.matmul(keys, self.W_Value)
        keys = torch.matmul(keys, self.W_key)
        # end

        querys, keys, values = self._split(querys), self._split(keys), self._split(values)

        # head_num*None T_q T_k
        outputs = torch.matmul(querys, keys.transpose(1, 2)) / (self.att_embedding_size**0.5)
        hidden = torch.finfo(outputs.dtype).min
        if keys_length is not None:
            positions = torch.arange(keys.size(1), device=keys.device)
            key_masks = (positions < keys_length[:, None]).repeat(self.head_num, 1)
            outputs = outputs.masked_fill(~key_masks[:, None, :], hidden)
        if self.blinding:
            itself = torch.eye(*outputs.shape[1:], dtype=torch.bool, device=outputs.device)
            outputs = outputs.masked_fill(itself, hidden)
        outputs = self.dropout(torch.softmax(outputs, dim=-1))

        # None T_q D*head_num
        result = torch.matmul(outputs, values)
        result = torch.cat(torch.split(result, queries.size(0), dim=0), dim=-1)

        if self.use_res:
            result = result + queries
        if self.use_layer_norm:
            result = self.ln(result)
        if self.use_feed_forward:
            fw = torch.matmul(self.dropout(torch.relu(torch.matmul(result, self.fw1))), self.fw2)
            result = result + fw if self.use_res else fw
            if self.use_layer_norm:
                result = self.ln(result)

        if self.output_type == "mean":
            return result.mean(dim=1, keepdim=True)
        if self.output_type == "sum":
            return result.sum(dim=1, keepdim=True)
        return result
