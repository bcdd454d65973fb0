"""Exact statistics of attention weights at any length, in O(T) memory.

function.py   summarize(): the arguments in, a Summary out
request.py    what is to be summarized, checked and lowered
chunked.py    the statistics in PyTorch, some queries at a time; kernels.native computes the same on CPUs
summary.py    the result, and how results of parts are merged
"""

from heedful.summaries.function import received_mass, summarize
from heedful.summaries.summary import Summary

__all__ = ["Summary", "received_mass", "summarize"]
