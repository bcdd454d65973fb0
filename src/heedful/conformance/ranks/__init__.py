"""`heedful check --ranks N`: an attention over N ranks against the same attention on one.

- `check`: runs the target on one rank and, with each layout, on N; reports what `judging` says of the one that fits.
- `judging`: compares outputs and gradients; `locating` finds the first tensor that departs, by `matching`.
- `rank`: what each process does; `processes` starts and ends them; `weights` deals whole weights to ranks.
- `layout`: which part of the arguments each rank gets; `run`: what a process sends back.
"""
