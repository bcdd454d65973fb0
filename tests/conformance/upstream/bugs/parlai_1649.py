"""A memory network: a question reads the memories again and again."""

import torch
from torch import nn


class Embed(nn.Embedding):
    """The sum of the embeddings of the words of a sentence."""

    def forward(self, input):
        return super().forward(input).sum(dim=-2)


class Hop(nn.Module):
    def __init__(self, embedding_size):
        super().__init__()
        self.linear = nn.Linear(embedding_size, embedding_size, bias=False)

    def forward(self, query_embeddings, in_memory_embeddings, out_memory_embeddings, padding_mask):
        attention = torch.bmm(in_memory_embeddings, query_embeddings.unsqueeze(2)).squeeze(2)
        # before
        probs = torch.softmax(attention, dim=1)
        # after
        attention = attention.masked_fill(padding_mask, float("-inf"))
        probs = torch.softmax(attention, dim=1)
        # end
        memory_output = torch.bmm(probs.unsqueeze(1), out_memory_embeddings).squeeze(1)
        return memory_output + self.linear(query_embeddings)


class MemNN(nn.Module):
    def __init__(self, num_features, embedding_size, hops=1, padding_idx=0):
        super().__init__()
        self.padding_idx = padding_idx
        self.query_lt = Embed(num_features, embedding_size, padding_idx=padding_idx)
        self.in_memory_lt = Embed(num_features, embedding_size, padding_idx=padding_idx)
        self.out_memory_lt = Embed(num_features, embedding_size, padding_idx=padding_idx)
        self.memory_hop = Hop(embedding_size)
        self.hops = hops

    def forward(self, memories, queries):
        """
        memories: the words of the memories, of shape (batch, memories, words); padded memories have no words.
        queries: the words of the questions, of shape (batch, words).
        """
        padding_mask = (memories == self.padding_idx).all(dim=-1)
        state = self.query_lt(queries)
        in_memory = self.in_memory_lt(memories)
        out_memory = self.out_memory_lt(memories)
        for _ in range(self.hops):
            state = self.memory_hop(state, in_memory, out_memory, padding_mask)
        return state
