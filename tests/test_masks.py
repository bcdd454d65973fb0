"""Masks: which keys each shows, that all forms agree, and that alignment is never guessed."""

import contextlib
import itertools
import operator
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_mask

from fuzz.memory import guarded
from heedful import (
    ArgumentError,
    Band,
    Causal,
    Dense,
    Documents,
    KeyRanges,
    Mask,
    Padding,
    Prefix,
    Sinks,
    Window,
    attention,
)
from heedful.intervals import Intervals
from strategies import masks


def picture(mask: Mask, Tq: int, Tk: int | None = None, batch: int | None = None) -> list[str]:
    """Return the dense mask of the last batch entry as rows of x (seen) and . (hidden)."""
    rows = mask.dense(Tq, Tk, batch=batch)[-1, 0]
    return ["".join("x" if seen else "." for seen in row) for row in rows]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (Causal(), ["x...", "xx..", "xxx.", "xxxx"]),
        (Window(2), ["x...", "xx..", ".xx.", "..xx"]),
        (Band(1, 2), ["xxx.", "xxxx", ".xxx", "..xx"]),
        (Prefix(2), ["xx..", "xx..", "xxx.", "xxxx"]),
        (Padding([3]), ["xxx."] * 4),
        (Padding([3], side="left"), [".xxx"] * 4),
        (Documents(torch.tensor([5, 5, 7, 7])), ["xx..", "xx..", "..xx", "..xx"]),
        (Sinks(1), ["x..."] * 4),
        (KeyRanges(Window(2).intervals(4)), ["x...", "xx..", ".xx.", "..xx"]),
        (Causal() & KeyRanges(Sinks(2).intervals(4)), ["x...", "xx..", "xx..", "xx.."]),
        (Causal() & (Sinks(1) | Window(2)), ["x...", "xx..", "xxx.", "x.xx"]),
        (Causal() & Documents(torch.tensor([0, 0, 1, 1])), ["x...", "xx..", "..x.", "..xx"]),
        (Dense(torch.eye(4, dtype=torch.bool)), ["x...", ".x..", "..x.", "...x"]),
        (Dense.from_hidden(torch.eye(4, dtype=torch.bool)), [".xxx", "x.xx", "xx.x", "xxx."]),
    ],
    ids=repr,
)
def test_each_mask_shows_the_expected_keys(mask, expected):
    assert picture(mask, 4) == expected


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (Causal(align="end"), ["xxx.", "xxxx"]),
        (Causal(align="start"), ["x...", "xx.."]),
        (Window(2, align="end"), [".xx.", "..xx"]),
        (Band(0, 1, align="start"), ["xx..", ".xx."]),
        (Prefix(1, align="end"), ["xxx.", "xxxx"]),
        (Documents(torch.tensor([0, 0, 0, 1]), align="end"), ["xxx.", "...x"]),
        (Causal() & Window(2, align="end"), [".xx.", "..xx"]),
        (Window(2, align="end") & Causal(), [".xx.", "..xx"]),
        (Causal(align="end") & Padding([2]), ["xx..", "xx.."]),
    ],
    ids=repr,
)
def test_alignment_of_two_queries_on_four_keys(mask, expected):
    assert picture(mask, 2, 4) == expected


def test_early_queries_see_nothing_if_there_are_more_queries_than_keys():
    assert picture(Causal(align="end"), 4, 2) == ["..", "..", "x.", "xx"]


@pytest.mark.parametrize(
    "mask",
    [Causal(), Window(3), Band(1, 1), Prefix(1), Documents(torch.arange(7)), Causal() | Sinks(1)],
)
def test_unequal_lengths_need_an_alignment(mask):
    with pytest.raises(ArgumentError, match=r'align="end".*align="start"'):
        mask.dense(3, 7)


def test_different_alignments_do_not_combine():
    for combine in (Mask.__and__, Mask.__or__):
        with pytest.raises(ArgumentError, match="one alignment"):
            combine(Causal(align="end"), Window(3, align="start"))


HUGE = [2**31 - 1, 2**31, 10**12, sys.maxsize - 1, sys.maxsize, 2**64, 10**30]


