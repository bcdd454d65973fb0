"""Is an attention module right, and if not, which bug has it, on which line?

    print(heedful.check(MyAttention(…), causal=True))

`subject` finds out how the target is called and makes it a subject. `evidence` holds what was observed of it: outputs,
influences, and the attentions (`cores`) in its recordings. Every probe in `probes` puts one question to the evidence.
`causes` keeps the findings that no other one explains, and `report` says them.
"""

from heedful.conformance.checking import check
from heedful.conformance.finding import Fact, Finding, Place
from heedful.conformance.report import Report

__all__ = ["Fact", "Finding", "Place", "Report", "check"]
