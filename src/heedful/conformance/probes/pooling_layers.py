"""Probe: the pooling layers of an attention over channels or pixels take part in it, and do what their names say."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import nn

from heedful.conformance.evidence.evidence import Evidence
from heedful.conformance.probes.probe import probe
from heedful.conformance.recording.call_sites import line_reading
from heedful.conformance.recording.definitions import attribute_definition
from heedful.conformance.reporting.finding import ANY_CALL, Finding

AVERAGES = (
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
)
MAXIMA = (
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
)
OF_AVERAGE: re.Pattern[str] = re.compile(r"(?<![a-z])(avg|average|mean)")
OF_MAXIMUM: re.Pattern[str] = re.compile(r"(?<![a-z])(max|gmp)")


@probe("weights-wrong", "projection-unused")
def pooling_layers(evidence: Evidence) -> Iterator[Finding]:
    """Compare the names of pooling layers with their classes, and search for one that no line reads."""
    module = evidence.subject.module
    for path, part in () if module is None else module.named_modules():
        for name, layer in part.named_children():
            if not isinstance(layer, AVERAGES + MAXIMA):
                continue
            place = attribute_definition(part, name)
            kind = type(layer).__name__
            averages = isinstance(layer, AVERAGES)
            other = OF_MAXIMUM if averages else OF_AVERAGE
            own = OF_AVERAGE if averages else OF_MAXIMUM
            if other.search(name.lower()) and not own.search(name.lower()):
                result = "an average" if averages else "a maximum"
                proof = f"{name} is {kind}, whose result is {result}."
                yield Finding(
                    "weights-wrong", "bug", proof, ANY_CALL, place, "Use the layer of the name."
                )
                return
            if place is not None and line_reading(part, name) is None:
                whole = f"{path}.{name}" if path else name
                proof = f"Nothing reads {whole} ({kind}): no statistics of channels or pixels are made by it."
                yield Finding(
                    "projection-unused",
                    "bug",
                    proof,
                    ANY_CALL,
                    place,
                    "Call it before the weights are computed.",
                )
                return
