"""MkDocs hooks: pages that are made when the site is built, and links that leave docs/.

In the repository a page may link to any file. In the site, a link to the source of another page leads to that page, one
to another file to a copy of it below `source/`, and one to a folder becomes plain text. tests/slow/test_site.py builds
the site; tests/test_docs.py checks that every target exists.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

import reference
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
SOURCES = {
    "deployment.md": "deploy/README.md",
    "examples.md": "examples/README.md",
    "example-plugin.md": "examples/plugin/README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security-policy.md": "SECURITY.md",
    "conduct.md": "CODE_OF_CONDUCT.md",
}
"""Pages of the site whose text is elsewhere in the repository."""
REFERENCE = "api.md"

PAGES = {source: page for page, source in SOURCES.items()} | {"README.md": "index.md"}
_LINK = re.compile(r"(?P<text>\[[^\]]*\])\((?!https?://|#)(?P<path>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Adds the pages that are made, and the files that pages link to."""
    for page, source in SOURCES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    files.append(File.generated(config, REFERENCE, content=reference.page()))
    linked = {_target(page.src_uri, link["path"]) for page in files.documentation_pages() for link in _links(page)}
    for target in sorted(linked):
        if _is_copied(target):
            files.append(File.generated(config, f"source/{target}", abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The text of one page as the site shows it."""
    here = page.file.src_uri

    def shown(link: re.Match[str]) -> str:
        target = _target(here, link["path"])
        if (ROOT / target).is_dir():
            return link["text"][1:-1]
        to = _page_of(target) or (f"source/{target}" if _is_copied(target) else None)
        return link[0] if to is None else f"{link['text']}({_relative(to, here)}{link['anchor'] or ''})"

    return _LINK.sub(shown, markdown)


def _links(page: File) -> list[re.Match[str]]:
    return list(_LINK.finditer(page.content_string))


def _target(page: str, path: str) -> str:
    """The file in the repository that a page's link leads to."""
    folder = PurePosixPath(SOURCES.get(page, f"docs/{page}")).parent
    return os.path.normpath(folder / path) if path else SOURCES.get(page, f"docs/{page}")


def _page_of(target: str) -> str | None:
    """The page of the site with this source."""
    inside = target.removeprefix("docs/") if target.startswith("docs/") else None
    return PAGES.get(target, inside)


def _is_copied(target: str) -> bool:
    return not target.startswith("docs/") and target not in PAGES and (ROOT / target).is_file()


def _relative(to: str, page: str) -> str:
    return os.path.relpath(to, PurePosixPath(page).parent)
