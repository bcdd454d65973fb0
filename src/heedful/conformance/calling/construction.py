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

VALUES: dict[str, Any] = {
    "width": WIDTH,
    "heads": HEADS,
    "key heads": KEY_HEADS,
    "head size": HEAD_SIZE,
    "context": CONTEXT,
    "window": WINDOW,
    "dropout": DROPOUT,
    "hidden": 48,
    "vocabulary": 37,
    "layers": 2,
    "batch": 4,
    "index": 0,
    "base": 10_000.0,
    "bias": False,
    "batch first": True,
}
NAMES = {
    # First those that heads divide: d_in need not be a multiple of them.
    "width": "d_out d_model embed_dim embedding_dim emb_dim n_embd hidden_size hidden_dim dim dim_out model_dim "
    "out_dim output_dim out_features d_emb features channels kdim vdim C n_embed emb_size embed_size embedding_size "
    "feature_dim num_hiddens hidden n_feat query_dim context_dim d_in dim_in in_dim input_dim in_features",
    "heads": "num_heads n_head n_heads heads nhead num_attention_heads nheads h num_q_heads n_q_heads head_count",
    "key heads": "num_kv_heads n_kv_heads n_kv_head num_key_value_heads kv_heads num_kv_groups n_kv_groups num_groups "
    "n_groups",
    "head size": "head_dim dim_head d_head head_size d_k d_v d_kv",
    "context": "context_length block_size max_len max_seq_len max_seq_length max_length seq_len n_positions n_ctx "
    "max_position_embeddings context_size max_context max_T ctx_len sequence_length max_context_length",
    "window": "window window_size sliding_window local_window attention_window",
    "dropout": "dropout dropout_p attn_dropout attn_pdrop resid_pdrop dropout_rate attention_dropout drop p_dropout "
    "attn_drop proj_drop resid_dropout drop_rate pdrop p",
    "hidden": "d_ff ffn_dim intermediate_size dim_feedforward d_mlp mlp_dim",
    "vocabulary": "vocab_size n_vocab vocabulary num_embeddings",
    "layers": "num_layers n_layer n_layers depth num_hidden_layers layers",
    "batch": "max_batch_size max_batch batch_size",
    "index": "layer_idx layer_id",
    "base": "rope_theta rope_base theta",
    "bias": "qkv_bias bias use_bias",
    "batch first": "batch_first",
}
KINDS = {name: kind for kind, names in NAMES.items() for name in names.split()}
WORDS = {  # in names that are none of these
    "drop": "dropout", "window": "window", "vocab": "vocab_size", "layer": "num_layers", "bias": "bias",
    "seq": "context_length", "ctx": "context_length", "len": "context_length", "kv_head": "num_kv_heads",
    "dim_head": "head_dim", "head_dim": "head_dim", "head_size": "head_dim", "heads": "num_heads",
    "n_head": "num_heads", "embed": "d_model", "emb": "d_model", "model": "d_model", "hidden": "d_model",
    "dim": "d_model", "channels": "d_model", "features": "d_model",
}  # fmt: skip
CONFIGS = ("config", "cfg", "args", "params", "c", "hparams", "model_args")


class Settings(dict[str, Any]):
    """A configuration that is read either way, `config.n_embd` or `config["n_embd"]`."""

    def __missing__(self, name: str) -> Any:
        raise _unknown("the configuration", name)

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(str(_unknown("the configuration", name)))


