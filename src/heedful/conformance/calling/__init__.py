"""Calling any target in one way: load it, build it, learn its calling convention."""