@pytest.mark.parametrize("size", HUGE)
@pytest.mark.parametrize("align", ["start", "end"])
@pytest.mark.parametrize(("Tq", "Tk"), [(4, 4), (2, 5), (5, 2)])
def test_sizes_beyond_the_number_of_keys_show_all_keys_on_that_side(size, align, Tq, Tk):
    for huge, exact in (
        (Band(0, size, align), Band(0, 9, align)),
        (Band(size, 0, align), Band(9, 0, align)),
        (Band(size, size, align), Band(9, 9, align)),
        (Window(size, align), Window(9, align)),
        (Sinks(size), Sinks(9)),
    ):
        expected = exact.dense(Tq, Tk)
        assert torch.equal(huge.dense(Tq, Tk), expected)
        assert torch.equal(huge.intervals(Tq, Tk).dense().unsqueeze(1), expected)
        for dtype in (torch.int32, torch.int64):  # FlexAttention's indices are int32
            indices = [torch.arange(n, dtype=dtype) for n in (1, 1, Tq, Tk)]
            b, h, q, k = torch.meshgrid(*indices, indexing="ij")
            assert torch.equal(huge.mask_function(Tq, Tk)(b, h, q, k), expected)
        blocks, expected_blocks = huge.block_mask(Tq, Tk), exact.block_mask(Tq, Tk)
        assert torch.equal(blocks.to_dense(), expected_blocks.to_dense())


SIZES = st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 9), st.integers(1, 9))


@given(SIZES.flatmap(lambda sizes: st.tuples(st.just(sizes), masks(*sizes))))
@settings(max_examples=600)
def test_all_forms_of_a_mask_agree(drawn):
    (B, Hq, Tq, Tk), mask = drawn
    full = (B, Hq, Tq, Tk)
    dense = mask.dense(Tq, Tk, batch=B).expand(full)
    b, h, q, k = torch.meshgrid(*(torch.arange(n) for n in full), indexing="ij")
    assert torch.equal(mask.mask_function(Tq, Tk, batch=B)(b, h, q, k).expand(full), dense)
    intervals = mask.intervals(Tq, Tk, batch=B)
    if intervals is not None:
        assert intervals.start.dtype == intervals.stop.dtype == torch.int32
        assert torch.equal(intervals.dense().unsqueeze(1).expand(full), dense)
        apart = intervals.start[..., 1:] > intervals.stop[..., :-1]
        assert (apart | (intervals.stop == intervals.start)[..., 1:]).all()
        assert torch.equal(intervals.mask_function()(b, h, q, k).expand(full), dense)
        assert torch.equal(intervals.unseen_keys().expand(B, Tk), ~dense.any(dim=2).any(dim=1))
        assert torch.equal(intervals.empty_rows().expand(B, Tq), ~dense[:, 0].any(dim=-1))
        assert intervals.pairs().expand(B).sum() * Hq == dense.sum()


ONE_OF_EACH = [
    Causal(),
    Window(2),
    Band(1, 2),
    Prefix([1, 3]),
    Padding([0, 4]),
    Padding([2, 6], side="left"),
    Documents(torch.tensor([[0, 0, 1, 1, 1, 2], [0, 1, 2, 2, 3, 3]])),
    Sinks(2),
    Sinks(1) | Window(2),
]


@pytest.mark.parametrize(
    ("left", "right"), list(itertools.combinations_with_replacement(ONE_OF_EACH, 2)), ids=repr
)
def test_every_intersection_of_two_structured_masks_has_intervals(left, right):
    both = left & right
    intervals = both.intervals(6, batch=2)
    assert intervals is not None
    expected = left.dense(6, batch=2).expand(2, 1, 6, 6) & right.dense(6, batch=2)
    assert torch.equal(intervals.dense().unsqueeze(1).expand(2, 1, 6, 6), expected)


def test_a_mask_of_three_ranges_becomes_dense():
    stripes = Documents(torch.tensor([0, 1, 2, 3, 4, 5])) | Sinks(1) | Dense(torch.eye(6).bool())
    assert stripes.intervals(6) is None
    three_ranges = Sinks(1) | (Band(0, 0) | Padding([1], side="left"))
    assert three_ranges.intervals(6) is None
    assert picture(three_ranges, 6)[2] == "x.x..x"


