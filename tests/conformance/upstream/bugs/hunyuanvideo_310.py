import torch
import torch.nn as nn
import torch.nn.functional as F


def get_cu_seqlens(text_mask, img_len):
    """Calculate cu_seqlens_q, cu_seqlens_kv using text_mask and img_len

    Args:
        text_mask (torch.Tensor): the mask of text, (b, txt_len), 1 at the tokens of the prompt, then 0
        img_len (int): the length of image

    Returns:
        torch.Tensor: the calculated cu_seqlens for attention. Each sample is two segments: the image with the
            tokens of its prompt, and the padding of the prompt.
    """
    batch_size = text_mask.shape[0]
    text_len = text_mask.sum(dim=1)
    max_len = text_mask.shape[1] + img_len

    cu_seqlens = torch.zeros([2 * batch_size + 1], dtype=torch.int32, device=text_mask.device)
    for i in range(batch_size):
        s = text_len[i] + img_len
        cu_seqlens[2 * i + 1] = i * max_len + s
        cu_seqlens[2 * i + 2] = (i + 1) * max_len
    return cu_seqlens


def attention(q, k, v, drop_rate=0.0, cu_seqlens_q=None, cu_seqlens_kv=None):
    """
    Perform QKV self attention.

    Args:
        q (torch.Tensor): Query tensor with shape [b, s, a, d], where a is the number of heads.
        k (torch.Tensor): Key tensor with shape [b, s1, a, d]
        v (torch.Tensor): Value tensor with shape [b, s1, a, d]
        drop_rate (float): Dropout rate in attention map. (default: 0)
        cu_seqlens_q (torch.Tensor): cumulative lengths of the segments of q, two of each sample
        cu_seqlens_kv (torch.Tensor): cumulative lengths of the segments of k and v

    Returns:
        torch.Tensor: Output tensor after self attention with shape [b, s, ad]
    """
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    if cu_seqlens_q is None:
        x = F.scaled_dot_product_attention(q, k, v, dropout_p=drop_rate)
    else:
        # before
        split_q, split_kv = cu_seqlens_q[1], cu_seqlens_kv[1]
        attn1 = F.scaled_dot_product_attention(
            q[:, :, :split_q], k[:, :, :split_kv], v[:, :, :split_kv], dropout_p=drop_rate
        )
        attn2 = F.scaled_dot_product_attention(
            q[:, :, split_q:], k[:, :, split_kv:], v[:, :, split_kv:], dropout_p=drop_rate
        )
        x = torch.cat([attn1, attn2], dim=2)
        # after
        samples = []
        for i in range(q.shape[0]):
            split_q = cu_seqlens_q[2 * i + 1] - i * q.shape[2]
            split_kv = cu_seqlens_kv[2 * i + 1] - i * k.shape[2]
            qi, ki, vi = q[i : i + 1], k[i : i + 1], v[i : i + 1]
            attn1 = F.scaled_dot_product_attention(
                qi[:, :, :split_q], ki[:, :, :split_kv], vi[:, :, :split_kv], dropout_p=drop_rate
            )
            attn2 = F.scaled_dot_product_attention(
                qi[:, :, split_q:], ki[:, :, split_kv:], vi[:, :, split_kv:], dropout_p=drop_rate
            )
            samples.append(torch.cat([attn1, attn2], dim=2))
        x = torch.cat(samples, dim=0)
        # end
    x = x.transpose(1, 2)
    b, s, a, d = x.shape
    return x.reshape(b, s, -1)


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class MMDoubleStreamAttention(nn.Module):
    """
    The attention of a multimodal dit block with separate weights for text and image/video.
    """

    def __init__(self, hidden_size, heads_num, qk_norm=True, qkv_bias=False):
        super().__init__()
        self.heads_num = heads_num
        head_dim = hidden_size // heads_num

        self.img_attn_qkv = nn.Linear(hidden_size, hidden_size * 3, bias=qkv_bias)
        self.img_attn_q_norm = RMSNorm(head_dim) if qk_norm else nn.Identity()
        self.img_attn_k_norm = RMSNorm(head_dim) if qk_norm else nn.Identity()
        self.img_attn_proj = nn.Linear(hidden_size, hidden_size, bias=qkv_bias)

        self.txt_attn_qkv = nn.Linear(hidden_size, hidden_size * 3, bias=qkv_bias)
        self.txt_attn_q_norm = RMSNorm(head_dim) if qk_norm else nn.Identity()
        self.txt_attn_k_norm = RMSNorm(head_dim) if qk_norm else nn.Identity()
        self.txt_attn_proj = nn.Linear(hidden_size, hidden_size, bias=qkv_bias)

    def forward(self, img, txt, text_mask):
        """img: (b, img_len, c), txt: (b, txt_len, c), text_mask: (b, txt_len)"""
        img_q, img_k, img_v = (
            self.img_attn_qkv(img).unflatten(-1, (3, self.heads_num, -1)).unbind(2)
        )
        txt_q, txt_k, txt_v = (
            self.txt_attn_qkv(txt).unflatten(-1, (3, self.heads_num, -1)).unbind(2)
        )
        q = torch.cat((self.img_attn_q_norm(img_q), self.txt_attn_q_norm(txt_q)), dim=1)
        k = torch.cat((self.img_attn_k_norm(img_k), self.txt_attn_k_norm(txt_k)), dim=1)
        v = torch.cat((img_v, txt_v), dim=1)

        cu_seqlens = get_cu_seqlens(text_mask, img.shape[1])
        attn = attention(q, k, v, cu_seqlens_q=cu_seqlens, cu_seqlens_kv=cu_seqlens)
        img_attn, txt_attn = attn[:, : img.shape[1]], attn[:, img.shape[1] :]
        return img + self.img_attn_proj(img_attn), txt + self.txt_attn_proj(txt_attn)
