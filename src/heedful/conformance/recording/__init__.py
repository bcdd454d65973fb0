"""Recorded runs of a target: inputs, differences between runs, dataflow, source lines."""
