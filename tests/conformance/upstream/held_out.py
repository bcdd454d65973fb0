"""The held-out bugs of public projects: they were re-created without running the check, and guide no change of it.

Once a bug guides a change, it is moved to the known ones.
"""

from __future__ import annotations

from upstream.cases import Case

HELD_OUT: tuple[Case, ...] = ()
