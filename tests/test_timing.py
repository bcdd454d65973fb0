"""Turns, medians and ratios, on simulated clocks."""

import pytest

from heedful.timing import Budget, Spread, Times, iterate_turns, take_turns, time_runs


def test_contenders_take_turns_in_alternating_order():
    order = []

    def contender(name, seconds):
        def timed_run(repeats):
            order.append(name)
            return seconds

        return timed_run

    times = take_turns(
        {name: contender(name, 0.01) for name in "AB"}, Budget(seconds=0.0, min_turns=4)
    )
    assert order == list("AB") + list("ABBAABBA")  # the first AB determines the repeats
    assert times.turns == 4


def test_quick_runs_are_repeated_within_a_turn():
    repeats_of_calls = []

    def timed_run(repeats):
        repeats_of_calls.append(repeats)
        return 1e-5

    take_turns({"quick": timed_run}, Budget(seconds=0.0, min_turns=3))
    assert repeats_of_calls == [1, 200, 200, 200]


def test_iterated_turns_run_each_contender_once():
    repeats_of_calls = []

    def timed_run(repeats):
        repeats_of_calls.append(repeats)
        return 1e-5

    turns = list(iterate_turns({"quick": timed_run}, Budget(seconds=9.0, min_turns=2, max_turns=2)))
    assert turns == [{"quick": 1e-5}] * 2
    assert repeats_of_calls == [1, 1]


def test_the_maximum_number_of_turns_ends_the_timing():
    budget = Budget(seconds=60.0, min_turns=1)
    times = take_turns({"A": lambda repeats: 1.0}, budget)
    assert times.turns == budget.max_turns


def test_ratios_are_of_medians_with_quartiles_of_turns():
    times = Times({"ours": [1.0, 2.0, 1.0, 1.0, 1.0], "theirs": [3.0, 4.0, 3.0, 5.0, 2.0]})
    assert times.median("theirs") == 3.0
    assert times.ratio("theirs", "ours") == Spread(median=3.0, low=2.0, high=3.0)
    assert times.spread("ours") == Spread(1.0, 1.0, 1.0)


def test_repeated_runs_are_averaged():
    runs = []
    seconds = time_runs(lambda: runs.append(1), 10)
    assert len(runs) == 10
    assert 0 <= seconds < 0.1


@pytest.mark.parametrize("numbers", [[2.0, 1.0, 3.0], [1.0, 2.0, 2.0, 3.0]])
def test_a_spread_is_ordered(numbers):
    spread = Spread.of(numbers)
    assert spread.low <= spread.median == 2.0 <= spread.high
