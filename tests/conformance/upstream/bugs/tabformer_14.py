"""Embeds the rows of a table: the fields of a row attend to each other."""

from torch import nn


class TabFormerEmbeddings(nn.Module):
    def __init__(self, vocab_size, ncols, field_hidden_size=16, hidden_size=24, num_layers=1):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab_size, field_hidden_size)
        encoder_layer = nn.TransformerEncoderLayer(
            d_model=field_hidden_size, nhead=4, dim_feedforward=field_hidden_size
        )
        self.transformer_encoder = nn.TransformerEncoder(
            encoder_layer, num_layers=num_layers, enable_nested_tensor=False
        )
        self.lin_proj = nn.Linear(field_hidden_size * ncols, hidden_size)

    def forward(self, input_ids):
        """
        input_ids: the values of the fields, of shape (batch, rows, ncols).
        Returns one vector for each row, of shape (batch, rows, hidden_size).
        """
        inputs_embeds = self.word_embeddings(input_ids)
        embeds_shape = list(inputs_embeds.size())
        inputs_embeds = inputs_embeds.view([-1, *embeds_shape[-2:]])
        # before
        inputs_embeds = self.transformer_encoder(inputs_embeds)
        # after
        inputs_embeds = inputs_embeds.permute(1, 0, 2)
        inputs_embeds = self.transformer_encoder(inputs_embeds)
        inputs_embeds = inputs_embeds.permute(1, 0, 2)
        # end
        inputs_embeds = inputs_embeds.contiguous().view([*embeds_shape[0:2], -1])
        return self.lin_proj(inputs_embeds)
