"""One script made of modules: their order, and what a module cannot be."""

from __future__ import annotations

import re

import pytest

from gateway.web.dashboard import one_script

FIRST = """// The first.

import { two as other } from "./second.js";
import { three,
  four } from "./third.js";

other();
"""
SECOND = """// The second.

import { three } from "./third.js";

export function two() {
  return three;
}
"""
THIRD = """// The third.

export const three = 3;
export async function* four() {}
export class Five {}
"""
MODULES = {"first": FIRST, "second": SECOND, "third": THIRD, "unused": "// Not imported.\n"}


def test_each_module_is_behind_those_that_it_imports() -> None:
    script = one_script(MODULES, "first")
    assert re.findall(r"^const \$(\w+) = ", script, re.MULTILINE) == ["third", "second", "first"]
    assert "return { three, four, Five };" in script
    assert "const { two: other } = $second;" in script
    assert "const { three,\n  four } = $third;" in script
    assert "\nasync function* four() {}" in script


def test_modules_that_import_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match=r"first\.js imports itself"):
        one_script({**MODULES, "third": 'import { two } from "./first.js";\n'}, "first")
