"""A target as it treats its second sequence: the first one is held fixed, and the second one holds the tokens."""

from __future__ import annotations

from dataclasses import replace

from heedful.conformance.calling.convention import MEMORY, CallingConvention
from heedful.conformance.calling.exceptions import attempt
from heedful.conformance.calling.masks import find_masks
from heedful.conformance.calling.subject import Subject

TRIAL_SIZES = (3, 5)  # B and T, unlike the number of tokens of the sequence that is held


def second_subject(subject: Subject) -> Subject | None:
    """Return the same target as a function of its second sequence, which has one row in all; None if it has none."""
    convention = _convention(subject.convention)
    if convention is None:
        return None
    caller = replace(
        subject, convention=convention, padding=None, attention_mask=None, positions=None, weak=()
    )
    if isinstance(attempt(lambda: caller.run(caller.draw(*TRIAL_SIZES))), Exception):
        return None
    masks = replace(find_masks(caller, None), attention_mask=None)
    return replace(caller.with_masks(masks), max_length=None, cache_use=None, make_cache=None)


def _convention(convention: CallingConvention) -> CallingConvention | None:
    constants = convention.constants
    second = next((name for name, value in constants.items() if value is MEMORY), None)
    varying = any(callable(value) for value in constants.values())
    if second is None or varying or convention.visible_keys is not None:
        return None
    first, features = convention.names[0], convention.features
    rest = {name: value for name, value in constants.items() if name != second}
    return replace(
        convention,
        names=(second,),
        features=convention.other_features.get(second, features),
        other_features={first: features},
        constants={first: MEMORY, **rest},
        pooled=True,
    )
