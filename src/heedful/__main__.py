"""The entry point of `python -m heedful`, which is the same as `heedful`."""

from heedful.cli import app

app(prog_name="heedful")
