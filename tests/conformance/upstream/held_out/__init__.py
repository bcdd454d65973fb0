"""The held-out bugs of public projects, with proofs: they were re-created without running the check or reading it.

They guide no change of it. Once a bug guides a change, it is moved to the known ones.
"""

from __future__ import annotations

from upstream.cases import Case
from upstream.held_out.language import LANGUAGE
from upstream.held_out.round_9 import ROUND_9
from upstream.held_out.vision import VISION

HELD_OUT: tuple[Case, ...] = (*ROUND_9, *LANGUAGE, *VISION)
