"""A guided climb from dot products of bare embeddings to many heads, on the reader's own numbers.

`inputs` and `minilm` say where the token matrix comes from. `ladder` lists the rungs, `rungs` climbs them: the
textbook runs under `record` and its routes are compared. `report` takes the whole tour; `terminal`, `page` and
`document` show it as text, HTML and JSON.
"""
