"""The known bugs of public projects, which may guide changes of the check; those of `held_out/` may not.

Each file holds the bugs of one family with their proofs. All bugs of one finding are in one file, so a new bug goes to
the bugs that its finding (`Case.bug`) has already.
"""

from upstream.known import (
    buffers,
    caches,
    calls,
    dropout,
    heads,
    mask_fills,
    masks,
    numbers,
    padding,
    positions,
    projections,
    scale,
    scores,
    softmax,
    windows,
)

FAMILIES = {
    family.__name__: family.CASES
    for family in (
        scale,
        scores,
        softmax,
        heads,
        projections,
        masks,
        mask_fills,
        padding,
        windows,
        dropout,
        positions,
        caches,
        buffers,
        calls,
        numbers,
    )
}
KNOWN = tuple(case for cases in FAMILIES.values() for case in cases)
