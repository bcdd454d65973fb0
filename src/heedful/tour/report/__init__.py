"""The report of a tour, and its output as text, HTML and JSON."""

from heedful.tour.report.report import TourReport

__all__ = ["TourReport"]