def test_nested_and_touching_ranges_become_one():
    nested = Sinks(6) | Band(0, 0, align="start") | Prefix([3], align="start")
    intervals = nested.intervals(4, 8)
    assert (intervals.ranges, intervals.start.flatten().tolist()) == (1, [0] * 4)
    outer = Sinks(6) | Window(1, align="end")  # of the last query of 9: 0…5 and 8
    inner = Sinks(1) | (Band(5, 0, align="end") & Padding([5]))  # 0 and 3…4
    both = (outer | inner).intervals(1, 9)
    assert list(zip(both.start.flatten().tolist(), both.stop.flatten().tolist(), strict=True)) == [
        (0, 6),
        (8, 9),
    ]
    touching = Sinks(3) | Padding([5], side="left")
    assert touching.intervals(2, 8).pairs().tolist() == [16]
    assert touching.intervals(2, 8).ranges == 1


def test_operators_have_pythons_precedence():
    assert picture(Sinks(1) | Window(1) & Causal(), 3) == ["x..", "xx.", "x.x"]


@pytest.mark.parametrize("Tq", [100, 128, 300])
@pytest.mark.parametrize(
    "mask",
    [
        Causal(align="end") & Window(70),
        Padding([37, 290], side="left") & Causal(align="end"),
        Causal(align="end") & (Sinks(4) | Window(150)),
        Documents(torch.arange(300) // 90, align="end"),
        Dense(torch.rand(1, 1, 1, 300) > 0.5),
    ],
    ids=repr,
)
def test_block_mask_covers_exactly_what_is_seen(mask, Tq):
    block_mask = mask.block_mask(Tq, 300)
    dense = mask.dense(Tq, 300)
    B = len(dense)
    assert torch.equal(
        create_mask(block_mask.mask_mod, B, 1, Tq, 300, device="cpu"), dense.expand(B, 1, Tq, 300)
    )
    padded = torch.nn.functional.pad(dense, (0, -300 % 128, 0, -Tq % 128))
    blocks = padded.unflatten(-1, (-1, 128)).unflatten(-3, (-1, 128)).transpose(-2, -3)
    touched = torch.zeros_like(blocks[..., 0, 0], dtype=torch.int)
    for number, index, full in (
        (block_mask.kv_num_blocks, block_mask.kv_indices, False),
        (block_mask.full_kv_num_blocks, block_mask.full_kv_indices, True),
    ):
        for b, row in itertools.product(range(B), range(number.shape[2])):
            listed = index[b, 0, row, : number[b, 0, row]].long()
            touched[b, 0, row, listed] += 1
            assert not full or blocks[b, 0, row, listed].all()
    assert torch.equal(touched, blocks.flatten(-2).any(dim=-1).int())


def test_arguments_for_sdpa():
    assert Causal().sdpa_arguments(5) == {"is_causal": True}
    assert Causal(align="start").sdpa_arguments(3, 5) == {"is_causal": True}
    (name, tensor), *_ = Causal(align="end").sdpa_arguments(3, 5).items()
    assert name == "attn_mask"
    query, key = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)
    output = torch.nn.functional.scaled_dot_product_attention(query, key, key, attn_mask=tensor)
    expected = torch.softmax((query @ key.mT / 2).masked_fill(~tensor, -torch.inf), dim=-1) @ key
    torch.testing.assert_close(output, expected)


