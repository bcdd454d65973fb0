"""Results are compared with float64, and errors are found wherever they are."""

import pytest
import torch

from heedful.bench import accuracy
from heedful.bench.peers import OURS, PEERS
from heedful.bench.workload import AttentionWorkload, make_inputs

GROUPED = AttentionWorkload(2, 4, 48, 16, Hkv=2, mask="causal", backward=True)


def results(workload: AttentionWorkload, peer=PEERS["sdpa"]):
    inputs = make_inputs(workload)
    return inputs, accuracy.results_of(peer.prepare(inputs))


@pytest.mark.parametrize("max_scores", [2**25, 48 * 48 * 2])
def test_right_results_pass_as_a_whole_or_by_their_first_heads(monkeypatch, max_scores):
    monkeypatch.setattr(accuracy, "MAX_SCORES", max_scores)
    inputs, baseline = results(GROUPED)
    _, ours = results(GROUPED, OURS["heedful"])
    checks = accuracy.check_heads(inputs, ours, baseline)
    assert [check.quantity for check in checks] == list(accuracy.NAMES)
    assert all(check.right for check in checks), checks


@pytest.mark.parametrize("result", range(4))
@pytest.mark.parametrize("error", ["last head", "everywhere", "NaN"])
def test_wrong_results_are_found_in_any_head_and_gradient(monkeypatch, result, error):
    # The last head is not compared with float64.
    monkeypatch.setattr(accuracy, "MAX_SCORES", 48 * 48 * 2)
    inputs, baseline = results(GROUPED)
    ours = [tensor.clone() for tensor in baseline]
    if error == "last head":
        ours[result][-1, -1, 0] += 0.01
    elif error == "everywhere":
        ours[result] *= 1.00001
    else:
        ours[result][0, 0, 0, 0] = torch.nan
    checks = accuracy.check_heads(inputs, ours, baseline)
    assert [check.quantity for check in checks if not check.right] == [accuracy.NAMES[result]]


def test_the_baseline_with_dropout_drops_the_same_weights_as_ours():
    workload = AttentionWorkload(1, 2, 40, 16, mask="causal", dropout_p=0.3, backward=True)
    inputs = make_inputs(workload)
    right, baseline = accuracy.reference(inputs), accuracy.dropout_baseline(inputs)
    for theirs, mine in zip(baseline, right, strict=True):
        assert accuracy.relative_error(theirs, mine) < 1e-6


def test_the_module_is_compared_with_float64():
    inputs, ours = results(AttentionWorkload(2, 4, 32, 16), OURS["heedful module"])
    theirs = accuracy.results_of(PEERS["nn.MultiheadAttention"].prepare(inputs))
    right = accuracy.module_reference(inputs)
    assert accuracy.check_whole(ours[0], right, theirs[0], "fp32").baseline < 1e-6
    assert not accuracy.check_whole(ours[0] + 1e-3, right, theirs[0], "fp32").right
