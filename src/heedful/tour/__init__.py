"""`heedful tour`: attention from dot products of embeddings to multi-head attention, on the user's own numbers.

command.py       the command
inputs.py, minilm.py           where the token matrix comes from
ladder.py        the rungs of the ladder, with their explanations
rungs/           what each rung records and compares
recordings.py    recorded runs of the textbook, and the result of a rung
descriptions.py  what each step means                   comparison.py  whether two routes agree
routes.py        our attention and PyTorch's, as routes to the same result
speed.py         how fast this machine runs each route  run.py         the whole tour
report/          the report as text, HTML and JSON
"""
