"""Tests of `record`: the steps of unprepared code, and that recording changes nothing about the run."""

import functools
import inspect
import math
import traceback

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from heedful.errors import ArgumentError
from heedful.observation import Source, Summary, record


class PackedAttention(nn.Module):
    """A common implementation with a packed projection and a helper that splits heads."""

    def __init__(self, width=8, heads=2, dropout=0.0):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("future", torch.ones(16, 16, dtype=torch.bool).triu(1))

    def split_heads(self, packed):
        B, T, C = packed.shape
        return packed.view(B, T, self.heads, C // self.heads).transpose(1, 2)

    def forward(self, x):
        B, T, C = x.shape
        queries, keys, values = self.qkv(x).chunk(3, dim=-1)
        queries = self.split_heads(queries)
        keys, values = map(self.split_heads, (keys, values))
        scores = queries @ keys.transpose(-2, -1) / math.sqrt(C // self.heads)
        scores.masked_fill_(self.future[:T, :T], -torch.inf)
        weights = self.dropout(F.softmax(scores, dim=-1))
        context = (weights @ values).transpose(1, 2).contiguous().view(B, T, C)
        return self.projection(context)


class DiscardedMask(nn.Module):
    """A common bug: the mask is applied out of place and its result is discarded."""

    def __init__(self):
        super().__init__()
        self.query = nn.Linear(4, 4, bias=False)

    def forward(self, x):
        scores = self.query(x) @ x.transpose(1, 2)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores.masked_fill(mask, -torch.inf)  # the bug
        return scores.softmax(dim=-1) @ x


class SeveralHeads(nn.Module):
    def __init__(self, count=3):
        super().__init__()
        self.heads = nn.ModuleList(DiscardedMask() for _ in range(count))
        self.gates = nn.ModuleList(nn.Linear(4, 4) for _ in range(count))

    def forward(self, x):
        gated = [gate(x) for gate in self.gates]
        return torch.cat(
            [head(tokens) for head, tokens in zip(self.heads, gated, strict=True)], dim=-1
        )


def line_of(owner, text):
    lines, first = inspect.getsourcelines(owner)
    numbers = [first + i for i, line in enumerate(lines) if text in line]
    assert len(numbers) == 1, f"{text!r} occurs on {len(numbers)} lines"
    return numbers[0]


def same_bits(a, b):
    return torch.equal(a, b) and a.dtype == b.dtype


# --- names and lines ---


def test_steps_have_the_names_and_lines_of_the_users_module():
    trace = record(PackedAttention(), torch.randn(2, 5, 8))
    expected = {
        "queries": ("transpose", (2, 2, 5, 4), "return packed.view"),
        "keys": ("transpose", (2, 2, 5, 4), "return packed.view"),
        "values": ("transpose", (2, 2, 5, 4), "return packed.view"),
        "scores·matmul": ("matmul", (2, 2, 5, 5), "scores = queries @"),
        "scores": ("masked_fill_", (2, 2, 5, 5), "scores.masked_fill_"),
        "weights·softmax": ("softmax", (2, 2, 5, 5), "weights = "),
        "weights": ("dropout", (2, 2, 5, 5), "weights = "),
        "context": ("view", (2, 5, 8), "context = "),
        "output": ("linear", (2, 5, 8), "return self.projection"),
    }
    for name, (operation, shape, text) in expected.items():
        step = trace[name]
        assert (step.operation, step.shape) == (operation, shape), name
        assert step.line == line_of(PackedAttention, text), name
        assert text in step.source
        assert step.file == __file__
    assert [step.operation for step in trace.all("scores")] == ["div", "masked_fill_"]
    assert trace["scores"].function == "PackedAttention.forward"
    assert trace["queries"].function == "PackedAttention.split_heads"


def test_values_equal_those_of_the_run():
    module, x = PackedAttention(), torch.randn(2, 5, 8)
    trace = record(module, x)
    assert same_bits(trace["output"].value, trace.result)
    torch.testing.assert_close(trace["weights"].value.sum(-1), torch.ones(2, 2, 5))
    assert trace.all("scores")[0].value.isfinite().all(), "kept before the mask was filled in place"
    assert trace["scores"].value.isneginf().sum() == 2 * 2 * 10
    assert not any(step.value.requires_grad for step in trace)


def twice(pair):
    return [tensor * 2 for tensor in pair]


def naming(x):
    a, b = x
    first, *rest = x.unbind(0)
    top, _ = x.max(dim=-1)
    low = x.min(dim=-1).values
    half = x.chunk(2, dim=-1)[1]
    pair = x.chunk(2, dim=-1)
    q, k = (tensor * 2 for tensor in (a, b))
    m, n = twice((a, b))
    turned = stored = x.T
    if (shifted := x + 1).sum() > 0:
        shifted += 1
    either = x * 3 if pair else x
    table = torch.zeros(2, 4)
    table[0] = q - k
    table[1].copy_(first)
    nn.init.ones_(either)
    torch.sub(1, m, out=n)
    flipped = 1 - x
    print(f"{rest[0].sum()}")
    for row in x:
        last = row / 2
    scale = lambda tensor: tensor / 4  # noqa: E731
    scaled = scale(x)
    return (turned, stored, either, table, last, scaled, top, low, half, shifted, flipped)


def test_names_follow_the_syntax(capsys):
    trace = record(naming, torch.randn(2, 4))
    capsys.readouterr()
    names = [(step.name, step.operation) for step in trace]
    for expected in [
        ("a", "unbind"),
        ("b", "unbind"),
        ("first", "unbind"),
        ("rest[0]", "unbind"),
        ("top", "max"),
        ("_", "max"),
        ("low", "min"),
        ("low·min.indices", "min"),
        ("half·chunk[0]", "chunk"),
        ("half", "chunk"),
        ("pair[0]", "chunk"),
        ("pair[1]", "chunk"),
        ("q", "mul"),
        ("k", "mul"),
        ("m", "mul"),
        ("n", "mul"),
        ("turned", "T"),
        ("shifted", "add"),
        ("shifted", "add_"),
        ("either", "mul"),
        ("table", "zeros"),
        ("table[0]", "sub"),
        ("table", "setitem"),
        ("table[1]", "copy_"),
        ("either", "fill_"),
        ("n", "sub"),
        ("flipped", "sub"),
        ("row", "unbind"),
        ("last", "div"),
        ("scaled", "div"),
    ]:
        assert expected in names, f"{expected} is not among {names}"


def test_reading_metadata_is_not_a_step():
    def describe(x):
        return (x.shape, x.dtype, x.size(0), x.dim(), x.device, len(x), x.numel(), x.requires_grad)

    assert len(record(describe, torch.ones(2))) == 0


def test_steps_within_comprehensions_have_the_path_of_their_module():
    trace = record(SeveralHeads(), torch.randn(2, 5, 4))
    assert [step.module for step in trace.all("scores")] == ["heads.0", "heads.1", "heads.2"]
    assert [str(step.inputs[1]) for step in trace.all("gated·linear")] == [
        f"gates.{i}.weight" for i in range(3)
    ]
    assert trace[-1].operation == "cat"
    assert trace[-1].module == ""


def test_code_without_source_is_named_after_its_operations():
    scope = {}
    exec("def attend(x):\n    scores = x @ x\n    return scores.softmax(-1)", scope)
    trace = record(scope["attend"], torch.randn(3, 3))
    assert [(step.name, step.line, step.source) for step in trace] == [
        ("matmul", 2, ""),
        ("softmax", 3, ""),
    ]
    (builtin,) = record(torch.softmax, torch.randn(3), -1)
    assert (builtin.name, builtin.file, builtin.line) == ("softmax", None, None)


def test_a_variable_receives_the_last_result_of_a_torch_module():
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def call(x):
        context, weights = attention(x, x, x)
        encoded = layer(context)
        return encoded, weights

    x = torch.randn(2, 5, 8)
    trace = record(call, x)
    encoded, weights = trace.result
    assert same_bits(trace["weights"].value, weights)
    assert trace["context"].shape == (2, 5, 8)
    assert len(trace.all("encoded")) == 1
    assert same_bits(trace["encoded"].value, encoded)
    assert trace["encoded·relu"].line == line_of(call, "encoded = layer")
    assert Source("parameter", "attention.in_proj_weight") in {
        source for step in trace for source in step.inputs
    }


def test_a_recorded_torch_module_shows_its_own_lines():
    trace = record(nn.MultiheadAttention(8, 2, batch_first=True), *[torch.randn(2, 5, 8)] * 3)
    assert {"attn_output", "attn_output_weights"} <= set(trace.names)
    layer = record(nn.TransformerEncoderLayer(8, 2, 16), torch.randn(5, 2, 8))
    assert [step.operation for step in layer.all("x")] == ["layer_norm", "layer_norm"]


# --- the sources of inputs, and unused results ---


def test_inputs_distinguish_steps_arguments_parameters_buffers_and_constants():
    elsewhere = torch.ones(4)

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.register_buffer("offset", torch.ones(4))
            self.loose = torch.ones(4)

        def forward(self, x, extra):
            hidden = self.inner(x)
            return hidden + self.offset + self.loose + extra["bias"] + elsewhere

    trace = record(Odd(), torch.ones(2, 4), extra={"bias": torch.ones(4)})
    assert trace["hidden"].inputs == (
        Source("input", "x"),
        Source("parameter", "inner.weight"),
        Source("parameter", "inner.bias"),
    )
    sums = trace.all("output·add") + trace.all("output")
    assert [step.inputs[1] for step in sums] == [
        Source("buffer", "offset"),
        Source("attribute", "loose"),
        Source("input", "extra['bias']"),
        Source("constant", "elsewhere"),
    ]
    assert sums[0].inputs[0] == Source("step", "hidden", trace["hidden"].index)


def test_arguments_show_options_and_sources():
    step = record(lambda x: x.softmax(dim=1).masked_fill(x > 0, -1e4), torch.ones(2, 2))[-1]
    assert step.arguments[2] == -1e4
    assert step.arguments[0] == Source("step", "output·softmax", 0)


def test_tensors_within_lists_are_sources_too():
    def joined(x, y):
        doubled = 2 * x
        rows = torch.cat([doubled, y], dim=0)
        return torch.stack(tensors=(rows, rows))

    trace = record(joined, torch.ones(2, 3), torch.ones(1, 3))
    doubled, y = Source("step", "doubled", 0), Source("input", "y")
    rows = Source("step", "rows", 1)
    assert trace["rows"].inputs == (doubled, y)
    assert trace["rows"].arguments == ([doubled, y],)
    assert trace["rows"].keywords == {"dim": 0}
    assert trace["output"].keywords == {"tensors": (rows, rows)}
    assert not any(step.unused for step in trace)


def test_a_discarded_result_is_unused_and_has_its_line():
    trace = record(DiscardedMask(), torch.randn(2, 5, 4))
    (unused,) = [step for step in trace if step.unused]
    assert (unused.operation, unused.name) == ("masked_fill", "masked_fill")
    assert unused.line == line_of(DiscardedMask, "# the bug")
    assert unused.inputs[0].name == "scores"


def test_writes_in_place_reach_every_view():
    def write(x):
        base = x * 1
        view = base[0]
        other = base[1]
        view.mul_(2)
        doubled = base + 1
        apart = other + 1
        return doubled, apart

    trace = record(write, torch.ones(2, 3))
    written = trace["view"]
    assert written.in_place
    assert not written.unused
    assert [source.step for source in trace["doubled"].inputs] == [
        trace["base"].index,
        written.index,
    ]
    assert [source.name for source in trace["apart"].inputs] == ["other"], (
        "another row is not affected"
    )


def test_many_writes_through_views_are_all_used_by_the_read_that_follows():
    def fill(x):
        rows = torch.empty(100, 3)
        for row in rows.unbind(0):
            row.copy_(x)
        return rows.sum()

    trace = record(fill, torch.ones(3))
    assert [step.operation for step in trace.all("row")].count("copy_") == 100
    assert not any(step.unused for step in trace)


def test_a_write_after_the_last_read_is_unused_unless_the_caller_owns_the_tensor():
    cache = torch.zeros(2, 3)

    def late(x):
        scores = x * 1
        total = scores.sum()
        scores.zero_()
        cache.copy_(x)
        cache[0].add_(1)
        return total

    with torch.no_grad():
        trace = record(late, torch.ones(2, 3))
    assert [step.operation for step in trace if step.unused] == ["zero_"]
    assert trace["cache"].inputs[0] == Source("constant", "cache")


def test_a_result_is_used_if_it_outlives_the_call_or_is_read():
    class Keeping(nn.Module):
        def forward(self, x):
            self.kept = x + 1
            if (x * 2).sum().item() > 0:
                return x * 3
            return x

    trace = record(Keeping(), torch.ones(3))
    assert trace["kept"].operation == "add"
    assert not any(step.unused for step in trace)


def test_reading_only_the_shape_does_not_count_as_use():
    def look(x):
        ignored = x + 1
        x.transpose(0, 0)
        return x.new_zeros(ignored.shape) + ignored.size(0)

    assert [step.name for step in record(look, torch.ones(3)) if step.unused] == [
        "ignored",
        "transpose",
    ]


# --- recording changes nothing ---


@pytest.mark.parametrize("guard", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_results_and_random_state_equal_those_of_a_plain_run(guard):
    module, x = PackedAttention(dropout=0.5).train(), torch.randn(2, 5, 8)
    with guard():
        torch.manual_seed(7)
        plain = module(x)
        after_plain = torch.get_rng_state()
        torch.manual_seed(7)
        trace = record(module, x)
    assert same_bits(trace.result, plain)
    assert torch.equal(torch.get_rng_state(), after_plain)
    assert trace.result.requires_grad == plain.requires_grad
    assert trace["scores"].in_place
    assert not any(step.value.is_inference() for step in trace)


@pytest.mark.parametrize("layer", ["attention", "encoder"])
def test_fused_paths_stay_fused(layer):
    module = {
        "attention": nn.MultiheadAttention(16, 4, batch_first=True),
        "encoder": nn.TransformerEncoderLayer(16, 4, 32, batch_first=True),
    }[layer].eval()
    inputs = [torch.randn(2, 7, 16)] * (3 if layer == "attention" else 1)
    original = torch.overrides.has_torch_function
    with torch.no_grad():
        plain = module(*inputs)
        trace = record(module, *inputs)
    plain, recorded = (
        result[0] if layer == "attention" else result for result in (plain, trace.result)
    )
    assert same_bits(recorded, plain)
    assert {"native_multi_head_attention", "transformer_encoder_layer_fwd"} & {
        step.operation for step in trace
    }
    assert torch.overrides.has_torch_function is original


def test_gradients_flow_through_the_result():
    module, x = PackedAttention(), torch.randn(2, 5, 8, requires_grad=True)
    module(x).square().sum().backward()
    expected = [x.grad, *(parameter.grad for parameter in module.parameters())]
    x.grad = None
    module.zero_grad()
    record(module, x).result.square().sum().backward()
    for gradient, plain in zip(
        [x.grad, *(parameter.grad for parameter in module.parameters())], expected, strict=True
    ):
        assert same_bits(gradient, plain)


def test_an_exception_gets_a_note_and_no_frames_of_heedful():
    def fail(x):
        scores = x @ x
        return scores @ torch.ones(7)

    with pytest.raises(RuntimeError, match="size mismatch") as caught:
        record(fail, torch.ones(3, 3))
    (note,) = caught.value.__notes__
    assert "ones" in note
    functions = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert functions[-2:] == ["record", "fail"]
    assert len(record(torch.relu, torch.ones(1))) == 1, "the recording leaves nothing behind"


def test_recordings_can_be_nested():
    inner_traces = []

    def outer(x):
        inner = record(lambda matrix: matrix @ matrix, x)
        inner_traces.append(inner)
        return inner.result + 1

    trace = record(outer, torch.ones(2, 2))
    assert [step.operation for step in inner_traces[0]] == ["matmul"]
    assert [step.operation for step in trace] == ["matmul", "add"]


def test_vmap_sparse_and_meta_tensors_are_supported():
    x = torch.randn(3, 4)
    mapped = record(lambda rows: torch.func.vmap(lambda row: (row * 2).sum())(rows + 1), x)
    assert same_bits(mapped.result, torch.func.vmap(lambda row: (row * 2).sum())(x + 1))
    assert not any(step.unused for step in mapped)
    assert record(lambda tensor: tensor.to_sparse() * 2, x)[0].value.sample is None
    assert record(lambda tensor: tensor * 2, torch.empty(2, device="meta"))["output"].shape == (2,)


def test_a_compiled_function_is_recorded_line_by_line():
    def double(x):
        doubled = x * 2
        return doubled + 1

    compiled, x = torch.compile(double, backend="eager"), torch.randn(3)
    compiled(x)
    trace = record(compiled, x)
    assert trace.names == ("doubled", "output")
    assert same_bits(trace.result, compiled(x))


def test_bound_methods_and_partials_are_recorded_like_their_module():
    module, x = PackedAttention(), torch.randn(1, 3, 8)
    for called in (module.forward, functools.partial(module)):
        assert Source("parameter", "qkv.weight") in record(called, x)[0].inputs


# --- limits ---


def test_large_values_become_summaries():
    x = torch.linspace(-1, 1, 64 * 100).view(64, 100)
    x[0, 0] = torch.nan
    x[0, 1] = -torch.inf
    trace = record(lambda tensor: tensor * 2, x, largest=6399)
    summary = trace["output"].value
    assert isinstance(summary, Summary)
    finite = (x * 2)[(x * 2).isfinite()]
    assert (summary.shape, summary.dtype, summary.nans) == ((64, 100), torch.float32, 1)
    assert summary.minimum == -math.inf
    assert summary.maximum == 2.0
    assert summary.mean == pytest.approx(finite.mean().item(), abs=1e-6)
    assert summary.std == pytest.approx(finite.std(correction=0).item(), rel=1e-5)
    assert summary.sample.numel() <= 256
    torch.testing.assert_close(summary.sample, (x * 2)[::4, ::7], equal_nan=True)
    assert "1 of 1 values are kept as summaries" in str(trace)
    assert isinstance(
        record(lambda tensor: tensor * 2, x, largest=6400)["output"].value, torch.Tensor
    )


def test_summaries_of_integers_and_complex_numbers():
    whole = record(lambda tensor: tensor + 1, torch.arange(4), largest=0)["output"].value
    assert (whole.minimum, whole.maximum, whole.mean) == (1, 4, 2.5)
    magnitude = record(lambda tensor: tensor * 1, torch.tensor([3 + 4j]), largest=0)["output"].value
    assert magnitude.maximum == 5


def test_the_memory_limit_applies_to_all_values_together():
    def thrice(x):
        a = x + 1
        b = a + 1
        return b + 1

    kept = record(thrice, torch.zeros(10), memory=80)
    assert [isinstance(step.value, Summary) for step in kept] == [False, False, True]


def test_steps_beyond_the_limit_are_counted():
    def loop(x):
        kept = x * 2
        for _ in range(50):
            x = x + 1
        return x + kept

    trace = record(loop, torch.zeros(2), steps=10)
    assert len(trace) == 10
    assert trace.dropped_steps == 42
    assert "42 further steps were dropped" in str(trace)
    assert not trace["kept"].unused, "a dropped step used it"


def test_a_long_loop_keeps_no_tensor_alive():
    def loop(x):
        for _ in range(2000):
            x = x + 1
        return x

    trace = record(loop, torch.zeros(4))
    assert len(trace.all("x")) == 2000
    assert trace["x"].value.tolist() == [2000.0] * 4
    assert not any(step.unused for step in trace)


# --- the trace ---


def test_an_unknown_name_raises_with_similar_names():
    trace = record(PackedAttention(), torch.randn(1, 3, 8))
    with pytest.raises(KeyError, match="weights"):
        trace["wieghts"]
    assert "weights" in trace
    assert trace.all("wieghts") == ()


def test_print_shows_an_aligned_table():
    lines = str(record(DiscardedMask(), torch.randn(1, 3, 4))).splitlines()
    assert lines[0].split() == ["#", "name", "operation", "shape", "line", "source"]
    column = lines[0].index("source")
    assert all(line[column - 2 : column] == "  " and line[column] != " " for line in lines)
    (unused,) = [line for line in lines if "unused" in line]
    assert "scores.masked_fill(mask, -torch.inf)" in unused


def test_a_notebook_draws_every_step_and_escapes_the_source():
    page = record(lambda x: (x < 1) & (x.abs() > 0), torch.randn(3, 3))._repr_html_()
    assert page.count("<figure") == 4
    assert "x &lt; 1" in page
    assert "<script" not in page


@pytest.mark.parametrize("limits", [{"largest": -1}, {"memory": 1.5}, {"steps": "many"}])
def test_invalid_limits_are_refused(limits):
    with pytest.raises(ArgumentError, match=next(iter(limits))):
        record(torch.relu, torch.ones(1), **limits)


def test_an_argument_that_is_not_callable_is_refused():
    with pytest.raises(ArgumentError, match=r"record\(f, x\)"):
        record(torch.ones(1))
