"""`heedful bench`: attention timed beside PyTorch's and that of other libraries, on checked results.

command.py    the command
run.py        all cases, one after another
cases.py      the table of cases                        workload.py   what a case computes, and its inputs
peers/        our attention and the others'             worker.py     contenders in processes of their own
accuracy.py   comparison of results with float64        peaks.py      the machine's maximum rates
speed.py, memory.py, threads.py, models.py              the measurement of one case, by its kind
results.py    the result of a case                      conditions.py what all cases of a run share
targets.py    what cases should reach, from a file      judging.py    whether they do
report/       the report as text, JSON, Markdown and plot             machine.py  where it was measured
"""
