"""Each module can be imported alone, in whatever order: an import circle would fail here."""

from __future__ import annotations

import subprocess
import sys

from tests.test_floors import MODULES, ROOT

IMPORT_EACH = """
import importlib, sys
KEPT = ("gateway", "gateway.config")  # which import nothing of ours, and take long
for name in sys.argv[1:]:
    part = name.split(".")[:2]
    for loaded in [n for n in sys.modules if n.split(".")[:2] == part and n not in KEPT]:
        del sys.modules[loaded]
    try:
        importlib.import_module(name)
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {error}")
"""


def test_each_module_can_be_imported_alone() -> None:
    """One process. Before each, the modules of its part of the gateway are forgotten: a part imports parts below it
    alone (tests/test_floors.py), so a circle has all its modules in one part."""
    names = [name for name in MODULES if name != "gateway.__main__"]  # which runs the command line
    said = subprocess.run(
        [sys.executable, "-c", IMPORT_EACH, *names], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert said.stdout == ""
