"""Runs the command line for `python -m gateway`."""

import sys

from .cli import main

sys.exit(main())
