"""A target as it treats its second sequence: the first one is held fixed, and the second one holds the tokens."""

from __future__ import annotations

from dataclasses import replace

from heedful.conformance.calling.convention import MEMORY, CallingConvention
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.masks import find_masks
from heedful.conformance.calling.subject import Subject

TRIAL_SIZES = (3, 5)  # B and T, unlike the number of tokens of the sequence that is held


def second_subject(subject: Subject, *, causal: bool) -> Subject | None:
    """Return the same target as a function of its second sequence, which has one row in all; None if it has none.

    Where all tokens but the queries are of the second sequence, the checks of the first one ask whether its mask acts.
    """
    convention = _convention(subject.convention, causal)
    if convention is None:
        return None
    caller = replace(
        subject, convention=convention, padding=None, attention_mask=None, positions=None, weak=()
    )
    if isinstance(attempt(lambda: caller.run(caller.draw(*TRIAL_SIZES))), Exception):
        return None
    masks = replace(find_masks(caller, None), attention_mask=None)
    acts = masks.padding is not None and masks.padding.effective
    if not acts and MEMORY not in subject.convention.constants.values():
        return None
    return replace(caller.with_masks(masks), max_length=None, cache_use=None, make_cache=None)


def _convention(convention: CallingConvention, causal: bool) -> CallingConvention | None:
    """Return how the second sequence alone is given; None if there is none.

    In cross-attention alone, all arguments for tokens but the first one hold the second sequence. Where queries see
    only the keys before them, both sequences are one.
    """
    constants = convention.constants
    held = tuple(name for name, value in constants.items() if value is MEMORY)[:1]
    second = held or (() if causal else convention.names[1:])
    varying = any(callable(value) for value in constants.values())
    if not second or varying or convention.visible_keys is not None or convention.vocabulary:
        return None
    first, features = convention.names[0], convention.features
    others = {name: convention.other_features.get(name, features) for name in second}
    rest = {name: value for name, value in constants.items() if name not in second}
    return replace(
        convention,
        names=second,
        features=others[second[0]],
        other_features={**others, first: features},
        constants={first: MEMORY, **rest},
        pooled=True,
    )
