"""Recorded runs of a target: inputs, observations, differences between runs, dataflow and source lines."""
