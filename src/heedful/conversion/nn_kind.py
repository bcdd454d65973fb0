"""`heedful.nn.MultiHeadAttention`: the textbook's names and layers, and options that no other kind has."""

from heedful.conversion.anatomy import Anatomy, Settings
from heedful.conversion.kind import Kind
from heedful.conversion.textbook_kinds import call, linear_places, usage
from heedful.errors import ArgumentError
from heedful.nn import MultiHeadAttention


def anatomy(module: MultiHeadAttention) -> Anatomy:
    refuse_options(module)
    settings = Settings(
        module=type(module).__name__,
        num_heads=module.num_heads,
        causal=module.causal,
        dropout=module.dropout,
    )
    return Anatomy(settings, linear_places(module))


def refuse_options(module: MultiHeadAttention) -> None:
    """Raise `ArgumentError` for what only `heedful.nn.MultiHeadAttention` can do."""
    for option in ("d_context", "rotary", "window", "softcap"):
        if getattr(module, option) is not None:
            raise ArgumentError(
                option,
                expected="None: plain self-attention among the given tokens",
                received=f"{getattr(module, option)!r} in {type(module).__name__}",
                remedy="No other kind of module can do that: build this one without the option, or "
                "carry its weights into one of the same options by load_state_dict.",
            )


SHIPPED = Kind(
    "heedful.nn.MultiHeadAttention",
    lambda module: isinstance(module, MultiHeadAttention),
    anatomy,
    call,
    usage,
)
