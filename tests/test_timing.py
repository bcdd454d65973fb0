"""Turns, medians, ratios: on clocks of our own."""

import pytest

from heedful.bench.measuring import MOST_TURNS, Budget, Spread, Times, take_turns, time_runs


def test_contenders_take_turns_and_change_who_begins():
    order = []

    def contender(name, seconds):
        def timed(repeats):
            order.append(name)
            return seconds

        return timed

    times = take_turns(
        {name: contender(name, 0.01) for name in "AB"}, Budget(seconds=0.0, least_turns=4)
    )
    assert order == list("AB") + list("ABBAABBA")  # once each to learn how long it takes
    assert times.turns == 4


def test_what_is_quick_runs_often_in_a_turn():
    asked = []

    def timed(repeats):
        asked.append(repeats)
        return 1e-5

    take_turns({"quick": timed}, Budget(seconds=0.0, least_turns=3))
    assert asked == [1, 200, 200, 200]


def test_the_budget_ends_the_turns_and_so_does_their_number():
    times = take_turns({"A": lambda repeats: 1.0}, Budget(seconds=60.0, least_turns=1))
    assert times.turns == MOST_TURNS


def test_ratios_are_of_medians_with_quartiles_of_turns():
    times = Times({"ours": [1.0, 2.0, 1.0, 1.0, 1.0], "theirs": [3.0, 4.0, 3.0, 5.0, 2.0]})
    assert times.median("theirs") == 3.0
    assert times.ratio("theirs", "ours") == Spread(median=3.0, low=2.0, high=3.0)
    assert times.spread("ours") == Spread(1.0, 1.0, 1.0)


def test_runs_in_a_row_are_one_time():
    runs = []
    seconds = time_runs(lambda: runs.append(1), 10)
    assert len(runs) == 10
    assert 0 <= seconds < 0.1


@pytest.mark.parametrize("numbers", [[2.0, 1.0, 3.0], [1.0, 2.0, 2.0, 3.0]])
def test_a_spread_is_in_order(numbers):
    spread = Spread.of(numbers)
    assert spread.low <= spread.median == 2.0 <= spread.high
