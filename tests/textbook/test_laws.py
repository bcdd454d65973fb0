"""Tests of the demonstrations, and of laws that hold for any random draw."""

import itertools
import math

import pytest
import torch
from printed import DOCUMENT

from heedful.errors import ArgumentError
from heedful.textbook import causal, demonstrations, simplified
from heedful.textbook.demonstrations import (
    contiguous_copies,
    effect_of_dropout,
    memory_use,
    merge_by_einsum,
    merge_by_fused_kernel,
    merge_by_matmul,
    merge_in_place,
    range_of_naive_softmax,
    sharpness,
    variance_of_dot_products,
)

(VARIANCE_LAW,) = DOCUMENT["laws"]
# One draw in 1.7 million lies beyond five standard errors.
STANDARD_ERRORS = 5


class TestVariance:
    @pytest.mark.parametrize("d", [10, 100, 1000])
    def test_variance_is_d_and_scaling_restores_1(self, d):
        law = variance_of_dot_products(d, draws=10_000)
        bound = STANDARD_ERRORS * law.standard_error
        assert bound < 0.09
        assert law.variance == pytest.approx(d, rel=bound)
        assert law.scaled_variance == pytest.approx(1, rel=bound)

    @pytest.mark.parametrize("d", [10, 100, 1000])
    def test_the_printed_variances_agree(self, d):
        variance, scaled_variance = VARIANCE_LAW["printed"][str(d)]
        bound = STANDARD_ERRORS * variance_of_dot_products(d, draws=1000).standard_error
        assert variance == pytest.approx(d, rel=bound)
        assert scaled_variance == pytest.approx(variance / d)

    def test_the_standard_error_matches_repeated_draws(self):
        laws = [variance_of_dot_products(10, draws=200) for _ in range(2000)]
        scatter = torch.tensor([law.scaled_variance for law in laws]).std().item()
        assert scatter == pytest.approx(laws[0].standard_error, rel=0.1)


class TestSharpness:
    SCORES = torch.tensor([0.12, -0.24, 0.36, -0.82, 0.45])

    def test_larger_scores_leave_fewer_keys_in_use(self):
        in_use = [sharpness(self.SCORES, factor).keys_in_use for factor in (0, 1, 8, 1000)]
        assert in_use[0] == pytest.approx(5)
        assert in_use[-1] == pytest.approx(1)
        assert all(before > after for before, after in itertools.pairwise(in_use))


class TestDropout:
    @pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
    def test_survivors_grow_and_the_expectation_is_preserved(self, p):
        weights = torch.rand(6, 6).softmax(dim=-1)
        draws = 2000
        effect = effect_of_dropout(weights, p, draws=draws)
        spread = math.sqrt(p * (1 - p) / (weights.numel() * draws))
        assert effect.dropped == pytest.approx(p, abs=STANDARD_ERRORS * spread)
        assert effect.min_growth == pytest.approx(1 / (1 - p), rel=1e-5)
        assert effect.max_growth == pytest.approx(1 / (1 - p), rel=1e-5)
        assert 0 < effect.drift < STANDARD_ERRORS

    def test_rows_no_longer_sum_to_one(self):
        effect = effect_of_dropout(torch.full((1, 4), 0.25), 0.5)
        assert (effect.min_row_sum, effect.max_row_sum) == (0.0, 2.0)

    def test_weights_that_a_mask_zeroed_are_not_counted_as_dropped(self):
        effect = effect_of_dropout(torch.tensor([[1.0, 0.0, 0.0, 0.0]]), 0.5, draws=10_000)
        assert effect.dropped == pytest.approx(0.5, abs=0.025)

    @pytest.mark.parametrize("p", [0.0, 1.0, -0.1, math.nan])
    def test_a_probability_of_0_or_1_is_an_error(self, p):
        with pytest.raises(ArgumentError, match="between 0 and 1"):
            effect_of_dropout(torch.ones(1, 1), p)


