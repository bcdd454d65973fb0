"""The report of a tour."""

from dataclasses import dataclass

from heedful.tour.comparison import Comparison
from heedful.tour.inputs import Tokens
from heedful.tour.ladder import Rung
from heedful.tour.recordings import RungResult
from heedful.tour.speed import SpeedComparison


@dataclass(frozen=True, eq=False)
class TourReport:
    """The results of a tour.

    Attributes:
        tokens: The tokens that it attended to.
        results: The rungs with their results.
        speed: The speed of this machine.
    """

    tokens: Tokens
    results: tuple[tuple[Rung, RungResult], ...]
    speed: SpeedComparison

    @property
    def comparisons(self) -> tuple[tuple[str, Comparison], ...]:
        """All comparisons, each with the name of its rung, or "timing"."""
        of_rungs = [
            (rung.name, comparison)
            for rung, result in self.results
            for comparison in result.comparisons
        ]
        return (*of_rungs, *(("timing", comparison) for comparison in self.speed.comparisons))

    @property
    def disagreements(self) -> tuple[tuple[str, Comparison], ...]:
        """The comparisons of routes that do not agree."""
        return tuple(
            (place, comparison) for place, comparison in self.comparisons if not comparison.agrees
        )
