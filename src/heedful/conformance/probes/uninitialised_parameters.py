"""Probe: the constructor gives every parameter numbers of its own."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Iterator

from torch import nn

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.definitions import attribute_definition
from heedful.conformance.recording.source import source_lines
from heedful.conformance.reporting.finding import ANY_CALL, Finding

OF_ALL: re.Pattern[str] = re.compile(r"\.(named_)?(parameters|modules)\(\)|\.apply\(|_init_weights")
"""How code reaches parameters of other classes than its own, to give them numbers."""


@probe("output-not-finite")
def uninitialised_parameters(evidence: Evidence) -> Iterator[Finding]:
    """Search for parameters that still hold the memory they were made from, such as that of torch.empty()."""
    target = evidence.subject.target
    return uninitialised_in(target.module, target.uninitialised)


def uninitialised_in(module: nn.Module | None, names: Iterable[str]) -> Iterator[Finding]:
    """Yield the finding on the first of the parameters to which a constructor gave no numbers.

    Code that goes through all parameters of a model may fill them later, unless it is the module's own, which has run.
    """
    for name in names if module is not None else ():
        place = attribute_definition(module, name)
        text = "" if place is None else "".join(linecache.getlines(place.file))
        text = text.replace("".join(source_lines(type(module))[0]), "") if text else ""
        filled_later = place is None or OF_ALL.search(text) is not None
        yield Finding(
            "output-not-finite",
            "suspicious" if filled_later else "bug",
            f"The constructor gives {name} no numbers: it holds whatever its memory held, which may be NaN.",
            ANY_CALL,
            place,
            f"Initialise it, as in nn.init.normal_(self.{name.rpartition('.')[2]}, std=0.02).",
        )
        return
