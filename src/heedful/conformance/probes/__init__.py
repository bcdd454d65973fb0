"""The probes, each a question of its own; imported in the order in which they are asked."""

# ruff: noqa: I001 - the order is meant

from heedful.conformance.probes import causality as causality
from heedful.conformance.probes import softmax as softmax
from heedful.conformance.probes import scale as scale
from heedful.conformance.probes import heads as heads
