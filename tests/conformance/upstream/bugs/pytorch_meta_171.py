"""Multi-head attention whose parameters can be given in the call, for meta-learning."""

from collections import OrderedDict

import torch.nn as nn
import torch.nn.functional as F


class MetaModule(nn.Module):
    """Base class of modules that accept `params`, an OrderedDict of adapted parameters."""

    def meta_named_parameters(self, prefix=""):
        yield from self.named_parameters(prefix=prefix)

    def get_subdict(self, params, key=None):
        if params is None:
            return None
        if key is None or key == "":
            return params
        start = key + "."
        return OrderedDict(
            (name[len(start) :], param) for name, param in params.items() if name.startswith(start)
        )


class MetaLinear(nn.Linear, MetaModule):
    __doc__ = nn.Linear.__doc__

    def forward(self, input, params=None):
        if params is None:
            params = OrderedDict(self.named_parameters())
        return F.linear(input, params["weight"], params.get("bias", None))


class MetaMultiheadAttention(nn.MultiheadAttention, MetaModule):
    __doc__ = nn.MultiheadAttention.__doc__

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        factory_kwargs = {"device": kwargs.get("device"), "dtype": kwargs.get("dtype")}
        bias = self.in_proj_bias is not None
        self.out_proj = MetaLinear(self.embed_dim, self.embed_dim, bias=bias, **factory_kwargs)

    def forward(
        self,
        query,
        key,
        value,
        key_padding_mask=None,
        need_weights=True,
        attn_mask=None,
        params=None,
    ):
        if params is None:
            params = OrderedDict(self.named_parameters())

        in_proj_weight = params.get("in_proj_weight", None)
        in_proj_bias = params.get("in_proj_bias", None)
        out_proj = self.get_subdict(params, "out_proj")
        bias_k = params.get("bias_k", None)
        bias_v = params.get("bias_v", None)

        # before
        inputs = query, key, value
        # after
        inputs = query, key, value
        if self.batch_first:
            inputs = [x.transpose(1, 0) for x in inputs]
        # end
        if not self._qkv_same_embed_dim:
            attn_output, attn_output_weights = F.multi_head_attention_forward(
                *inputs,
                self.embed_dim,
                self.num_heads,
                in_proj_weight,
                in_proj_bias,
                bias_k,
                bias_v,
                self.add_zero_attn,
                self.dropout,
                out_proj["weight"],
                out_proj.get("bias", None),
                training=self.training,
                key_padding_mask=key_padding_mask,
                need_weights=need_weights,
                attn_mask=attn_mask,
                use_separate_proj_weight=True,
                q_proj_weight=params["q_proj_weight"],
                k_proj_weight=params["k_proj_weight"],
                v_proj_weight=params["v_proj_weight"],
            )
        else:
            attn_output, attn_output_weights = F.multi_head_attention_forward(
                *inputs,
                self.embed_dim,
                self.num_heads,
                in_proj_weight,
                in_proj_bias,
                bias_k,
                bias_v,
                self.add_zero_attn,
                self.dropout,
                out_proj["weight"],
                out_proj.get("bias", None),
                training=self.training,
                key_padding_mask=key_padding_mask,
                need_weights=need_weights,
                attn_mask=attn_mask,
            )
        if self.batch_first:
            return attn_output.transpose(1, 0), attn_output_weights
        return attn_output, attn_output_weights
