"""`/dashboard`: the page over the admin API. It asks for the token that the admin API needs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from gateway.pipeline import Services
from gateway.web.static_page import StaticPage

IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";$', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|const|class) ([\w$]+))", re.MULTILINE)


def one_script(modules: Mapping[str, str], first: str) -> str:
    """The script that does what loading the module `first` does: a browser takes longer for sixty small files than for
    one. `modules`: texts by names without `.js`. Raises `ValueError` where modules import each other in a circle.

    The modules stay readable, and can be loaded as they are. They keep to one form: an import is
    `import { one, two as other } from "./name.js";`, an export is `export` before a function, a class or a const. Each
    becomes a function that runs once, behind those that it imports, and returns what it exports.
    """
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


FOLDER = Path(__file__).parent

SCRIPT = "all.js"
"""The modules of the page as one file, which it loads."""

APART = "theme.js"
"""A script that runs before the page is shown."""

OFF = "This gateway has no dashboard: set admin.token in its configuration, and reload it."


class Dashboard(StaticPage):
    """The page and its files."""

    def __init__(self) -> None:
        super().__init__("/dashboard", FOLDER)

    def made_from(self, contents: Mapping[str, bytes]) -> Mapping[str, bytes]:
        scripts = [name for name in contents if name.endswith(".js") and name != APART]
        modules = {name.removesuffix(".js"): contents[name].decode() for name in scripts}
        return {SCRIPT: one_script(modules, "app").encode()}

    def why_off(self, services: Services) -> str | None:
        return None if services.config.has_admin_api else OFF