def build(kind: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call a class with the arguments given, and conventional values for all others that it needs.

    Dropouts are given even where they have a default, since of 0 nothing can be seen. Where the class takes a
    configuration, arguments may be meant for that.

    Raises:
        ArgumentError: an argument that it does not take, a value that cannot be guessed, or what the constructor
            raised.
    """
    parameters = dict(inspect.signature(kind).parameters)
    own = {name: value for name, value in arguments.items() if name in parameters}
    rest = {name: value for name, value in arguments.items() if name not in parameters}
    configured = any(name in CONFIGS and name not in own for name in parameters)
    if any(it.kind is it.VAR_KEYWORD for it in parameters.values()) and not configured:
        own, rest = dict(arguments), {}
    for name in () if configured else rest:
        raise ArgumentError(
            name,
            expected=f"an argument of {kind.__name__}: {', '.join(parameters)}",
            received=repr(arguments[name]),
            remedy="Name one of these.",
        )
    defaults = {name: it.default for name, it in parameters.items() if it.default is not it.empty}
    usual = conventional(arguments, defaults)
    hints = _hints(kind)
    values = own
    for name, parameter in parameters.items():
        if name in values or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name in CONFIGS and parameter.default is parameter.empty:
            values[name] = _config(hints.get(name), usual, rest)
        elif parameter.default is parameter.empty:
            known = name if name in usual else _likened(name)
            if known is None:
                raise _unknown(kind.__name__, name)
            values[name] = usual[known]
        elif parameter.default == 0 and KINDS.get(name) == "dropout":
            values[name] = DROPOUT
    return _built(kind, values)


def conventional(given: Mapping[str, Any], defaults: Mapping[str, Any] = {}) -> dict[str, Any]:
    """A value for every conventional name, such that heads go with what is given: of d_model=10 two, of five each.

    Args:
        given: values that stand.
        defaults: values that stand where nothing is given.
    """

    def said(kind: str, *sources: Mapping[str, Any]) -> int | None:
        values = (it.get(name) for it in sources for name in NAMES[kind].split())
        return next((it for it in values if isinstance(it, int) and it > 0), None)

    heads, width = said("heads", given, defaults), said("width", given, defaults)
    size, key_heads = said("head size", given), said("key heads", given)
    if heads is None:
        heads = next(it for it in (HEADS, 3, 2, 5, 1) if (width or WIDTH) % it == 0)
    if width is None:
        width = WIDTH if size is None and WIDTH % heads == 0 else heads * (size or HEAD_SIZE)
    if key_heads is None:
        key_heads = next(it for it in (KEY_HEADS, 3, 1) if heads % it == 0)
    fitting = {"width": width, "heads": heads, "key heads": key_heads}
    fitting["head size"] = width // heads if size is None else size
    chosen = {**VALUES, **fitting}
    return {**{name: chosen[kind] for name, kind in KINDS.items()}, **given}


def _likened(name: str) -> str | None:
    """The conventional name that means what a name holds a word for: "max_seq" means "context_length"."""
    return next((known for word, known in WORDS.items() if word in name.lower()), None)


def _built(kind: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    try:
        return kind(**values)
    except Exception as error:
        if isinstance(error, ArgumentError) and error.argument not in values:
            raise
        listed = (
            f"{name}={'…' if name in CONFIGS else repr(value)}" for name, value in values.items()
        )
        raise ArgumentError(
            kind.__name__,
            expected="a class that can be built from conventional values",
            received=f"{type(error).__name__}: {error}, with {', '.join(listed)}",
            remedy="Give the values that it needs: arguments={…}, or --with NAME=VALUE.",
        ) from error


def _hints(kind: Callable[..., Any]) -> dict[str, Any]:
    holder = kind.__init__ if inspect.isclass(kind) else kind
    try:
        return get_type_hints(holder)
    except (NameError, TypeError, AttributeError):  # an annotation that names what is not there
        return {}


def _unknown(holder: str, name: str) -> ArgumentError:
    return ArgumentError(
        name,
        expected=f"a value for {holder}'s {name!r}",
        received="none, and its name tells nothing",
        remedy=f"Give it: arguments={{{name!r}: …}}, or --with {name}=VALUE.",
    )


def _config(hint: Any, usual: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    """A configuration: of the class that the annotation names if it is one, or with every conventional name."""
    if not inspect.isclass(hint) or hint in (dict, object, SimpleNamespace):
        return Settings({**usual, **given})
    if dataclasses.is_dataclass(hint):
        taken = {it.name for it in dataclasses.fields(hint) if it.init}
        values = {name: value for name, value in usual.items() if name in taken}
        return build(hint, {**values, **given})
    named = {**usual, "attn_implementation": "eager", **given}  # a configuration of transformers
    taken = set(inspect.signature(hint).parameters)
    return hint(**{name: value for name, value in named.items() if name in taken})
