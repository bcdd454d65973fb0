"""Tests of the heat maps: their numbers, colors and captions."""

import re
from html.parser import HTMLParser

import pytest
import torch

from heedful.drawing import PANEL_LIMIT, PICTURE_LIMIT, STYLE, heat_map
from heedful.errors import ArgumentError

VOID = {"br", "path"}


class Balanced(HTMLParser):
    """Fails if a closing tag does not match the open one."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


def drawn(tensor, **options):
    page = heat_map(tensor, **options)
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert "<script" not in page
    assert "http" not in page
    return page


def luminance(color):
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_small_matrix_shows_its_numbers_and_labels():
    page = drawn(
        torch.tensor([[0.25, 0.75], [0.5, 0.5]]),
        row_labels=["one", "<step>"],
        column_labels=["k0", "k1"],
        caption="a & b",
    )
    assert re.findall(r">([\d.]+)</td>", page) == ["0.25", "0.75", "0.50", "0.50"]
    assert "&lt;step&gt;" in page
    assert 'scope="row"' in page
    assert 'scope="col"' in page
    assert 'title="one, k1: 0.75"' in page
    assert "a &amp; b" in page
    assert "values from 0.25 to 0.75" in page


@pytest.mark.parametrize("low", [0.0, -1.0])
def test_text_has_contrast_on_every_color(low):
    page = drawn(torch.linspace(low, 1, 256).view(16, 16))
    colors = re.findall(r"background:(#\w{6});color:(#\w{3})", page)
    assert len(colors) == 256
    for ground, ink in colors:
        pair = luminance(ground), luminance(ink[0] + "".join(c * 2 for c in ink[1:]))
        ratio = (max(pair) + 0.05) / (min(pair) + 0.05)
        assert ratio >= 4.0, f"{ink} on {ground}"


def test_signed_values_diverge_from_white_and_nonnegative_values_start_at_white():
    def grounds(tensor):
        return re.findall(r"background:(#\w{6})", drawn(tensor))[: tensor.numel()]

    negative, positive = grounds(torch.tensor([-1.0, 1.0]))
    orange, blue = (int(negative[1:3], 16), int(positive[5:], 16))
    assert orange > int(negative[5:], 16)
    assert blue > int(positive[1:3], 16)
    zero, one = grounds(torch.tensor([0.0, 1.0]))
    assert luminance(zero) > 0.9 > 0.1 > luminance(one)


def test_infinite_and_nan_values_have_their_own_styles():
    page = drawn(torch.tensor([[1.0, -torch.inf], [torch.nan, torch.inf]]))
    assert re.findall(r'class="([\w-]+)" title="[^"]*">([^<]+)<', page) == [
        ("minus-infinity", "−∞"),
        ("nan", "NaN"),
        ("plus-infinity", "∞"),
    ]
    assert "hatched: 1 × −∞, 1 × ∞, 1 × NaN" in page
    for kind in ("minus-infinity", "nan", "plus-infinity"):
        assert f"td.{kind}" in STYLE


def test_leading_dimensions_become_panels_and_omitted_ones_are_counted():
    page = drawn(torch.rand(2, 6, 3, 3))
    assert page.count('<div class="panel">') == PANEL_LIMIT
    assert "<p>[1, 1]</p>" in page
    assert f"{PANEL_LIMIT} of 12 panels shown, {12 - PANEL_LIMIT} left out" in page
    assert "left out" not in drawn(torch.rand(2, 4, 3, 3))


def squares(page):
    return len(re.findall(r"M\d+ \d+h1v1h-1z", page))


def test_a_large_matrix_is_drawn_with_fewer_cells():
    page = drawn(torch.rand(300, 500))
    assert squares(page) == PICTURE_LIMIT**2
    assert "300 × 500 entries by 64 × 64 cells" in page
    assert 'role="img" aria-label="300 × 500 values, from 0.00 to 1.00"' in page
    assert len(page) < 100_000
    assert squares(drawn(torch.rand(20, 30))) == 600


def test_pooling_averages_and_loses_no_nan():
    matrix = torch.full((128, 128), -torch.inf).triu(1).nan_to_num(nan=0.0, neginf=-torch.inf)
    matrix[0, 0] = torch.nan
    page = drawn(matrix)
    ground = {"nan": "#f6e3ae", "masked": "#d9d9d9"}
    (nan,) = re.findall(f'fill="{ground["nan"]}" d="([^"]*)"', page)
    (masked,) = re.findall(f'fill="{ground["masked"]}" d="([^"]*)"', page)
    assert nan == "M0 0h1v1h-1z"
    assert squares(masked) == 64 * 63 / 2, "a partly masked block shows its other entries"
    matrix[127, 127] = torch.inf
    assert 'stroke="#333333" stroke-width="0.12" d="M63 63m0 1l1 -1"' in drawn(matrix)
    halves = torch.tensor([0.0, 1.0]).repeat(64)[None].expand(128, 128)
    levels = set(re.findall(r'fill="(#\w{6})" shape', drawn(halves)))
    assert len(levels) == 1, "alternating zeros and ones have one average"


def test_a_picture_has_labels():
    words = [f"word{i}" for i in range(20)]
    page = drawn(torch.rand(20, 20), row_labels=words, column_labels=words)
    assert len(re.findall(r"<text[^>]*>word\d+</text>", page)) == 40


@pytest.mark.parametrize(
    ("tensor", "shown"),
    [
        (torch.tensor(3.5), "3.50"),
        (torch.arange(5), ">4</td>"),
        (torch.tensor([True, False]), ">1</td>"),
        (torch.tensor([1 + 1j]), "1.41"),
        (torch.tensor([-0.001, 1.0]), ">0.00</td>"),
        (torch.tensor([2e-6]), "2.0e−06"),
        (torch.zeros(0, 3), "0 × 3: no entries"),
        (torch.full((2, 2), torch.nan), "none finite"),
        (torch.ones(2, requires_grad=True).bfloat16(), "1.00"),
        (torch.zeros(3), "0.00"),
    ],
)
def test_every_kind_of_tensor_can_be_drawn(tensor, shown):
    assert shown in drawn(tensor)


def test_invalid_arguments_are_refused():
    with pytest.raises(ArgumentError, match="row_labels: expected 2 labels"):
        heat_map(torch.ones(2, 3), row_labels=["a", "b", "c"])
    with pytest.raises(ArgumentError, match=r"as_tensor"):
        heat_map([[1.0]])
    with pytest.raises(ArgumentError, match="to_dense"):
        heat_map(torch.ones(2, 2).to_sparse())


def test_a_few_large_entries_do_not_make_a_picture_white():
    """The first queries of a causal attention have few keys, and so large weights."""
    weights = torch.ones(60, 60).tril()
    weights = weights / weights.sum(-1, keepdim=True)
    page = drawn(weights)
    assert "≥ " in page
    fills = set(re.findall(r'fill="(#\w{6})" shape', page))
    assert len(fills) > 12
    assert "≥ " not in drawn(torch.rand(60, 60))
    assert "values from 0.00 to 1.00" in page


def test_panels_to_pick_have_one_group_for_each_figure():
    pages = [drawn(torch.rand(3, 4, 4), pick="head") for _ in range(2)]
    groups = [set(re.findall(r'<details name="([\w-]+)"', page)) for page in pages]
    assert [len(group) for group in groups] == [1, 1]
    assert groups[0] != groups[1]
    assert [page.count(" open>") for page in pages] == [1, 1]
    assert "<details" not in drawn(torch.rand(4, 4), pick="head")
    assert "head 2" in pages[0]
