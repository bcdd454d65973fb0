"""Evidence about a subject: its runs, the attentions in them, and what it should do."""
