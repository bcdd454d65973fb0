"""Show, Attend and Tell: the decoder of captions, which attends over the pixels of a feature map."""

import torch
import torch.nn as nn
import torch.nn.functional as F

# model parameters
embed_dim = 512
attention_dim = 512
decoder_dim = 512
encoder_dim = 2048
vocab_size = 9490
dropout = 0.5


class Attention(nn.Module):
    """
    encoder_dim: feature size of the encoded images
    decoder_dim: size of the hidden state of the decoder
    attention_dim: size of the attention network
    """

    def __init__(self, encoder_dim, decoder_dim, attention_dim):
        super().__init__()
        self.encoder_att = nn.Linear(encoder_dim, attention_dim)
        self.decoder_att = nn.Linear(decoder_dim, attention_dim)
        self.full_att = nn.Linear(attention_dim, 1)

    def forward(self, encoder_out, decoder_hidden):
        att1 = self.encoder_att(encoder_out)  # [batch_size, num_pixels, attention_dim]
        att2 = self.decoder_att(decoder_hidden)  # [batch_size, attention_dim]
        att = self.full_att(F.relu(att1 + att2.unsqueeze(1))).squeeze(2)  # [batch_size, num_pixels]
        alpha = F.softmax(att, dim=1)
        attention_weighted_encoding = (encoder_out * alpha.unsqueeze(2)).sum(dim=1)
        return attention_weighted_encoding, alpha


class DecoderWithAttention(nn.Module):
    def __init__(
        self, attention_dim, embed_dim, decoder_dim, vocab_size, encoder_dim=2048, dropout=0.5
    ):
        super().__init__()
        self.encoder_dim = encoder_dim
        self.attention_dim = attention_dim
        self.embed_dim = embed_dim
        self.decoder_dim = decoder_dim
        self.vocab_size = vocab_size

        self.attention = Attention(encoder_dim, decoder_dim, attention_dim)
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.dropout = nn.Dropout(p=dropout)
        self.decode_step = nn.LSTMCell(embed_dim + encoder_dim, decoder_dim)
        self.init_h = nn.Linear(encoder_dim, decoder_dim)  # initial hidden state of the LSTM
        self.init_c = nn.Linear(encoder_dim, decoder_dim)  # initial cell state of the LSTM
        self.f_beta = nn.Linear(decoder_dim, encoder_dim)  # gate of the context
        self.fc = nn.Linear(decoder_dim, vocab_size)
        self.init_weights()

    def init_weights(self):
        self.embedding.weight.data.uniform_(-0.1, 0.1)
        self.fc.bias.data.fill_(0)
        self.fc.weight.data.uniform_(-0.1, 0.1)

    def init_hidden_state(self, encoder_out):
        mean_encoder_out = encoder_out.mean(dim=1)
        return self.init_h(mean_encoder_out), self.init_c(mean_encoder_out)

    def forward(self, encoder_out, encoded_captions, caption_lens):
        """
        encoder_out: encoded images [batch_size, enc_image_size, enc_image_size, encoder_dim]
        encoded_captions: encoded captions [batch_size, max_caption_len]
        caption_lens: lengths of the captions, with start and end [batch_size]
        """
        batch_size = encoder_out.size(0)

        # a row of pixels
        # before
        encoder_out = encoder_out.view(batch_size, -1, encoder_dim)
        # after
        encoder_out = encoder_out.view(batch_size, -1, self.encoder_dim)
        # end
        num_pixels = encoder_out.size(1)

        embeddings = self.embedding(encoded_captions)  # [batch_size, max_caption_len, embed_dim]
        h, c = self.init_hidden_state(encoder_out)

        # <end> is followed by nothing
        decode_lens = caption_lens - 1
        max_decode_len = int(decode_lens.max())

        # scores of words and attention weights, zero behind the end of a caption
        # before
        predictions = encoder_out.new_zeros(batch_size, max_decode_len, vocab_size)
        # after
        predictions = encoder_out.new_zeros(batch_size, max_decode_len, self.vocab_size)
        # end
        alphas = encoder_out.new_zeros(batch_size, max_decode_len, num_pixels)

        for t in range(max_decode_len):
            # the captions that are not at their end yet
            going = decode_lens > t
            context, alpha = self.attention(encoder_out[going], h[going])
            gate = torch.sigmoid(self.f_beta(h[going]))
            step = torch.cat([embeddings[going, t], gate * context], dim=1)
            h_t, c_t = self.decode_step(step, (h[going], c[going]))
            predictions[going, t] = self.fc(self.dropout(h_t))
            alphas[going, t] = alpha
            h, c = h.clone(), c.clone()
            h[going], c[going] = h_t, c_t
        return predictions, alphas
