"""The remedies of each finding, in the order in which they are tried."""

from __future__ import annotations

from heedful.conformance.fixing.remedies import (
    dropout,
    heads,
    masks,
    names,
    registration,
    removal,
    rotary,
    scale,
    softmax,
)
from heedful.conformance.fixing.remedies.remedy import (
    Remedy,
    rewriting,
    rewriting_alike,
    rewriting_all,
)

_LEFT_OUT = (
    removal.without_statement,
    rewriting(removal.without_term, removal.without_step, removal.without_index),
)
_EDGES = rewriting(
    masks.without_offset,
    masks.strictness,
    masks.shifted_triangle,
    masks.shifted_number,
    masks.causal_flag,
)
_POLARITY = rewriting(
    masks.without_negation,
    masks.opposite_comparison,
    masks.opposite_triangle,
    masks.negated,
)
_FILL = rewriting(
    masks.lowest_number,
    masks.fill_of_call,
    masks.boolean,
    masks.fill_number,
    masks.fill_instead_of_product,
)
_OTHER_NAME = (
    names.other_variable,
    rewriting(names.other_attribute, names.other_index),
    names.other_order,
)
_OFFSET = rewriting(masks.without_offset, rotary.offset, rotary.sliced)

REPAIRS: dict[str, tuple[Remedy, ...]] = {
    "undefined-or-global-name": (names.own_attribute, names.imported, names.known_variable),
    "crashes": (
        names.similar_attribute,
        names.added_attribute,
        rewriting(scale.whole_quotient),
        names.fewer_targets,
        rewriting(heads.reshaped, heads.concatenated),
    ),
}
"""The remedies of bugs that end every call, none of which leaves anything out."""

REMEDIES: dict[str, tuple[Remedy, ...]] = {
    "mask-unused": (
        masks.assign_result,
        rewriting(masks.hand_over, masks.build_triangle, masks.combine),
    ),
    "mask-inverted": (_POLARITY, *_LEFT_OUT),
    "mask-after-softmax": (masks.before_softmax, *_LEFT_OUT),
    "mask-fill-too-small": (_FILL,),
    "softmax-twice": (removal.without_reassignment, *_LEFT_OUT),
    "mask-not-a-buffer": (registration.as_buffer,),
    "table-not-a-buffer": (registration.as_buffer,),
    "parameter-not-registered": (registration.as_submodules,),
    "mask-broadcast": (rewriting(masks.broadcast), *_LEFT_OUT),
    "future-leak": (_EDGES, rewriting(masks.combine, masks.build_triangle), *_LEFT_OUT),
    "self-hidden": (_EDGES, *_LEFT_OUT),
    "window-off-by-one": (_EDGES,),
    "padding-leak": (rewriting(removal.without_step), rewriting(masks.combine, masks.broadcast)),
    "nan-on-masked-rows": (rewriting(masks.lowest_instead_of_infinity),),
    "softmax-wrong-dim": (rewriting(softmax.last_dimension),),
    "rows-not-normalised": (rewriting(softmax.softmax_instead), *_LEFT_OUT),
    "scale-missing": (
        rewriting(
            scale.default_scale,
            scale.number_as_factor,
            scale.scaled_product,
            scale.scaled_value,
            scale.scaled_input,
        ),
    ),
    "scale-wrong": (
        rewriting(
            scale.default_scale,
            scale.last_axis,
            scale.exponent,
            scale.inverse,
            scale.size,
            scale.root,
            scale.own_factor,
        ),
        *_LEFT_OUT,
    ),
    "keys-values-swapped": _OTHER_NAME,
    "heads-mixed-split": (
        rewriting_alike(heads.split),
        rewriting(heads.split, heads.exchanged, heads.axes, heads.equation),
    ),
    "heads-mixed-merge": (
        rewriting(heads.axes, heads.merge, heads.equation, heads.concatenated),
        *_LEFT_OUT,
    ),
    "batch-mixed": (
        rewriting(removal.without_term, removal.without_step),
        removal.without_statement,
        rewriting(heads.axes, heads.merge, heads.split, masks.broadcast, removal.without_index),
    ),
    "group-order": (rewriting(heads.interleaved), *_LEFT_OUT),
    "projection-unused": (
        names.through_unused,
        removal.without_statement,
        rewriting(names.other_attribute, names.projected),
        *_OTHER_NAME,
        *_LEFT_OUT,
    ),
    "dropout-in-eval": (rewriting(dropout.in_training_only, dropout.probability_in_training_only),),
    "dropout-misplaced": (
        rewriting(dropout.around_softmax),
        dropout.after_softmax,
        rewriting(dropout.without_dropout),
    ),
    "dropout-rescale": (rewriting(dropout.module_instead), *_LEFT_OUT),
    "cache-mismatch": (names.other_order, *_OTHER_NAME, _OFFSET, *_LEFT_OUT),
    "cache-garbage-read": (_EDGES, *_LEFT_OUT),
    "causal-alignment": (_OFFSET, *_LEFT_OUT),
    "rotary-offset": (*_LEFT_OUT, _OFFSET, names.other_variable),
    "rotary-mismatch": (
        rewriting(
            rotary.opposite_sign,
            rotary.negated_half,
            rotary.halves,
            rotary.neighbors,
        ),
        rotary.exchanged_variables,
    ),
    "rotary-precision": (rotary.precise,),
    "stale-state": (removal.without_statement, removal.without_last_term, *_LEFT_OUT),
    "undefined-or-global-name": REPAIRS["undefined-or-global-name"],
    "gradient-wrong": (rewriting(removal.attached), rewriting_all(removal.attached)),
    "stride-dependent": (
        rewriting(heads.reshaped, removal.without_step),
        removal.without_statement,
    ),
    "length-dependent": (*_LEFT_OUT, rewriting_all(removal.without_index)),
    "crashes": (*REPAIRS["crashes"], *_LEFT_OUT),
}
