"""What a callable computes, step by step, under the names its own source gives to the steps.

    trace = record(attention, embeddings)
    print(trace)                    # a table: name, operation, shape, line, source
    trace["weights"].value          # the tensor that the line `weights = …` made
    [step for step in trace if step.unused]

The callable is not touched and needs to know nothing of this. `recorder` watches the torch calls,
`naming` reads off the source what each result is called, `provenance` knows which step a tensor
came from, and `trace` holds what was seen.
"""

from heedful.observation.recorder import record
from heedful.observation.trace import Source, Step, Summary, Trace

__all__ = ["Source", "Step", "Summary", "Trace", "record"]
