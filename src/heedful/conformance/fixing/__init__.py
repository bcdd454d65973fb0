"""Fixes of findings: edits of the source that are kept only if another check proves them."""
