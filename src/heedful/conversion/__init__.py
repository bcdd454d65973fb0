"""Weights carried from one attention module into another, with a certificate that both compute the same.

A hub and its spokes: `anatomy` holds the one form all weights pass through, `kinds` says where each kind of
module keeps them and how it is called, `builders` how each class is constructed from them. `fit` refuses what
cannot be carried, `certificate` compares the two modules' outputs, and `carrying` strings these together.
"""

from heedful.conversion.carrying import convert
from heedful.conversion.certificate import Certificate

__all__ = ["Certificate", "convert"]
