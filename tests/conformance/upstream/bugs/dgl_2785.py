import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def edge_softmax(score, dst, num_nodes):
    """Softmax over the incoming edges of each node. score: (E, heads), dst: (E,)."""
    index = dst[:, None].expand_as(score)
    largest = score.new_full((num_nodes, score.shape[1]), -float("inf"))
    largest = largest.scatter_reduce(0, index, score.detach(), reduce="amax")
    score = torch.exp(score - largest[dst])
    total = score.new_zeros(num_nodes, score.shape[1]).scatter_add(0, index, score)
    return score / total[dst]


class HGTLayer(nn.Module):
    """A layer of the Heterogeneous Graph Transformer (https://arxiv.org/abs/2003.01332).

    Parameters
    ----------
    in_dim, out_dim : int
        Size of the features of the nodes of all types, before and after the layer.
    node_dict : dict[str, int]
        The node types and their ids.
    edge_dict : dict[str, int]
        The edge types and their ids.
    n_heads : int
        Number of heads.
    """

    def __init__(self, in_dim, out_dim, node_dict, edge_dict, n_heads, dropout=0.2, use_norm=False):
        super().__init__()
        self.in_dim = in_dim
        self.out_dim = out_dim
        self.node_dict = node_dict
        self.edge_dict = edge_dict
        self.n_heads = n_heads
        self.d_k = out_dim // n_heads
        self.sqrt_dk = math.sqrt(self.d_k)

        num_types, num_relations = len(node_dict), len(edge_dict)
        self.k_linears = nn.ModuleList([nn.Linear(in_dim, out_dim) for _ in range(num_types)])
        self.q_linears = nn.ModuleList([nn.Linear(in_dim, out_dim) for _ in range(num_types)])
        self.v_linears = nn.ModuleList([nn.Linear(in_dim, out_dim) for _ in range(num_types)])
        self.a_linears = nn.ModuleList([nn.Linear(out_dim, out_dim) for _ in range(num_types)])
        self.r_linears = nn.ModuleList(
            [
                nn.Identity() if in_dim == out_dim else nn.Linear(in_dim, out_dim)
                for _ in range(num_types)
            ]
        )
        self.use_norm = use_norm
        if use_norm:
            self.norms = nn.ModuleList([nn.LayerNorm(out_dim) for _ in range(num_types)])

        self.relation_pri = nn.Parameter(torch.ones(num_relations, n_heads))
        self.relation_att = nn.Parameter(torch.empty(num_relations, n_heads, self.d_k, self.d_k))
        self.relation_msg = nn.Parameter(torch.empty(num_relations, n_heads, self.d_k, self.d_k))
        self.skip = nn.Parameter(torch.ones(num_types))
        self.drop = nn.Dropout(dropout)
        nn.init.xavier_uniform_(self.relation_att)
        nn.init.xavier_uniform_(self.relation_msg)

    def forward(self, edges, h):
        """
        edges: {(source type, edge type, destination type): (2, E), the ids of the sources and the destinations}
        h: {node type: (nodes, in_dim)}
        """
        srcdata = {ntype: {} for ntype in h}
        funcs = []
        for (srctype, etype, dsttype), (src, dst) in edges.items():
            k_linear = self.k_linears[self.node_dict[srctype]]
            v_linear = self.v_linears[self.node_dict[srctype]]
            q_linear = self.q_linears[self.node_dict[dsttype]]

            k = k_linear(h[srctype]).view(-1, self.n_heads, self.d_k)
            v = v_linear(h[srctype]).view(-1, self.n_heads, self.d_k)
            q = q_linear(h[dsttype]).view(-1, self.n_heads, self.d_k)

            e_id = self.edge_dict[etype]
            k = torch.einsum("bij,ijk->bik", k, self.relation_att[e_id])
            v = torch.einsum("bij,ijk->bik", v, self.relation_msg[e_id])

            # before
            name = "v"
            # after
            name = f"v_{e_id}"
            # end
            srcdata[srctype][name] = v

            attn_score = (q[dst] * k[src]).sum(-1) * self.relation_pri[e_id] / self.sqrt_dk
            attn_score = edge_softmax(attn_score, dst, h[dsttype].shape[0])
            funcs.append((srctype, dsttype, name, attn_score, src, dst))

        # sum over the edges of a type, mean over the types
        updates = {ntype: [] for ntype in h}
        for srctype, dsttype, name, attn_score, src, dst in funcs:
            m = srcdata[srctype][name][src] * attn_score.unsqueeze(-1)
            t = m.new_zeros(h[dsttype].shape[0], self.n_heads, self.d_k).index_add(0, dst, m)
            updates[dsttype].append(t.flatten(1))

        new_h = {}
        for ntype, feats in h.items():
            n_id = self.node_dict[ntype]
            residual = self.r_linears[n_id](feats)
            if not updates[ntype]:
                new_h[ntype] = residual
                continue
            t = F.gelu(torch.stack(updates[ntype]).mean(0))
            alpha = torch.sigmoid(self.skip[n_id])
            trans_out = self.drop(self.a_linears[n_id](t)) * alpha + residual * (1 - alpha)
            new_h[ntype] = self.norms[n_id](trans_out) if self.use_norm else trans_out
        return new_h
