"""Sequence and structure of RNA, merged by a transformer over the atoms of all structures of a batch."""

import torch
import torch.nn as nn


class SequenceEmbedding(nn.Module):
    """Embeds nucleotides; stands where a language model of RNA may stand."""

    def __init__(self, dim, n_tokens=6):
        super().__init__()
        self.emb = nn.Embedding(n_tokens, dim)
        self.out_embedding = nn.Linear(dim, dim, bias=False)
        self.emb_act = nn.ReLU()

    def forward(self, tokens):
        return self.emb_act(self.out_embedding(self.emb(tokens)))


class SequenceStructureModule(nn.Module):
    """
    seq_emb: (atoms, dim // 2), the embeddings of the nucleotides that the atoms belong to
    x_struct: (atoms, dim // 2), the embeddings of the coordinates
    batch: (atoms,), the index of the structure that an atom belongs to
    """

    def __init__(self, dim, n_layers: int = 1, nhead: int = 4, dropout: float = 0.1):
        super().__init__()
        self.dim = dim
        encoder_layer = nn.TransformerEncoderLayer(
            d_model=dim,
            nhead=nhead,
            dim_feedforward=2 * dim,
            dropout=dropout,
            batch_first=True,
        )
        self.transformer_encoder = nn.TransformerEncoder(
            encoder_layer,
            num_layers=n_layers,
            norm=nn.LayerNorm(dim),
            enable_nested_tensor=False,
        )

    def forward(self, seq_emb, x_struct, batch):
        x = torch.cat((seq_emb, x_struct), dim=1)
        assert x.size(1) == self.dim, f"expected {self.dim} features, got {x.size(1)}"
        same_structure = batch[:, None] == batch[None, :]
        # before
        attn_mask = torch.zeros(x.size(0), x.size(0), device=x.device)
        attn_mask[same_structure] = 1
        # after
        attn_mask = torch.ones(x.size(0), x.size(0), device=x.device)
        attn_mask[same_structure] = 0
        # end
        return self.transformer_encoder(x, mask=attn_mask.bool())
