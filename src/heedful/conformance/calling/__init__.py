"""Call any target in one way: load it, build it, and find its calling convention, masks and cache."""
