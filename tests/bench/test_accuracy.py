"""Results are held to float64, and what is wrong anywhere is found."""

import pytest
import torch

from heedful.bench import checking
from heedful.bench.peers import OURS, PEERS
from heedful.bench.settings import Setting, make

GROUPED = Setting(2, 4, 48, 16, Hkv=2, mask="causal", backward=True)


def results(setting: Setting, peer=PEERS["sdpa"]):
    inputs = make(setting)
    return inputs, checking.results_of(peer.prepare(inputs))


@pytest.mark.parametrize("most_scores", [2**25, 48 * 48 * 2])
def test_right_results_pass_whole_or_by_their_first_heads(monkeypatch, most_scores):
    monkeypatch.setattr(checking, "MOST_SCORES", most_scores)
    inputs, baseline = results(GROUPED)
    _, ours = results(GROUPED, OURS["heedful"])
    checks = checking.check(inputs, ours, baseline)
    assert [check.quantity for check in checks] == list(checking.NAMES)
    assert all(check.right for check in checks), checks


@pytest.mark.parametrize("result", range(4))
@pytest.mark.parametrize("spoil", ["last head", "everywhere", "NaN"])
def test_wrong_results_are_found_in_any_head_and_gradient(monkeypatch, result, spoil):
    monkeypatch.setattr(
        checking, "MOST_SCORES", 48 * 48 * 2
    )  # the last head is not held to float64
    inputs, baseline = results(GROUPED)
    ours = [tensor.clone() for tensor in baseline]
    if spoil == "last head":
        ours[result][-1, -1, 0] += 0.01
    elif spoil == "everywhere":
        ours[result] *= 1.00001
    else:
        ours[result][0, 0, 0, 0] = torch.nan
    wrong = [check.quantity for check in checking.check(inputs, ours, baseline) if not check.right]
    assert wrong == [checking.NAMES[result]]


def test_the_baseline_with_dropout_drops_what_ours_drop():
    setting = Setting(1, 2, 40, 16, mask="causal", dropout_p=0.3, backward=True)
    inputs = make(setting)
    right, baseline = checking.reference(inputs), checking.dropping_baseline(inputs)
    for theirs, mine in zip(baseline, right, strict=True):
        assert checking.relative_error(theirs, mine) < 1e-6


def test_the_module_is_held_to_float64():
    inputs, ours = results(Setting(2, 4, 32, 16), OURS["heedful module"])
    theirs = checking.results_of(PEERS["nn.MultiheadAttention"].prepare(inputs))
    right = checking.module_reference(inputs)
    (check,) = checking.check_alone(ours[0], right, theirs[0], "fp32")
    assert check.baseline < 1e-6
    (check,) = checking.check_alone(ours[0] + 1e-3, right, theirs[0], "fp32")
    assert not check.right
