"""The report of a benchmark run, and its output as text, JSON, Markdown and plot."""

from heedful.bench.report.report import BenchReport

__all__ = ["BenchReport"]
