"""Is an attention module right, and if not, which bug has it, on which line?"""

from heedful.conformance.checking import check
from heedful.conformance.finding import Fact, Finding, Place
from heedful.conformance.report import Report

__all__ = ["Fact", "Finding", "Place", "Report", "check"]
