"""The table of numbers names every page of the dashboard, tests that exist, and only such that run on both stores."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from gateway.web.dashboard import FOLDER
from tests.browser.numbers import PAGES

TESTS = Path(__file__).parent / "slow"
ON_BOTH = {"either", "operator", "store_url"}
"""Fixtures that run a test once on the embedded store and once on Redis."""
SHARED = {"admin": ["page"], "page": ["gateway"]}
"""Fixtures of conftest.py, with what they ask for: a file may have another `gateway`."""
WITHOUT_NUMBERS = {"audit"}
"""Of these pages only times are shown, which are those of the rows."""
PARTS = {"statement", "invoice"}
"""Parts of a view with numbers of their own."""
ADDRESSED = {"keys", "teams", "models", "upstreams"}
"""Views with a page for each thing."""


def stores_of(path: Path) -> Iterator[tuple[str, bool]]:
    """The names of the tests in a file, and whether each runs on both stores."""
    functions = {each.name: each for each in ast.parse(path.read_text()).body if isinstance(each, ast.FunctionDef)}

    def is_on_both(name: str) -> bool:
        asked = [each.arg for each in functions[name].args.args] if name in functions else SHARED.get(name, [])
        return name in ON_BOTH or any(is_on_both(each) for each in asked)

    yield from ((name, is_on_both(name)) for name in functions if name.startswith("test_"))


def test_every_page_has_its_numbers_in_the_table() -> None:
    views = re.search(r"const VIEWS = \{([^}]*)\}", (FOLDER / "app.js").read_text())
    assert views is not None
    wanted = {each.strip() for each in views[1].split(",")}
    assert wanted | PARTS == {page.partition("?")[0] for page in PAGES if "/" not in page}
    assert {page.partition("/")[0] for page in PAGES if "/" in page} == ADDRESSED


def test_the_tests_of_the_table_exist_and_run_on_both_stores() -> None:
    known = dict(pair for path in sorted(TESTS.glob("test_*.py")) for pair in stores_of(path))
    for page, tests in PAGES.items():
        for css, test in tests.items():
            assert test in known, f"{page}, {css}: there is no {test}"
            assert known[test] or page in WITHOUT_NUMBERS, f"{page}, {css}: {test} runs on one store only"
