"""Building a module from its class alone: sizes by what constructors conventionally call them."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, get_type_hints

from heedful.errors import ArgumentError

# Unlike each other, and unlike the 3 sequences of 7 tokens that they are run on, so that axes can be told apart.
WIDTH, HEADS, KEY_HEADS, HEAD_SIZE, CONTEXT, WINDOW = 24, 4, 2, 6, 16, 5
DROPOUT = 0.25  # enough that a few hundred weights show how it acts

_SIZES: tuple[tuple[Any, str], ...] = (
    (
        WIDTH,
        "d_in d_out d_model embed_dim embedding_dim emb_dim n_embd hidden_size hidden_dim dim dim_in dim_out model_dim "
        "in_dim out_dim input_dim output_dim in_features out_features d_emb features channels kdim vdim C n_embed emb_size "
        "embed_size embedding_size feature_dim num_hiddens hidden",
    ),
    (
        HEADS,
        "num_heads n_head n_heads heads nhead num_attention_heads nheads h num_q_heads n_q_heads head_count",
    ),
    (
        KEY_HEADS,
        "num_kv_heads n_kv_heads n_kv_head num_key_value_heads kv_heads num_kv_groups n_kv_groups num_groups "
        "n_groups",
    ),
    (HEAD_SIZE, "head_dim dim_head d_head head_size d_k d_v d_kv"),
    (
        CONTEXT,
        "context_length block_size max_len max_seq_len max_seq_length max_length seq_len n_positions n_ctx "
        "max_position_embeddings context_size max_context max_T ctx_len sequence_length max_context_length",
    ),
    (WINDOW, "window window_size sliding_window local_window attention_window"),
    (
        DROPOUT,
        "dropout dropout_p attn_dropout attn_pdrop resid_pdrop dropout_rate attention_dropout drop p_dropout "
        "attn_drop proj_drop resid_dropout drop_rate pdrop p",
    ),
    (48, "d_ff ffn_dim intermediate_size dim_feedforward d_mlp mlp_dim"),
    (37, "vocab_size n_vocab vocabulary num_embeddings"),
    (2, "num_layers n_layer n_layers depth num_hidden_layers layers"),
    (4, "max_batch_size max_batch batch_size"),
    (0, "layer_idx layer_id"),
    (10_000.0, "rope_theta rope_base theta"),
    (False, "qkv_bias bias use_bias"),
    (True, "batch_first"),
)
CONVENTIONAL: dict[str, Any] = {name: value for value, names in _SIZES for name in names.split()}


def build(kind: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call a class with the arguments given, and conventional values for all others that it needs.

    Dropouts are given even where they have a default, since of 0 nothing can be seen.

    Raises:
        ArgumentError: an argument that it does not take, a value that cannot be guessed, or what the constructor raised.
    """
    parameters = _parameters(kind)
    open_ended = any(it.kind is it.VAR_KEYWORD for it in parameters.values())
    for name in arguments:
        if name not in parameters and not open_ended:
            raise ArgumentError(
                name,
                expected=f"an argument of {kind.__name__}: {', '.join(parameters)}",
                received=repr(arguments[name]),
                remedy="Name one of these.",
            )
    hints = _hints(kind)
    values = dict(arguments)
    for name, parameter in parameters.items():
        if name in values or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        needed = parameter.default is parameter.empty
        if needed:
            values[name] = _guess(kind, name, hints.get(name))
        elif parameter.default == 0 and CONVENTIONAL.get(name) == DROPOUT:
            values[name] = DROPOUT
    try:
        return kind(**values)
    except Exception as error:
        raise ArgumentError(
            kind.__name__,
            expected="a class that can be built from conventional values",
            received=f"{type(error).__name__}: {error}, with "
            + ", ".join(f"{name}={value!r}" for name, value in values.items()),
            remedy="Give the values that it needs: arguments={…}, or --with NAME=VALUE.",
        ) from error


def _parameters(kind: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    found = inspect.signature(kind).parameters
    return dict(found)


def _hints(kind: Callable[..., Any]) -> dict[str, Any]:
    holder = kind.__init__ if inspect.isclass(kind) else kind
    try:
        return get_type_hints(holder)
    except (NameError, TypeError, AttributeError):  # an annotation that names what is not there
        return {}


def _guess(kind: Callable[..., Any], name: str, hint: Any) -> Any:
    if name in CONVENTIONAL:
        return CONVENTIONAL[name]
    if name in ("config", "cfg", "args", "params", "c", "hparams"):
        return _config(hint)
    raise ArgumentError(
        name,
        expected=f"a value for {kind.__name__}'s argument {name!r}",
        received="none, and its name tells nothing",
        remedy=f"Give it: arguments={{{name!r}: …}}, or --with {name}=VALUE.",
    )


def _config(hint: Any) -> Any:
    """A configuration with every conventional name, of the class that the annotation names if it is one."""
    if not inspect.isclass(hint) or hint in (dict, object, SimpleNamespace):
        return dict(CONVENTIONAL) if hint is dict else SimpleNamespace(**CONVENTIONAL)
    if dataclasses.is_dataclass(hint):
        taken = {it.name for it in dataclasses.fields(hint) if it.init}
        given = {name: CONVENTIONAL[name] for name in taken & CONVENTIONAL.keys()}
        return build(hint, given)
    named = {**CONVENTIONAL, "attn_implementation": "eager"}  # a configuration of transformers
    taken = set(inspect.signature(hint).parameters)
    return hint(**{name: value for name, value in named.items() if name in taken})
