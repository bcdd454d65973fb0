"""Generation: the same tokens as without caches, alone or in a batch, within the context or beyond it."""

import math

import pytest
import torch

from heedful.errors import ArgumentError
from heedful.gpt import GPT, GPTConfig
from heedful.gpt.generation import GREEDY, Sampling, generate, stream, window_start

SMALL = {
    "vocab_size": 61,
    "context_length": 16,
    "d_model": 48,
    "num_layers": 2,
    "num_heads": 4,
    "tied": False,  # a tied model of random weights repeats the last token
}
SHAPES = {
    "gpt2": GPTConfig.gpt2(**SMALL),
    "llama": GPTConfig.llama(**SMALL, num_kv_heads=2),
    "window": GPTConfig.llama(**SMALL, num_kv_heads=2, window=5),
}
PROMPTS = [[5, 9, 2], [7], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], list(range(40))]


def confident(config: GPTConfig) -> GPT:
    """Return a model with weights so large that its logits are far apart and depend on all tokens."""
    torch.manual_seed(0)
    model = GPT(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10.0 if parameter.dim() == 2 else 1.0)
    return model


@pytest.fixture(params=SHAPES)
def model(request):
    return confident(SHAPES[request.param])


@torch.no_grad()
def without_caches(model: GPT, prompt: list[int], tokens: int) -> list[int]:
    """Generate greedily in the simplest way, and read the whole window for each token."""
    C, text = model.config.context_length, list(prompt)
    for _ in range(tokens):
        start = 0
        while len(text) - start > C:
            start += C // 2
        text.append(model(torch.tensor([text[start:]]))[0, -1].argmax().item())
    return text[len(prompt) :]


def test_greedy_sampling_equals_generation_without_caches(model):
    chosen = set()
    for prompt in PROMPTS:
        (text,) = generate(model, [prompt], tokens=40, sampling=GREEDY)
        assert text == without_caches(model, prompt, 40)
        chosen.update(text)
    assert len(chosen) > 20  # not the same token all the time


def test_each_prompt_of_a_batch_continues_as_it_does_alone(model):
    together = generate(model, PROMPTS, tokens=40, sampling=GREEDY)
    for prompt, text in zip(PROMPTS, together, strict=True):
        assert text == generate(model, [prompt], tokens=40, sampling=GREEDY)[0]


def test_a_longer_prompt_continues_the_same_text(model):
    """The end of the prompt does not affect later tokens, even beyond the context."""
    (text,) = generate(model, [[1, 2, 3]], tokens=40, sampling=GREEDY)
    (later,) = generate(model, [[1, 2, 3, *text[:25]]], tokens=15, sampling=GREEDY)
    assert later == text[25:]


