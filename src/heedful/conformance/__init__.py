"""Check whether an attention module is correct, and if not, which bug it has and on which line.

`recording` holds recorded runs and reads them. `calling` finds out how a target is called and makes it a subject.
`evidence` holds the runs of a subject, the attentions found in them, and what the subject should do.
Each probe in `probes` puts one question to the evidence. `reporting` keeps the findings that no other finding explains.
"""

from heedful.conformance.check import check
from heedful.conformance.recording.source import SourceLine
from heedful.conformance.reporting.finding import Fact, Finding
from heedful.conformance.reporting.report import Report

__all__ = ["Fact", "Finding", "Report", "SourceLine", "check"]