def test_cumulative_lengths():
    assert Padding([3, 0, 2]).cumulative_lengths().tolist() == [0, 3, 3, 5]
    ids = torch.tensor([[0, 0, 1], [1, 1, 1]])
    cumulative = Documents(ids).cumulative_lengths()
    assert cumulative.tolist() == [0, 2, 3, 6]
    assert cumulative.dtype == torch.int32


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Window(0), "at least 1"),
        (lambda: Window(2.5), "at least 1"),
        (lambda: Band(-1, 0), "at least 0"),
        (lambda: Sinks(True), "at least 0"),
        (lambda: Causal(align="middle"), '"start", "end"'),
        (lambda: Padding([1.5]), "integers"),
        (lambda: Padding([-1]), "minimum of -1"),
        (lambda: Padding([1], side="top"), "where the padding stands"),
        (lambda: Documents(torch.tensor([0, 1, 0])), "non-decreasing"),
        (lambda: Documents(torch.tensor([0.0, 1.0])), "non-decreasing integers"),
        (lambda: Dense(torch.zeros(3, 3)), "bias="),
        (lambda: Dense(torch.ones(3, dtype=torch.bool)), "2 to 4 dimensions"),
        (lambda: Padding([5]).dense(4), "at most 4"),
        (lambda: Prefix([5]).dense(4), "at most 4"),
        (lambda: Documents(torch.arange(3)).dense(4), "each of the 4 keys"),
        (
            lambda: KeyRanges(Causal().intervals(3)).dense(3, 4),
            "key ranges for 3 queries and 4 keys",
        ),
        (lambda: Dense(torch.ones(3, 3, dtype=torch.bool)).dense(4), "Slice it"),
        (lambda: Padding([1, 2]).dense(4, batch=3), "3 batch entries"),
        (lambda: (Padding([1, 2]) & Padding([1, 2, 3])).dense(4), "2 batch entries"),
    ],
)
def test_errors_state_what_was_expected(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


def int32(*ranges: tuple[int, ...]) -> torch.Tensor:
    """Return the starts or stops (1, Tq, R) of key ranges, from one tuple per query."""
    return torch.tensor([ranges], dtype=torch.int32)


@pytest.mark.parametrize(
    ("lowered", "message"),
    [
        (None, "received NoneType"),
        (Intervals(int32((0,)).short(), int32((2,)).short(), 2), "int16"),
        (Intervals(int32((0,)).long(), int32((2,)).long(), 2), "int64"),
        (Intervals(int32((0,), (0,)), int32((2,)), 2), "shape"),
        (Intervals(int32((0,))[0], int32((2,))[0], 2), "shape"),
        (Intervals(int32(()), int32(()), 2), "shape"),
        (Intervals(int32((0,)), int32((3,)), 2), "0 <= start <= stop <= 2"),
        (Intervals(int32((-1,)), int32((2,)), 2), "0 <= start <= stop <= 2"),
        (Intervals(int32((2,)), int32((1,)), 2), "0 <= start <= stop <= 2"),
        (Intervals(int32((0, 1)), int32((2, 4)), 4), "disjoint"),
        (Intervals(int32((2, 0)), int32((4, 1)), 4), "disjoint"),
    ],
)
def test_key_ranges_that_fit_no_keys_are_refused(lowered, message):
    with pytest.raises(ArgumentError, match=message):
        KeyRanges(lowered)


def test_three_key_ranges_become_dense():
    mask = KeyRanges(Intervals(int32((0, 2, 4)), int32((1, 3, 5)), 5))
    assert mask.intervals(1, 5) is None
    assert picture(mask, 1, 5) == ["x.x.x"]


def test_key_ranges_compile_as_a_whole_graph():
    def masked(query, start, stop):
        return attention(query, query, query, KeyRanges(Intervals(start, stop, 4)))

    query, ranges = torch.randn(1, 2, 4, 8), Window(2).intervals(4)
    compiled = torch.compile(masked, backend="aot_eager", fullgraph=True)
    output = compiled(query, ranges.start, ranges.stop)
    torch.testing.assert_close(output, attention(query, query, query, Window(2)))


def test_masks_of_numbers_compare_and_hash_by_value():
    assert Causal() & Window(3) == Causal() & Window(3)
    assert hash(Causal() & Window(3)) == hash(Causal() & Window(3))
    assert Causal() & Window(3) != Causal() & Window(4)
    assert Causal() & Window(3) != Causal() | Window(3)


@pytest.mark.parametrize(
    "mask",
    [
        *(
            Causal(),
            Window(2),
            Band(1, 1),
            Sinks(1),
            Prefix([2]),
            Padding([2]),
            Padding([2], "left"),
        ),
        *(Causal() & Window(2), Sinks(1) | Window(2), Causal() & Padding([2])),
        *(KeyRanges(Window(2).intervals(3)), Documents(torch.tensor([0, 0, 1]))),
        *(Dense(torch.eye(3, dtype=torch.bool)), Causal() | Dense(torch.eye(3, dtype=torch.bool))),
    ],
    ids=repr,
)
def test_writing_to_what_a_mask_returned_changes_no_later_result(mask):
    query = torch.randn(1, 1, 3, 4)
    expected, output = mask.dense(3).clone(), attention(query, query, query, mask)
    intervals = mask.intervals(3)
    returned = [mask.dense(3), *mask.sdpa_arguments(3).values(), *vars(mask.block_mask(3)).values()]
    if intervals is not None:
        returned += [intervals.start, intervals.stop]
    if isinstance(mask, Padding | Documents):
        returned.append(mask.cumulative_lengths())
    for tensor in returned:
        if isinstance(tensor, torch.Tensor):
            with contextlib.suppress(RuntimeError):  # PyTorch refuses to write to expanded tensors
                tensor.zero_()
    if intervals is not None:
        assert torch.equal(mask.intervals(3).dense(), expected[0])
    assert torch.equal(mask.dense(3), expected)
    assert torch.equal(attention(query, query, query, mask), output)


class Foreign(Mask):
    """A mask of a user, which returns what it was given."""

    def __init__(self, start=None, stop=None, seen=None):
        self.start, self.stop, self.seen = start, stop, seen

    def sees(self, b, h, q, k, grid):
        return self.seen

    def key_ranges(self, grid):
        return None if self.start is None else Intervals(self.start, self.stop, grid.Tk)


def numbers(*shape, dtype=torch.int32, device="cpu"):
    return torch.ones(shape, dtype=dtype, device=device)


KERNELS = ["native", "reference", "online", "torch_sdpa"]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "mask",
    [
        *(Foreign(*2 * [numbers(1, 4, 1, dtype=dtype)]) for dtype in (torch.int16, torch.float32)),
        Foreign(numbers(1, 4, 1), numbers(1, 4, 1, dtype=torch.int64)),
        *(Foreign(*2 * [numbers(*shape)]) for shape in ((1, 3, 1), (3, 4, 1), (4, 1), (1, 4, 0))),
        Foreign(numbers(1, 4, 2), numbers(1, 4, 1)),
        Foreign(*2 * [numbers(1, 4, 1, device="meta")]),
        Foreign(seen=numbers(1, 1, 4, 4)),
        Foreign(seen=numbers(1, 1, 4, 4, dtype=torch.bool, device="meta")),
    ],
)
def test_kernels_never_read_tensors_of_a_users_mask_that_are_not_what_they_should_be(mask, kernel):
    query = torch.randn(2, 1, 4, 8)
    with pytest.raises(ArgumentError, match="mask: expected"):
        attention(query, query, query, mask, kernel=kernel)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("first", "last"), [(-5, 50), (-(2**31), 2**31 - 1), (2, 2**31 - 1), (-(2**31), 2), (3, -1)]
)
def test_ranges_of_a_users_mask_beyond_the_keys_are_clipped(first, last, kernel):
    """The pages around the keys and values cannot be read."""
    start, stop = numbers(1, 4, 2) * first, numbers(1, 4, 2) * last
    for Tq, Tk in ((4, 4), (4, 3000)):
        query = torch.randn(1, 2, Tq, 8)
        for at_end in (False, True):
            key = guarded(2 * Tk * 8, torch.float32, at_end=at_end).view(1, 2, Tk, 8)
            key.copy_(torch.randn(key.shape)).requires_grad_()
            output = attention(query, key, key, Foreign(start, stop), kernel=kernel)
            (gradient,) = torch.autograd.grad(output.sum(), key)
            seen = (torch.arange(Tk) >= first) & (torch.arange(Tk) < last)
            expected = attention(query, key, key, seen.view(1, -1), kernel="reference")
            torch.testing.assert_close(output, expected)
            torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), key)[0])


