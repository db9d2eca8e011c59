"""One script made of the ES modules of a page: a browser takes longer for sixty small files than for one.

The modules stay readable, and can be loaded as they are. They keep to one form: an import is
`import { one, two as other } from "./name.js";`, an export is `export` before a function, a class or a const, and none
imports itself by way of others. Each becomes a function that runs once, behind those that it imports, and returns what
it exports.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";$', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|const|class) ([\w$]+))", re.MULTILINE)


def one_script(modules: Mapping[str, str], first: str) -> str:
    """The script that does what loading the module `first` does. `modules`: texts by names without `.js`. Raises
    `ValueError` where modules import each other in a circle."""
    done: list[str] = []
    under_way: set[str] = set()

    def add(name: str) -> None:
        if name in done:
            return
        if name in under_way:
            raise ValueError(f"{name}.js imports itself by way of others")
        under_way.add(name)
        for _, other in IMPORT.findall(modules[name]):
            add(other)
        done.append(name)

    add(first)
    return "\n".join([_as_function(name, modules[name]) for name in done])


def _as_function(name: str, text: str) -> str:
    body = IMPORT.sub(lambda found: f"const {{{found[1].replace(' as ', ': ')}}} = ${found[2]};", text)
    exports = ", ".join(EXPORT.findall(body))
    return f"// {name}.js\nconst ${name} = (() => {{\n{EXPORT.sub('', body)}return {{ {exports} }};\n}})();\n"
