"""Generation: token for token what the model says without caches, alone or in a batch, within its context or beyond."""

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
    "tied": False,  # a tied one of random weights says what it was told last
}
SHAPES = {
    "gpt2": GPTConfig.gpt2(**SMALL),
    "llama": GPTConfig.llama(**SMALL, num_kv_heads=2),
    "window": GPTConfig.llama(**SMALL, num_kv_heads=2, window=5),
}
PROMPTS = [[5, 9, 2], [7], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], list(range(40))]


def confident(config: GPTConfig) -> GPT:
    """With larger weights than training begins with, so that its logits are far apart and depend on all tokens."""
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
    """Greedy, as one would write it: the whole window read for every token."""
    C, text = model.config.context_length, list(prompt)
    for _ in range(tokens):
        start = 0
        while len(text) - start > C:
            start += C // 2
        text.append(model(torch.tensor([text[start:]]))[0, -1].argmax().item())
    return text[len(prompt) :]


def test_greedy_is_what_the_model_says_without_caches(model):
    said = set()
    for prompt in PROMPTS:
        (text,) = generate(model, [prompt], tokens=40, sampling=GREEDY)
        assert text == without_caches(model, prompt, 40)
        said.update(text)
    assert len(said) > 20  # not one thing over and over


def test_each_of_a_batch_says_what_it_says_alone(model):
    together = generate(model, PROMPTS, tokens=40, sampling=GREEDY)
    for prompt, text in zip(PROMPTS, together, strict=True):
        assert text == generate(model, [prompt], tokens=40, sampling=GREEDY)[0]


def test_prompts_and_what_follows_are_one_text(model):
    """Where the prompt ended makes no difference to what comes later, beyond the context too."""
    (text,) = generate(model, [[1, 2, 3]], tokens=40, sampling=GREEDY)
    (later,) = generate(model, [[1, 2, 3, *text[:25]]], tokens=15, sampling=GREEDY)
    assert later == text[25:]


@pytest.mark.parametrize("C", [1, 2, 3, 7, 16])
def test_windows_hold_between_half_the_context_and_all(C):
    starts = [window_start(length, C) for length in range(1, 100)]
    sizes = [length - start for length, start in enumerate(starts, 1)]
    assert max(sizes) == min(C, 99)
    assert min(sizes[C:]) > (C - 1) // 2
    assert starts == sorted(starts)
    assert len(set(starts)) <= 100 / max(C // 2, 1) + 1  # else every token would cost a context


def test_nothing_is_read_twice_before_the_context_is_full(model, monkeypatch):
    read, lengths = GPT.read, []

    def counted(self, tokens, *arguments):
        lengths.append(tokens.shape[1])
        return read(self, tokens, *arguments)

    monkeypatch.setattr(GPT, "read", counted)
    generate(model, [[1, 2, 3]], tokens=21, sampling=GREEDY)
    assert lengths == [3] + [1] * 13 + [9] + [1] * 6  # 17 tokens: of the newest 9 on, again


def test_a_text_ends_at_its_stop_token(model):
    texts = generate(model, PROMPTS, tokens=30, sampling=GREEDY)
    stop = texts[0][5]
    stopped = generate(model, PROMPTS, tokens=30, sampling=GREEDY, stop=stop)
    for text, short in zip(texts, stopped, strict=True):
        assert short == text[: text.index(stop) if stop in text else None]
    steps = list(stream(model, PROMPTS[:1], tokens=30, sampling=GREEDY, stop=stop))
    assert steps == [[token] for token in stopped[0]]


def test_streams_come_step_by_step(model):
    steps = stream(model, PROMPTS, tokens=10**9, sampling=GREEDY)
    first = [next(steps) for _ in range(3)]
    assert list(zip(*first, strict=True)) == [
        tuple(text) for text in generate(model, PROMPTS, tokens=3, sampling=GREEDY)
    ]


def test_modes_and_random_state_stay():
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


def test_trained_on_in_between():
    """Nothing that generation leaves behind is in the way of a backward pass."""
    model = confident(GPTConfig.llama(**SMALL, num_kv_heads=2)).train()
    generate(model, [[1, 2, 3]], tokens=3, sampling=GREEDY)
    model(torch.tensor([[1, 2, 3]])).sum().backward()
    assert model.token_embedding.weight.grad.isfinite().all()


# --- choosing ----------------------------------------------------------------------------------------


def drawn(sampling: Sampling, probabilities: list[float], times: int = 20_000) -> list[float]:
    """How often each token is chosen."""
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
        ),  # of 4/9, 3/9, 2/9, those that reach half
    ],
)
def test_tokens_are_drawn_as_often_as_they_should(sampling, expected):
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
def test_choices_that_are_refused(name, options):
    with pytest.raises(ArgumentError) as caught:
        Sampling(**options)
    assert caught.value.argument == name


@pytest.mark.parametrize(
    ("name", "prompts", "tokens"),
    [("prompts", [], 3), ("prompts", [[1], []], 3), ("tokens", [[61]], 3), ("tokens", [[1]], 0)],
)
def test_prompts_that_are_refused(name, prompts, tokens):
    with pytest.raises(ArgumentError) as caught:
        generate(GPT(SHAPES["gpt2"]), prompts, tokens=tokens)
    assert caught.value.argument == name
