"""Check an installed heedful: its native kernel is there, is chosen, and computes what PyTorch does."""

import torch

import heedful
from heedful.kernels.native import library

if library.missing:
    raise SystemExit(f"the native kernel is missing: {library.missing}")
for isa in library.isas():
    library.use_isa(isa)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        query, key, value = torch.randn(3, 2, 4, 70, 64).to(dtype).requires_grad_().unbind()
        actual = heedful.attention(query, key, value, heedful.Causal(), kernel="native")
        expected = torch.nn.functional.scaled_dot_product_attention(
            query.float(), key.float(), value.float(), is_causal=True
        )
        torch.testing.assert_close(actual.float(), expected, rtol=0, atol=2e-2)
        for ours, theirs in zip(
            torch.autograd.grad(actual.float().sum(), (query, key, value)),
            torch.autograd.grad(expected.sum(), (query, key, value)),
            strict=True,
        ):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=6e-2)
    print(heedful.__version__, isa, "agrees with PyTorch")
