"""What the conversion knows of one kind of attention module, and of one module of that kind."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from heedful.conversion.anatomy import Anatomy


@dataclass(frozen=True)
class Kind:
    """How modules of one kind are recognised, read, written and called.

    Modules are recognised by what they have, not by their class, so that anybody's own module with the same
    names converts as well. A wrong guess is caught by the certificate. `Any` is such a module.

    Attributes:
        name: what messages call it.
        recognise: whether a module is of this kind.
        anatomy: where it keeps what, for reading and writing alike; raises `ArgumentError` for an option that
            no other kind has.
        call: (module, x (B, T, d_in), causal) → output (B, T, d_out).
        usage: (module, causal) → the same call as one types it.
    """

    name: str
    recognise: Callable[[nn.Module], bool]
    anatomy: Callable[[Any], Anatomy]
    call: Callable[[Any, Tensor, bool], Tensor]
    usage: Callable[[Any, bool], str]


@dataclass(frozen=True)
class Subject:
    """A module that has been recognised."""

    module: nn.Module
    kind: Kind
    anatomy: Anatomy
