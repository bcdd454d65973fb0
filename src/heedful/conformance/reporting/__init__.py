"""Findings, the catalogue that explains them, and the report of a check as text, HTML, JSON and JUnit XML."""
