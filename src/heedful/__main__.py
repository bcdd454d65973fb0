"""The program: `heedful` and `python -m heedful`."""

import signal
import sys


def main() -> None:
    """Run the command line. Ctrl-C ends it without a traceback at any time, also while it starts and while it ends."""
    try:
        from heedful.cli import app

        app(prog_name="heedful")
    except KeyboardInterrupt:
        if sys.stderr is not None:
            print("heedful interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
