"""Masks as values: which keys each query sees, how masks combine, and the forms that they lower to.

A mask says what is **kept**: True = attend. Query i sees key j, where i counts from the alignment:
``align="end"`` puts the last query at the last key (as with a cache), ``align="start"`` puts the first
query at the first key. With as many queries as keys, the two are the same and none need be named.

    Causal() & Window(256) & Documents(ids)     every combination by & and | is a mask again
    Sinks(4) | Window(256)

Nearly all masks lower to intervals: at most two key ranges per query.
"""

from heedful.masks.grid import Grid
from heedful.masks.key_ranges import KeyRanges
from heedful.masks.mask import MAX_KEY_RANGES, And, Dense, Mask, Or
from heedful.masks.positional import Band, Causal, Sinks, Window
from heedful.masks.sequences import Documents, Padding, Prefix

__all__ = [
    "MAX_KEY_RANGES",
    "And",
    "Band",
    "Causal",
    "Dense",
    "Documents",
    "Grid",
    "KeyRanges",
    "Mask",
    "Or",
    "Padding",
    "Prefix",
    "Sinks",
    "Window",
]
