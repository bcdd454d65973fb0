"""Heedful's native kernel inside PyTorch's own attention.

handle.py     accelerate(): which operators of PyTorch are replaced, and when they return
function.py   the whole function scaled_dot_product_attention
fused.py      the two fused operators, which that function calls in compiled graphs
module.py     the operator of nn.MultiheadAttention and nn.TransformerEncoder in inference
masks.py      PyTorch's masks, as the native kernel takes them
refusal.py    what is left to PyTorch
report.py     which calls were computed by which kernel
"""

from heedful.acceleration.handle import Acceleration, accelerate
from heedful.acceleration.report import AccelerationReport, CallKind

__all__ = ["Acceleration", "AccelerationReport", "CallKind", "accelerate"]
