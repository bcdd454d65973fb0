"""heedful: attention for PyTorch that you can read, check, see and run fast."""

from typing import TYPE_CHECKING

from heedful.acceleration import accelerate
from heedful.conversion import Certificate, convert
from heedful.dispatch import Plan, explain
from heedful.errors import ArgumentError, HeedfulError, KernelError, MissingExtraError
from heedful.functional import attention, scaled_dot_product_attention
from heedful.masks import (
    Band,
    Causal,
    Dense,
    Documents,
    KeyRanges,
    Mask,
    Padding,
    Prefix,
    Sinks,
    Window,
)
from heedful.model_attention import attention_of
from heedful.observation import Trace, record
from heedful.result import AttentionResult, merge
from heedful.summaries import Summary, summarize

if TYPE_CHECKING:
    from heedful.conformance import check
else:

    def __getattr__(name: str) -> object:
        """Import `check` on first use, because that takes longer than everything else."""
        if name != "check":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from heedful.conformance import check

        return check


__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "AttentionResult",
    "Band",
    "Causal",
    "Certificate",
    "Dense",
    "Documents",
    "HeedfulError",
    "KernelError",
    "KeyRanges",
    "Mask",
    "MissingExtraError",
    "Padding",
    "Plan",
    "Prefix",
    "Sinks",
    "Summary",
    "Trace",
    "Window",
    "accelerate",
    "attention",
    "attention_of",
    "check",
    "convert",
    "explain",
    "merge",
    "record",
    "scaled_dot_product_attention",
    "summarize",
]
