"""Checks whether an attention module is correct, and if it is not, which bug it has and on which line.

Each package imports only packages that stand below it here:

- `probes`: each probe asks one question about a target and answers with findings and facts.
- `fixing`: edits of the source that mend a finding (it stands beside `probes`).
- `ranks`: an attention over many processes beside the same attention on one (it stands beside `probes`, too).
- `evidence`: the runs that the probes look at, and the attentions found in them.
- `reporting`: findings, the catalogue that explains them, and reports (it stands beside `evidence`).
- `calling`: how a target is built and called.
- `recording`: recorded runs, their differences, their dataflow and the source code behind them.

`checking` walks through all of them, `command` is `heedful check`, and `pytest` makes a test of each probe.
`practising` and `grading` are the commands `heedful practise` and `heedful grade`.
"""

from typing import TYPE_CHECKING

from heedful.lazy import importing_names

if TYPE_CHECKING:
    from heedful.conformance.calling.examples import Example
    from heedful.conformance.checking import check
    from heedful.conformance.recording.source import SourceLine
    from heedful.conformance.reporting.finding import Fact, Finding
    from heedful.conformance.reporting.fix import Fix
    from heedful.conformance.reporting.report import Report
else:  # a shell that completes the name of a finding reads the catalogue, which needs no PyTorch
    __getattr__, __dir__ = importing_names(
        __name__,
        {
            "calling.examples": ("Example",),
            "checking": ("check",),
            "recording.source": ("SourceLine",),
            "reporting.finding": ("Fact", "Finding"),
            "reporting.fix": ("Fix",),
            "reporting.report": ("Report",),
        },
    )

__all__ = ["Example", "Fact", "Finding", "Fix", "Report", "SourceLine", "check"]
