"""Convert the weights of one attention module into another, with a certificate that both compute the same.

All weights pass through one common form, defined in `projections`. `adapters` recognizes each type of module and knows
how to call it and where its weights are, as a `weight_map`. `builders` constructs new modules, `compatibility` checks
that a conversion is possible, `verification` compares the outputs of the two modules, and `converter` combines these.
"""

from heedful.conversion.certificate import Certificate
from heedful.conversion.converter import convert

__all__ = ["Certificate", "convert"]
