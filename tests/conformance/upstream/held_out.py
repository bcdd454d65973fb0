"""The held-out bugs of public projects: they were re-created without running the check, and guide no change of it.

Once a bug guides a change, it is moved to `known_later.py`. There is none at present that has not.
"""

from __future__ import annotations

from upstream.cases import Case

HELD_OUT: tuple[Case, ...] = ()
