"""The whole tour: the chosen rungs, then the speed of this machine."""

from collections.abc import Callable

import torch

from heedful.tour.inputs import Tokens
from heedful.tour.ladder import Rung
from heedful.tour.recordings import SEED
from heedful.tour.report import TourReport
from heedful.tour.speed import compare_speed


def run_tour(
    tokens: Tokens, rungs: tuple[Rung, ...], announce: Callable[[str], None] = lambda _: None
) -> TourReport:
    """Run the rungs and time the machine.

    Every rung begins with the same random state, so that its numbers do not depend on the rungs before it. The
    caller's random state is restored.

    Args:
        tokens: The tokens to attend to.
        rungs: Some of the ladder's rungs.
        announce: Called with the title of each stage as it begins.

    Returns:
        The report of the whole tour.
    """
    results = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for rung in rungs:
            announce(rung.title)
            torch.manual_seed(SEED)
            results.append((rung, rung.run(tokens)))
        announce("Timing this machine")
        torch.manual_seed(SEED)
        return TourReport(tokens, tuple(results), compare_speed())
