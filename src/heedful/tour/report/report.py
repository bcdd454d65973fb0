"""The tour as a whole: the chosen rungs climbed, this machine timed, and the verdict."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from heedful.tour import timing
from heedful.tour.comparison import Comparison
from heedful.tour.inputs import Tokens
from heedful.tour.ladder import Rung
from heedful.tour.walks import SEED, Climb


@dataclass(frozen=True, eq=False)
class Report:
    """All that a tour found; `terminal`, `page` and `document` show it."""

    tokens: Tokens
    climbs: tuple[tuple[Rung, Climb], ...]
    timing: timing.Timing

    @property
    def comparisons(self) -> tuple[tuple[str, Comparison], ...]:
        """Every comparison, with the name of the rung it was made on."""
        climbed = [(rung.name, found) for rung, climb in self.climbs for found in climb.comparisons]
        return (*climbed, *(("timing", found) for found in self.timing.comparisons))

    @property
    def disagreements(self) -> tuple[tuple[str, Comparison], ...]:
        return tuple(found for found in self.comparisons if not found[1].agrees)


def take(
    tokens: Tokens, rungs: tuple[Rung, ...], announce: Callable[[str], None] = lambda _: None
) -> Report:
    """Climb the rungs and time the machine.

    Every rung begins at the same random state, so that its numbers do not depend on what was climbed before;
    the caller's random state stays as it is.

    Args:
        tokens: what to attend to.
        rungs: some of the ladder's.
        announce: told what begins: each rung's title, then the timing.
    """
    climbs = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for rung in rungs:
            announce(rung.title)
            torch.manual_seed(SEED)
            climbs.append((rung, rung.climb(tokens)))
        announce("Timing this machine")
        torch.manual_seed(SEED)
        return Report(tokens, tuple(climbs), timing.measure())
