"""The probes, each a question of its own; imported in the order in which they are asked."""

# ruff: noqa: I001 - the order is meant

from heedful.conformance.probes import causality as causality
from heedful.conformance.probes import softmax as softmax
from heedful.conformance.probes import weighing as weighing
from heedful.conformance.probes import scale as scale
from heedful.conformance.probes import heads as heads
from heedful.conformance.probes import dropout as dropout
from heedful.conformance.probes import state as state
from heedful.conformance.probes import gradients as gradients
from heedful.conformance.probes import strides as strides
from heedful.conformance.probes import projections as projections
from heedful.conformance.probes import lengths as lengths
from heedful.conformance.probes import crashes as crashes
from heedful.conformance.probes import caching as caching
from heedful.conformance.probes import padding as padding
from heedful.conformance.probes import rotary as rotary
