"""Runs of a subject, the attentions found in them, and what the subject is expected to do."""
