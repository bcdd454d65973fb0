"""The command `heedful info`: its options."""

from heedful.cli.options import Json


def info(json: Json = False) -> None:
    """Describe this installation: versions, threads, instruction set, and why our kernel is missing if it is."""
    import sys
    from dataclasses import asdict
    from json import dumps

    from heedful.info import info
    from heedful.screen import print_out

    description = info()
    print_out(dumps(asdict(description), indent=2) if json else description.as_text(sys.stdout))