def test_key_ranges_that_are_resized_after_they_were_checked_are_refused():
    ranges = Window(2).intervals(4)
    mask = KeyRanges(ranges)
    ranges.stop.resize_(1, 2, 1)
    query = torch.randn(1, 1, 4, 8)
    with pytest.raises(ArgumentError, match="mask: expected key ranges"):
        attention(query, query, query, mask)


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (Causal(), "Causal()"),
        (Causal("end") & Window(3), "(Causal(align='end') & Window(3))"),
        (Sinks(4) | Band(1, 2), "(Sinks(4) | Band(1, 2))"),
        (Padding([3, 5], side="left"), "Padding([3, 5], side='left')"),
        (Padding(torch.arange(64)), "Padding(tensor of 64)"),
        (Prefix(2), "Prefix(2)"),
        (Documents(torch.tensor([0, 0, 1])), "Documents([0, 0, 1])"),
        (Dense(torch.ones(5, 7).bool()), "Dense(tensor of 5 × 7)"),
        (KeyRanges(Window(2).intervals(3)), "KeyRanges(3 queries, 3 keys)"),
    ],
)
def test_a_mask_prints_as_one_writes_it(mask, text):
    assert repr(mask) == text


@pytest.mark.parametrize("ask", [bool, lambda mask: mask and Window(3), lambda mask: not mask])
def test_a_mask_has_no_truth_value(ask):
    """`Causal() and Window(3)` would be Window(3), in silence."""
    with pytest.raises(ArgumentError, match=r"Causal\(\) & Window"):
        ask(Causal())


