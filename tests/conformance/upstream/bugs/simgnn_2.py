"""How similar two graphs are: attention makes one embedding of all nodes of a graph."""

import torch
from torch import nn


class Attention(nn.Module):
    """Sums up the nodes, each weighted by how near it is to the mean of the graph.

    :param filters_3: size of the embedding of a node
    """

    def __init__(self, filters_3):
        super().__init__()
        self.weights_att = nn.Parameter(torch.empty(filters_3, filters_3))
        nn.init.xavier_normal_(self.weights_att)

    def forward(self, embedding):
        """
        :param embedding: the nodes of a graph, (nodes, filters_3)
        :return: the embedding of the graph, (1, filters_3)
        """
        global_context = torch.mean(embedding @ self.weights_att, dim=0)
        nl_global_context = torch.tanh(global_context).view(1, -1)
        sig_scores = torch.sigmoid(embedding @ nl_global_context.t())
        embedd = (embedding.t() @ sig_scores).t()
        # before
        return nl_global_context
        # after
        return embedd
        # end


class NeuralTensorLayer(nn.Module):
    """Compares two embeddings in several ways."""

    def __init__(self, output_dim, input_dim):
        super().__init__()
        self.W = nn.Parameter(torch.randn(output_dim, input_dim, input_dim) * input_dim**-0.5)
        self.V = nn.Linear(2 * input_dim, output_dim)

    def forward(self, e1, e2):
        bilinear = torch.einsum("bi,kij,bj->bk", e1, self.W, e2)
        return torch.tanh(bilinear + self.V(torch.cat([e1, e2], dim=1)))


class SimGNN(nn.Module):
    def __init__(self, labels, filters=16, tensor_neurons=8):
        super().__init__()
        self.conv_1 = nn.Linear(labels, filters)
        self.conv_2 = nn.Linear(filters, filters)
        self.attention = Attention(filters)
        self.tensor_layer = NeuralTensorLayer(tensor_neurons, filters)
        self.score = nn.Linear(tensor_neurons, 1)

    def embed(self, nodes, adjacency):
        nodes = torch.relu(adjacency @ self.conv_1(nodes))
        return self.attention(torch.relu(adjacency @ self.conv_2(nodes)))

    def forward(self, nodes_1, adjacency_1, nodes_2, adjacency_2):
        e1, e2 = self.embed(nodes_1, adjacency_1), self.embed(nodes_2, adjacency_2)
        return torch.sigmoid(self.score(self.tensor_layer(e1, e2)))
