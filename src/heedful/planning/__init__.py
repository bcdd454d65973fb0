"""The command `heedful plan`: what attention over many ranks would take, from `heedful.parallel.plan`."""
