"""heedful: attention for PyTorch that you can read, check, see and run fast."""

from importlib import import_module
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
    from heedful.viewer import show
else:

    def __getattr__(name: str) -> object:
        """Import `check` and `show` on first use, because that takes longer than everything else."""
        packages = {"check": "heedful.conformance", "show": "heedful.viewer"}
        if name not in packages:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(packages[name]), name)


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
    "show",
    "summarize",
]
