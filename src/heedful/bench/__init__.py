"""`heedful bench`: attention timed beside PyTorch's and others', and held to what it must reach.

cases.py       what is measured, and what each case must reach: a table
settings.py    one attention as data, and the tensors it is computed on
peers.py       who is compared, and how each is called        worker.py  the same in a process of its own
models.py      whole models of transformers, with their attention replaced
checking.py    is the result right? float64 says                peaks.py   what the machine could do at most
measuring.py   runs that take turns, medians, ratios            judging.py held, missed, or wrong
running.py     one case, from tensors to verdict                report.py  all of them, and the machine
terminal.py, document.py, page.py, plot.py: what becomes of a report        command.py: the command
"""
