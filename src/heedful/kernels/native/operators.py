"""The calls as operators of PyTorch, so that `torch.compile`, `torch.export` and the profiler know them."""

import torch

from heedful.kernels.native import calls

_FORWARD = """attention_forward(
    Tensor query, Tensor key, Tensor value, Tensor? start, Tensor? stop, Tensor? mask, Tensor? bias, Tensor? sinks,
    Tensor? seed, float scale, float softcap, float dropout_p) -> (Tensor output, Tensor lse)"""

_library = torch.library.Library("heedful", "DEF")
_library.define(_FORWARD, tags=torch.Tag.pt2_compliant_tag)


def _attention_forward(
    query, key, value, start, stop, mask, bias, sinks, seed, scale, softcap, dropout_p
):
    return calls.forward(
        *(query, key, value, start, stop, mask, bias, sinks),
        *(seed, scale, softcap, dropout_p),
        wants_lse=True,
    )


def _attention_forward_shapes(query, key, value, *others):
    return calls.empty_output(query, value), query.new_empty(query.shape[:3], dtype=torch.float32)


_library.impl("attention_forward", _attention_forward, "CPU")
torch.library.register_fake("heedful::attention_forward", _attention_forward_shapes, lib=_library)

attention_forward = torch.ops.heedful.attention_forward.default
