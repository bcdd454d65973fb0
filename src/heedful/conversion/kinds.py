"""The table of all kinds of attention module that can be converted into each other."""

from torch import nn

from heedful.conversion import gpt2_kind, nn_kind, textbook_kinds, torch_kind
from heedful.conversion.kind import Subject
from heedful.errors import ArgumentError

KINDS = (
    torch_kind.MULTIHEAD,
    gpt2_kind.FUSED,
    nn_kind.SHIPPED,  # before the kinds that go by names, which are its own too
    textbook_kinds.WRAPPER,
    textbook_kinds.PARAMETER,
    textbook_kinds.LINEAR,
)


def examine(module: nn.Module, argument: str) -> Subject:
    """Recognise a module, and find where it keeps what.

    Raises:
        ArgumentError: it is of none of the kinds, or has an option that no other kind has.
    """
    for kind in KINDS:
        if isinstance(module, nn.Module) and kind.recognise(module):
            return Subject(module, kind, kind.anatomy(module))
    raise ArgumentError(
        argument,
        expected="one of " + ", ".join(kind.name for kind in KINDS),
        received=f"{type(module).__name__}, which is none of these",
        remedy="Pass the attention module itself, not the block or the model around it.",
    )
