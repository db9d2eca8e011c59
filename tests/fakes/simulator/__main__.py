"""The command: `gateway simulate` and its arguments, with all formats."""

from __future__ import annotations

import argparse
import sys

from gateway.commands import simulate

from .server import build_app


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fakes.simulator")
    simulate.add_arguments(parser)
    return simulate.run(parser.parse_args(arguments), build_app)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
