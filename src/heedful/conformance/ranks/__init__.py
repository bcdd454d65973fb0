"""`heedful check --ranks N`: an attention over N ranks against the same attention on one.

- `check`: runs the target on one rank and, with each layout, on N; reports what `judging` says of the one that fits.
- `rank`: what each process does: `building` makes the target, `recording` runs it; `processes` starts and ends them.
- `layout`: which part of the arguments each rank gets; `weights` deals whole weights; `run`: what a process sends back.
- `attempt`: the runs with one layout; `judging` compares outputs, `gradients` and `collectives` the others; `locating`
  finds the first tensor that departs, by `matching`.
"""
