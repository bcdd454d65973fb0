"""A transformer over the nodes of graphs. The graphs of a batch are padded at the front."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def pad_batch(h_node, batch, max_input_len):
    """Split the nodes of a batch into graphs of one length.

    Returns the nodes, n_b x B x h_d, and a mask, B x n_b, which is True at padding.
    """
    graphs = [h_node[batch == i][-max_input_len:] for i in range(int(batch[-1]) + 1)]
    max_num_nodes = max(len(graph) for graph in graphs)
    padding = [max_num_nodes - len(graph) for graph in graphs]
    padded_h_node = torch.stack(
        [F.pad(graph, (0, 0, n, 0)) for graph, n in zip(graphs, padding)], dim=1
    )
    positions = torch.arange(max_num_nodes, device=h_node.device)
    src_padding_mask = positions < torch.tensor(padding, device=h_node.device)[:, None]
    return padded_h_node, src_padding_mask


class SelfAttention(nn.Module):
    """Attention of all nodes of a graph to each other, with several heads."""

    def __init__(self, n_embd, n_head, attn_pdrop, resid_pdrop):
        super().__init__()
        assert n_embd % n_head == 0
        self.key = nn.Linear(n_embd, n_embd)
        self.query = nn.Linear(n_embd, n_embd)
        self.value = nn.Linear(n_embd, n_embd)
        self.attn_drop = nn.Dropout(attn_pdrop)
        self.resid_drop = nn.Dropout(resid_pdrop)
        self.proj = nn.Linear(n_embd, n_embd)
        self.n_head = n_head

    def forward(self, x, src_padding_mask=None):
        B, T, C = x.size()

        def split(states):
            return states.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)

        # (B, heads, T, head size)
        q, k, v = split(self.query(x)), split(self.key(x)), split(self.value(x))

        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(C // self.n_head))
        if src_padding_mask is not None:
            mask_value = torch.finfo(att.dtype).min
            # before
            att = att.masked_fill(src_padding_mask.unsqueeze(1).unsqueeze(2) == 0, mask_value)
            # after
            att = att.masked_fill(src_padding_mask.unsqueeze(1).unsqueeze(2) != 0, mask_value)
            # end
        att = self.attn_drop(F.softmax(att, dim=-1))
        y = (att @ v).transpose(1, 2).reshape(B, T, C)
        return self.resid_drop(self.proj(y))


class Block(nn.Module):
    def __init__(self, n_embd, n_ff, n_head, attn_pdrop, resid_pdrop):
        super().__init__()
        self.ln1 = nn.LayerNorm(n_embd)
        self.ln2 = nn.LayerNorm(n_embd)
        self.attn = SelfAttention(n_embd, n_head, attn_pdrop, resid_pdrop)
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, n_ff),
            nn.GELU(),
            nn.Linear(n_ff, n_embd),
            nn.Dropout(resid_pdrop),
        )

    def forward(self, x, src_padding_mask=None):
        x = x + self.attn(self.ln1(x), src_padding_mask)
        return x + self.mlp(self.ln2(x))


class GraphTransformer(nn.Module):
    """Attention among all nodes of a graph, and a prediction from their mean."""

    def __init__(
        self,
        num_tasks,
        gnn_emb_dim,
        d_model=128,
        nhead=4,
        dim_feedforward=512,
        transformer_dropout=0.3,
        num_encoder_layers_masked=1,
        max_input_len=1000,
    ):
        super().__init__()
        self.max_input_len = max_input_len
        self.gnn2transformer = nn.Linear(gnn_emb_dim, d_model)
        drop = transformer_dropout
        self.blocks = nn.ModuleList(
            [
                Block(d_model, dim_feedforward, nhead, drop, drop)
                for _ in range(num_encoder_layers_masked)
            ]
        )
        self.graph_pred_linear = nn.Linear(d_model, num_tasks)

    def forward(self, h_node, batch):
        """
        h_node: embeddings of the nodes of all graphs, num_nodes x gnn_emb_dim
        batch: the graph of each node, in ascending order
        """
        h_node = self.gnn2transformer(h_node)
        padded_h_node, src_padding_mask = pad_batch(h_node, batch, self.max_input_len)
        x = padded_h_node.transpose(0, 1)
        for block in self.blocks:
            x = block(x, src_padding_mask)
        real = (~src_padding_mask).unsqueeze(-1).to(x.dtype)
        h_graph = (x * real).sum(1) / real.sum(1)
        return self.graph_pred_linear(h_graph)
