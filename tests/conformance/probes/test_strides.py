"""Results that depend on how the tokens lie in memory."""

import pytest
from edited_attention import assert_bug

# What is replaced, by what, and what is on the line to be named.
BUGS = {
    "as_strided": (
        "        query = self.split(self.W_query(x))\n",
        "        x = torch.as_strided(x, (B, T, C), (T * C, C, 1))\n        query = self.split(self.W_query(x))\n",
        "as_strided",
    ),
    "view": (
        "        B, T, C = x.shape\n        query",
        "        B, T, C = x.shape\n        x = x.view(B * T, C).view(B, T, C)\n        query",
        "x.view(B * T",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_dependence_on_strides_is_found(tmp_path, bug):
    assert_bug(tmp_path, "stride-dependent", *BUGS[bug])