def test_a_mask_has_no_complement():
    with pytest.raises(ArgumentError, match=r"no complement.*from_hidden"):
        ~Causal()


def test_boolean_tensors_combine_with_masks():
    shown = torch.rand(5, 5) < 0.5
    causal = torch.ones(5, 5).tril().bool()
    for mask in (Causal() & shown, shown & Causal()):
        assert torch.equal(mask.dense(5)[0, 0], shown & causal)
    for mask in (Causal() | shown, shown | Causal()):
        assert torch.equal(mask.dense(5)[0, 0], shown | causal)


@pytest.mark.parametrize("other", [np.ones((5, 5), bool), [[True]], torch.ones(5, 5)])
@pytest.mark.parametrize("combine", [operator.and_, operator.or_])
def test_other_operands_are_told_to_become_boolean_tensors(other, combine):
    for operands in ((Causal(), other), (other, Causal())):
        with pytest.raises(ArgumentError, match=r"torch\.as_tensor|a Boolean tensor"):
            combine(*operands)
    with pytest.raises(TypeError, match="unsupported operand"):
        combine(Causal(), 3)


NO_BATCH = [
    Dense(torch.ones(0, 1, 3, 3, dtype=torch.bool)),
    Documents(torch.zeros(0, 3, dtype=torch.int64)),
    Padding(torch.zeros(0, dtype=torch.int64)),
]


@pytest.mark.parametrize("kernel", ["native", "reference", "online", "torch_sdpa"])
@pytest.mark.parametrize("empty", NO_BATCH, ids=repr)
def test_masks_of_an_empty_batch(empty, kernel):
    query = torch.randn(0, 2, 3, 4)
    for mask in (empty, empty | Causal(), Causal() | empty, empty & Causal(), Window(1) & empty):
        assert attention(query, query, query, mask, kernel=kernel).shape == query.shape
        for batch in (0, None):  # None: as many as the mask distinguishes
            assert mask.dense(3, batch=batch).shape == (0, 1, 3, 3)
            intervals = mask.intervals(3, batch=batch)
            assert intervals is None or intervals.dense().shape == (0, 3, 3)


@pytest.mark.parametrize("Tq", [0, 3])
def test_documents_without_keys(Tq):
    documents = Documents(torch.zeros(0, dtype=torch.int64), align="end")
    for mask in (documents, documents | Dense(torch.ones(1, 1, dtype=torch.bool))):
        assert mask.dense(Tq, 0).shape == (1, 1, Tq, 0)
    assert documents.intervals(Tq, 0).pairs().tolist() == [0]
    assert documents.cumulative_lengths().tolist() == [0]


def test_intervals_take_memory_linear_in_the_tokens():
    intervals = (Causal() & (Sinks(4) | Window(256))).intervals(65_536)
    assert intervals.start.numel() + intervals.stop.numel() <= 4 * 65_536
