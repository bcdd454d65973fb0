"""What is wrong with a class that the check cannot call: what its construction and its code show by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from heedful.conformance.calling.construction import instantiate_filled
from heedful.conformance.calling.failures import UncallableError
from heedful.conformance.calling.target import make_target
from heedful.conformance.failing_choices import fewer_key_heads_fail
from heedful.conformance.probes.discarded_results import discarded_results_in
from heedful.conformance.probes.sinusoids import sinusoids_in
from heedful.conformance.probes.undefined_attributes import missing_in_libraries
from heedful.conformance.probes.undefined_names import undefined_names_in
from heedful.conformance.probes.uninitialised_parameters import uninitialised_in
from heedful.conformance.probes.unpassed_values import unpassed_values_in
from heedful.conformance.probes.unread_results import unread_results_in
from heedful.conformance.probes.unregistered_parameters import unregistered_lists_in
from heedful.conformance.reporting.finding import Fact
from heedful.conformance.reporting.report import Report
from heedful.conformance.reporting.result import CONSTRUCTION, ProbeRun


def report_without_call(
    target: Any, arguments: Mapping[str, Any], error: UncallableError
) -> Report | None:
    """Return a report on a target of which no call works; None if nothing but the calls is known to be wrong.

    Args:
        target: The class or function.
        arguments: The constructor's, if the target is a class.
        error: What says that it cannot be called.
    """
    instance, uninitialised = instantiate_filled(target, arguments)
    held = make_target(instance)
    of_heads = fewer_key_heads_fail(target, arguments, error)
    findings = (
        *([] if of_heads is None else [of_heads]),
        *uninitialised_in(held.module, uninitialised),
        *undefined_names_in(held.callee),
        *islice(missing_in_libraries(held.callee), 1),
        *sinusoids_in(held.module),
        *unregistered_lists_in(held.module),
        *unread_results_in(held.module),
        *islice(discarded_results_in(held.module), 1),
        *islice(unpassed_values_in(held.module), 1),
    )
    if not any(it.level == "bug" for it in findings):
        return None
    fact = Fact(
        "call",
        f"none works, and only the construction was checked: {error.received}. {error.remedy}",
    )
    run = ProbeRun(CONSTRUCTION, 0.0, findings, (fact,))
    return Report(held.name, findings, (fact,), probes=(run,))