@pytest.mark.parametrize("C", [1, 2, 3, 7, 16])
def test_windows_have_between_half_a_context_and_a_whole_one(C):
    starts = [window_start(length, C) for length in range(1, 100)]
    sizes = [length - start for length, start in enumerate(starts, 1)]
    assert max(sizes) == min(C, 99)
    assert min(sizes[C:]) > (C - 1) // 2
    assert starts == sorted(starts)
    # Otherwise every token would read a whole context again.
    assert len(set(starts)) <= 100 / max(C // 2, 1) + 1


def test_nothing_is_read_twice_before_the_context_is_full(model, monkeypatch):
    read, lengths = GPT.read, []

    def counted(self, tokens, *arguments):
        lengths.append(tokens.shape[1])
        return read(self, tokens, *arguments)

    monkeypatch.setattr(GPT, "read", counted)
    generate(model, [[1, 2, 3]], tokens=21, sampling=GREEDY)
    assert lengths == [3] + [1] * 13 + [9] + [1] * 6  # the 17th token: the newest 9 are read again


def test_a_text_ends_before_its_stop_token(model):
    texts = generate(model, PROMPTS, tokens=30, sampling=GREEDY)
    stop = texts[0][5]
    stopped = generate(model, PROMPTS, tokens=30, sampling=GREEDY, stop=stop)
    for text, short in zip(texts, stopped, strict=True):
        assert short == text[: text.index(stop) if stop in text else None]
    steps = list(stream(model, PROMPTS[:1], tokens=30, sampling=GREEDY, stop=stop))
    assert steps == [[token] for token in stopped[0]]


def test_a_stream_yields_one_step_at_a_time(model):
    steps = stream(model, PROMPTS, tokens=10**9, sampling=GREEDY)
    first = [next(steps) for _ in range(3)]
    assert list(zip(*first, strict=True)) == [
        tuple(text) for text in generate(model, PROMPTS, tokens=3, sampling=GREEDY)
    ]


def test_modes_and_the_random_state_are_restored():
    model = confident(GPTConfig.gpt2(**SMALL, dropout=0.9)).train()
    random_state = torch.get_rng_state()
    first, second = (
        generate(model, PROMPTS, tokens=9, sampling=Sampling(seed=3)) for _ in range(2)
    )
    assert first == second
    assert model.training
    assert model.blocks[0].attention.training
    assert torch.equal(torch.get_rng_state(), random_state)
    assert generate(model, PROMPTS, tokens=9, sampling=Sampling(seed=4)) != first


def test_training_continues_after_generation():
    """Generation leaves nothing behind that prevents a backward pass."""
    model = confident(GPTConfig.llama(**SMALL, num_kv_heads=2)).train()
    generate(model, [[1, 2, 3]], tokens=3, sampling=GREEDY)
    model(torch.tensor([[1, 2, 3]])).sum().backward()
    assert model.token_embedding.weight.grad.isfinite().all()


# --- sampling ----------------------------------------------------------------------------------------


def drawn(sampling: Sampling, probabilities: list[float], times: int = 20_000) -> list[float]:
    """Return the relative frequency of each token."""
    logits = torch.tensor(probabilities).log().expand(times, -1)
    chosen = sampling.sample(logits, torch.Generator().manual_seed(0))
    return (chosen.bincount(minlength=len(probabilities)) / times).tolist()


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), [0.1, 0.4, 0.2, 0.3]),
        (Sampling(temperature=0.5), [0.01 / 0.3, 0.16 / 0.3, 0.04 / 0.3, 0.09 / 0.3]),
        (Sampling(temperature=1e-3), [0, 1, 0, 0]),
        (GREEDY, [0, 1, 0, 0]),
        (Sampling(top_k=2), [0, 4 / 7, 0, 3 / 7]),
        (Sampling(top_k=99), [0.1, 0.4, 0.2, 0.3]),
        (Sampling(top_p=0.65), [0, 4 / 7, 0, 3 / 7]),
        (Sampling(top_p=0.75), [0, 4 / 9, 2 / 9, 3 / 9]),
        (Sampling(top_p=1e-6), [0, 1, 0, 0]),
        (
            Sampling(top_k=3, top_p=0.5),
            [0, 4 / 7, 0, 3 / 7],
        ),  # the first of 4/9, 3/9, 2/9 that reach one half
    ],
)
def test_tokens_are_sampled_with_the_right_frequencies(sampling, expected):
    assert drawn(sampling, [0.1, 0.4, 0.2, 0.3]) == pytest.approx(
        expected, abs=4 * math.sqrt(0.25 / 20_000)
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("temperature", {"temperature": -1.0}),
        ("temperature", {"temperature": math.nan}),
        ("top_k", {"top_k": 0}),
        ("top_p", {"top_p": 0.0}),
        ("top_p", {"top_p": 1.5}),
        ("seed", {"seed": -1}),
    ],
)
def test_invalid_sampling_is_refused(name, options):
    with pytest.raises(ArgumentError) as caught:
        Sampling(**options)
    assert caught.value.argument == name


@pytest.mark.parametrize(
    ("name", "prompts", "tokens"),
    [("prompts", [], 3), ("prompts", [[1], []], 3), ("tokens", [[61]], 3), ("tokens", [[1]], 0)],
)
def test_invalid_prompts_are_refused(name, prompts, tokens):
    with pytest.raises(ArgumentError) as caught:
        generate(GPT(SHAPES["gpt2"]), prompts, tokens=tokens)
    assert caught.value.argument == name
