"""Record the torch calls of a callable as named steps.

    trace = record(attention, embeddings)
    print(trace)                    # a table: name, operation, shape, line, source
    trace["weights"].value          # the tensor that the line `weights = …` made
    [step for step in trace if step.unused]

The callable needs no preparation. `recorder` intercepts the torch calls, `source_location` finds the source line of
each call, `step_names` derives the names of its results, `tensor_origins` tracks which step a tensor came from,
`trace_builder` assembles the steps, and `trace` defines the finished trace.
"""

from heedful.observation.reachable import ReachableTensors
from heedful.observation.recorder import record
from heedful.observation.source_location import SourceLocation, find_location
from heedful.observation.step import Source, Step
from heedful.observation.summary import Summary
from heedful.observation.trace import Trace

__all__ = [
    "ReachableTensors",
    "Source",
    "SourceLocation",
    "Step",
    "Summary",
    "Trace",
    "find_location",
    "record",
]