class TestNaiveSoftmax:
    @pytest.mark.parametrize("keys", [1, 6, 100])
    @pytest.mark.parametrize(
        "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str
    )
    def test_the_limit_is_where_the_sum_overflows(self, dtype, keys):
        limits = range_of_naive_softmax(dtype, keys=keys)
        info = torch.finfo(dtype)
        # Scores near the limit are a multiple of their own spacing, and so is the error of the limit.
        assert limits.highest == pytest.approx(math.log(info.max / keys), rel=4 * info.eps)
        # The lower limit is where exp rounds to 0, which some processors do early.
        assert math.log(info.tiny) > limits.lowest > math.log(info.smallest_normal * info.eps) - 2
        assert math.isnan(limits.naive_far_above)
        assert limits.stable_far_above == pytest.approx(1 / keys, rel=4 * info.eps)

    def test_several_keys_give_0_before_they_give_nan(self):
        assert range_of_naive_softmax(torch.float32, keys=6).naive_just_above == 0.0
        assert math.isnan(range_of_naive_softmax(torch.float32, keys=1).naive_just_above)

    @pytest.mark.parametrize("shift", [0.0, 1e4, -1e4])
    def test_the_stable_softmax_is_correct_for_any_shift(self, shift):
        scores = torch.randn(4, 7, dtype=torch.float64)
        weights = simplified.weights_by_stable_softmax(scores + shift)
        torch.testing.assert_close(weights, torch.softmax(scores, dim=-1), rtol=1e-9, atol=0)

    def test_the_stable_softmax_is_correct_for_distant_scores(self):
        scores = torch.tensor([2000.0, 0.0, -2000.0])
        assert simplified.weights_by_stable_softmax(scores).tolist() == [1.0, 0.0, 0.0]
        assert simplified.weights_by_naive_softmax(scores).isnan().any()


class TestCopies:
    """With B, H, T, D = 2, 4, 16, 8, the context takes 4096 bytes."""

    WEIGHTS, VALUES = torch.rand(2, 4, 16, 16), torch.rand(2, 4, 16, 8)
    CONTEXT_BYTES = VALUES.nbytes

    @pytest.mark.parametrize("heads", [1, 2, 3])
    @pytest.mark.parametrize("tokens", [1, 2, 5])
    def test_contiguous_copies_unless_heads_or_tokens_are_one(self, heads, tokens):
        assert contiguous_copies(heads=heads, tokens=tokens) == (heads > 1 and tokens > 1)

    @pytest.mark.parametrize("merge", [merge_by_matmul, merge_by_einsum])
    def test_merging_heads_copies_the_context_once(self, merge):
        use = memory_use(merge, self.WEIGHTS, self.VALUES)
        assert (use.copy_calls, use.bytes_allocated) == (1, 2 * self.CONTEXT_BYTES)

    def test_merge_in_place_does_not_copy(self):
        use = memory_use(merge_in_place, self.WEIGHTS, self.VALUES)
        assert (use.copy_calls, use.bytes_allocated) == (0, self.CONTEXT_BYTES)

    def test_the_fused_kernel_does_not_copy(self):
        projected = torch.rand(2, 16, 4, 8)
        use = memory_use(merge_by_fused_kernel, projected, projected, projected)
        log_sum_exp_bytes = 2 * 16 * 4 * 4
        assert use.copy_calls == 0
        assert use.bytes_allocated == projected.nbytes + log_sum_exp_bytes

    def test_all_merges_agree(self):
        expected = merge_by_matmul(self.WEIGHTS, self.VALUES)
        for merge in (merge_by_einsum, merge_in_place):
            torch.testing.assert_close(merge(self.WEIGHTS, self.VALUES), expected)
        q, k, v = torch.rand(3, 2, 16, 4, 8).unbind()
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(8)
        weights = causal.weights_by_minus_infinity(scores)
        torch.testing.assert_close(
            merge_by_fused_kernel(q, k, v), merge_by_matmul(weights, v.transpose(1, 2))
        )

    # Importing the compiler imports TorchScript, which emits a deprecation warning.
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_compiling_removes_the_call_but_not_the_copy(self):
        """The loop that torch.compile generates is the copy, and allocates as many bytes."""
        use = demonstrations.compiled_memory_use(merge_by_matmul, self.WEIGHTS, self.VALUES)
        assert use.copy_calls == 0
        assert use.generated_loops == 1
        assert use.bytes_allocated == 2 * self.CONTEXT_BYTES

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_compiling_fuses_the_copy_with_an_element_wise_operation(self):
        def merge_and_double(weights, values):
            return 2 * merge_by_matmul(weights, values)

        eager = memory_use(merge_and_double, self.WEIGHTS, self.VALUES)
        compiled = demonstrations.compiled_memory_use(merge_and_double, self.WEIGHTS, self.VALUES)
        assert eager.bytes_allocated == 3 * self.CONTEXT_BYTES
        assert compiled.generated_loops == 1
        assert compiled.bytes_allocated == 2 * self.CONTEXT_BYTES

    def test_only_programs_for_the_cpu_are_read(self):
        with pytest.raises(ArgumentError, match="on the CPU"):
            demonstrations.compiled_memory_use(merge_by_matmul, self.WEIGHTS.to("meta"))
