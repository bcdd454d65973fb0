"""heedful: attention for PyTorch that you can read, check, see and run fast."""

from typing import TYPE_CHECKING

from heedful.lazy import importing_names

__version__ = "0.1.0"

if TYPE_CHECKING:
    from heedful.acceleration import accelerate
    from heedful.conformance import check
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
    from heedful.viewer import show
else:
    __getattr__, __dir__ = importing_names(
        __name__,
        {
            "acceleration": ("accelerate",),
            "conformance": ("check",),
            "conversion": ("Certificate", "convert"),
            "dispatch": ("Plan", "explain"),
            "errors": ("ArgumentError", "HeedfulError", "KernelError", "MissingExtraError"),
            "functional": ("attention", "scaled_dot_product_attention"),
            "masks": (
                *("Band", "Causal", "Dense", "Documents", "KeyRanges", "Mask", "Padding", "Prefix"),
                *("Sinks", "Window"),
            ),
            "model_attention": ("attention_of",),
            "observation": ("Trace", "record"),
            "result": ("AttentionResult", "merge"),
            "summaries": ("Summary", "summarize"),
            "viewer": ("show",),
        },
    )

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
