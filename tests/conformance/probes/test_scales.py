"""Scores without a scale."""

import torch
from torch import Tensor, nn

from heedful import check


class TokensAsKeys(nn.Module):
    """Projected queries that attend to the tokens themselves."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.project = nn.Linear(d_model, d_model, bias=False)
        self.combine = nn.Linear(2 * d_model, d_model, bias=False)

    def forward(self, query: Tensor, context: Tensor) -> Tensor:
        query = self.project(query)
        mix = torch.bmm((query @ context.mT).softmax(-1), context)
        return self.combine(torch.cat([mix, query], dim=-1)).tanh()


class ProjectedKeys(TokensAsKeys):
    """The same, with keys and values from a projection of their own."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.other = nn.Linear(d_model, d_model, bias=False)

    def forward(self, query: Tensor, context: Tensor) -> Tensor:
        return super().forward(query, self.other(context))


def levels(definition: type[nn.Module]) -> list[str]:
    findings = check(definition).findings
    return [finding.level for finding in findings if finding.name == "scale-missing"]


def test_attention_to_unprojected_tokens_needs_no_scale() -> None:
    assert levels(TokensAsKeys) == ["convention"]


def test_attention_to_projected_tokens_needs_a_scale() -> None:
    assert levels(ProjectedKeys) == ["bug"]
