"""The attentions of an encoder-decoder: those of its encoder, those of its decoder, and those between the two."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from heedful.errors import ArgumentError
from heedful.summaries import Summary
from heedful.viewer.heads.heads import Heads, check_layers, heads_of

ENCODER, DECODER, CROSS = "Encoder self-attention", "Decoder self-attention", "Cross-attention"
_CROSS_NAMES = re.compile(r"cross|encoder_?attn|enc_?dec|multihead_attn", re.IGNORECASE)


def kind_of(name: str) -> str | None:
    """Return the kind of an attention, from the names that PyTorch and transformers give; None if it says none.

    Examples:
        >>> kind_of("encoder.layers.0.self_attn")
        'Encoder self-attention'
        >>> kind_of("model.decoder.layers.0.encoder_attn")
        'Cross-attention'
    """
    parts = name.split(".")
    side = next((it for it in parts if it in ("encoder", "decoder")), None)
    if side is None:
        return None
    if side == "encoder":
        return ENCODER
    inside = parts[parts.index(side) + 1 :]
    return CROSS if any(_CROSS_NAMES.search(it) for it in inside) else DECODER


def heads_by_kind(
    layers: Mapping[str, Summary], source: Sequence[str], target: Sequence[str]
) -> dict[str, Heads]:
    """Return the heads of an encoder-decoder by their kind. A kind that has no layers is left out.

    Args:
        layers: The summary of each layer, by its name.
        source: A text for each token that the encoder reads.
        target: A text for each token that the decoder reads.

    Raises:
        ArgumentError: A name says no kind, or the texts do not fit.
    """
    check_layers(layers)
    kinds = {name: kind_of(name) for name in layers}
    unknown = next((name for name, kind in kinds.items() if kind is None), None)
    if unknown is not None:
        raise ArgumentError(
            "target_labels",
            expected='layers of an encoder-decoder, with "encoder" or "decoder" in their names',
            received=repr(unknown),
            remedy="Rename the layers of the mapping, or leave target_labels out for a model of one text.",
        )
    texts = {ENCODER: (source, source), DECODER: (target, target), CROSS: (target, source)}
    return {
        kind: _heads_of_kind(kind, layers, [*kinds.values()], *sides)
        for kind, sides in texts.items()
        if kind in kinds.values()
    }


def _heads_of_kind(
    kind: str,
    layers: Mapping[str, Summary],
    kinds: Sequence[str | None],
    queries: Sequence[str],
    keys: Sequence[str],
) -> Heads:
    places = tuple(i for i, it in enumerate(kinds) if it == kind)
    chosen = {name: it for i, (name, it) in enumerate(layers.items()) if i in places}
    sizes = {(it.lse.shape[2], it.keys.size) for it in chosen.values()}
    if sizes != {(len(queries), len(keys))}:
        raise ArgumentError(
            "labels, target_labels",
            expected=f"{kind} of {len(queries)} queries and {len(keys)} keys, as many as texts",
            received=" and ".join(f"{Tq} queries and {Tk} keys" for Tq, Tk in sorted(sizes)),
            remedy="Pass the text of every token, also of special ones: labels for the encoder's, "
            "target_labels for the decoder's.",
        )
    if kind == CROSS:  # a query has no place among the tokens of another text
        chosen = {name: replace(it, mean_distance=None) for name, it in chosen.items()}
    heads = replace(heads_of(chosen, queries, kind), places=places)
    return replace(heads, key_labels=tuple(map(str, keys))) if kind == CROSS else heads
