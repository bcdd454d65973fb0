"""Findings, their catalogue, and reports as text, HTML, JSON and JUnit XML."""
