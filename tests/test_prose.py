"""Plain technical English: comments, docstrings, pages and identifiers avoid words of a private language.

The list has the worst ones: personified processes, and words with another meaning in the field.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

from .test_floors import MODULES, ROOT, nodes

INSTEAD = {
    "told": "logged, returned, reported, shown",
    "tell": "log, return, report, show",
    "tells": "logs, returns, reports, shows",
    "nobody": "no process, no client, unknown",
    "somebody": "another process, a client",
    "everybody": "all clients, all workers",
    "whoever": "the caller, the process that ...",
    "spelt": "formatted, written",
    "spells": "formats, writes",
    "books": "ledger, records, sums",
    "bites": "portions",
    "shelf": "cache",
    "wish": "request",
    "wishes": "requests",
    "outlet": "client stream",
    "dies": "ends, is killed",
    "died": "ended, was killed",
    "nowhere": "unknown, absent",
    "left alone": "not used, cooldown, circuit open",
    "let go": "close, release",
    "stands still": "is blocked",
}
"""The words, each with what to write instead."""

WORDS = re.compile(rf"(?<!\.)\b({'|'.join(INSTEAD)})\b", re.IGNORECASE)

FURTHER = {
    "says": "returns, states, reports, has",
    "said": "returned, stated, reported, logged",
    "say": "return, state, report, log",
    "stands": "is",
    "stood": "was",
    "anybody": "a client, a person",
    "so many": "the number by its name: `limit` rows",
    "so much": "the amount by its name",
    "What": "a noun: the cost of calls, not what calls cost",
    "who": "the principal, the caller, a person who ...",
}
"""Further words for the gateway (its comments, docstrings, and texts for users, operators and logs), for pages, and for
comments of other files but those of the tests. `What` and `who` only at the beginning of a sentence, and in small
letters at that of a text, such as a help text."""

FURTHER_IN_LINES = re.compile(
    rf"(?i:{WORDS.pattern}|\b(?:says|said|say|stands|stood|anybody|so many|so much)\b)"
    r"|(?:^|[.:;] )Wh(?:at|o|oever)\b(?=[^.?]*(?:\.|$))"
)
"""For a line of a text, which may begin within a sentence."""

WORDS_IN_GATEWAY = re.compile(rf"{FURTHER_IN_LINES.pattern}|^(?:what|who)\b")

POSSIBLE = re.compile(r'#.*|"""[\s\S]*?"""')
"""Comments and docstrings, roughly: parsing each source would take half a minute."""

TESTS = {
    str(path.relative_to(ROOT)): path.read_text()
    for folder in ("tests", "bench", ".ci")
    for path in sorted((ROOT / folder).rglob("*.py"))
}

CODE = re.compile("`[^`]*`")
"""Names of code in a text; they are not prose."""


def comments(source: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("# ")


def texts(source: str) -> Iterator[str]:
    """Every comment and every docstring, those of attributes included."""
    yield from comments(source)
    for node in nodes(source):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def all_texts(source: str) -> Iterator[str]:
    """Every comment, and every string that holds words: docstrings, help texts, errors, lines of logs."""
    if any(WORDS_IN_GATEWAY.search(line.lstrip("# ")) for line in re.findall("#.*", source)):
        yield from comments(source)
    for node in nodes(source):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.value


def complaints_in_gateway(source: str) -> list[str]:
    """Each word of `WORDS_IN_GATEWAY` with its text."""
    plain = [" ".join(CODE.sub("", text).split()) for text in all_texts(source)]
    return [f"{word[0]!r}: {text}" for text in plain for word in WORDS_IN_GATEWAY.finditer(text)]


def complaints(source: str) -> list[str]:
    """Each word with its sentence."""
    if not any(WORDS.search(" ".join(text.split())) for text in POSSIBLE.findall(source)):
        return []
    plain = [" ".join(CODE.sub("", text).split()) for text in texts(source)]
    return [f"{word[0]!r}: {text}" for text in plain for word in WORDS.finditer(text)]


NAME = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)


def test_names_of_tests_are_plain_technical_english() -> None:
    names = [f"{module}: {name}" for module, source in TESTS.items() for name in NAME.findall(source)]
    assert len(names) > 3000
    found = [name for name in names if WORDS.search(name.rpartition(": ")[2].replace("_", " "))]
    assert not found, "\n".join([*found, f"write instead: {INSTEAD}"])


# ---------------------------------------------------------------------------------------------------------- identifiers

NAMES_INSTEAD = {
    "visit": "context (`RequestContext`)",
    "told": "what it is: answer, fields, rows, text",
    "tell": "send, answer, note, explain",
    "wish": "body, request, query",
    "wishes": "bodies, requests, queries",
    "wished": "requested",
    "book": "key_cache",
    "books": "accounting, ledger",
    "standing": "window_status",
    "standings": "window_statuses",
    "spell": "format, encode, describe",
    "spelt": "text, encoded, formatted",
    "spells": "formats, encodes",
    "office": "access, admin_app",
    "shelf": "segments",
    "home": "directory, upstream",
    "house": "upkeep",
    "bookmark": "cursor",
    "signposts": "offsets",
    "trouble": "problem, fault, failure",
    "news": "changes",
    "touched": "changed_windows",
    "acknowledgements": "commit_waiters",
    "who": "principal, key",
    "whoever": "caller",
    "said": "text, delta, answer, parsed",
    "says": "describe",
    "nobody": "absent client, unattributed",
    "outlet": "client_stream",
    "bites": "portions",
    "dies": "ends",
    "died": "ended",
}
"""Words in identifiers of the gateway, each with the glossary's word or a plain one."""

NAMES_ALLOWED: dict[str, str] = {}
"""Identifiers that have such a word all the same, each with its reason: a library's or a public name."""

WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def private_names(source: str) -> list[str]:
    """The identifiers with such a word, those in the braces of f-strings included."""
    names = set()
    for node in nodes(source):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                names.add(name)
            case ast.alias(asname=str(name)) | ast.keyword(arg=str(name)):
                names.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
    return sorted(name for name in names if {word.lower() for word in WORD.findall(name)} & NAMES_INSTEAD.keys())


def test_identifiers_are_words_of_the_glossary_or_plain() -> None:
    found = {module: private_names(source) for module, source in MODULES.items()}
    wrong = [f"{module}: {name}" for module, names in found.items() for name in names if name not in NAMES_ALLOWED]
    assert not wrong, "\n".join([*wrong, f"write instead: {NAMES_INSTEAD}"])
    assert NAMES_ALLOWED.keys() <= {name for names in found.values() for name in names}


TEST_NAMES_INSTEAD = {
    "house": "gateway",
    "houses": "gateways",
    "theatre": "shared_upstream",
    "interlude": "answering",
    "scene": "scenario",
    "story": "scenario",
    "stories": "scenarios",
    "told": "received, reported, refusal",
}
"""Names of fixtures and of variables that tests had, each with the one to use."""

TEST_NAME = re.compile(
    rf"^ *(?:(?:async )?def |class |with .* as |for )?({'|'.join(TEST_NAMES_INSTEAD)})(?:[:(]| = | in )", re.MULTILINE
)


def test_tests_have_one_name_for_one_thing() -> None:
    found = [f"{module}: {name}" for module, source in TESTS.items() for name in TEST_NAME.findall(source)]
    assert not found, "\n".join([*found, f"write instead: {TEST_NAMES_INSTEAD}"])


def test_the_rule_of_identifiers_itself() -> None:
    source = "def _tell_one(wish): self.books = f'{standing}'\nclass SpeltBatch: ...\nfrom a import b as news\n"
    assert private_names(source) == ["SpeltBatch", "_tell_one", "books", "news", "standing", "wish"]
    assert TEST_NAME.findall("def house(\n  told = 1\n  for story in x\n  with a() as scene:\nhousehold = 2\n") == [
        "house", "told", "story", "scene",
    ]  # fmt: skip
    assert private_names("def outstanding(household, notebook, wishlist): return 'told'") == []


# ---------------------------------------------------------------------------------------------------------- other files

HASH = re.compile(r"(?:^|\s)#+\s(.*)")
FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
PROSE = {
    ".md": re.compile(r"(.*)"),
    ".lua": re.compile(r"--\s(.*)"),
    ".js": re.compile(r"(?://|/\*+|^ *\*)(.*)"),
    ".css": re.compile(r"(?:/\*+|^ *\*)(.*)"),
}
"""How a line of a file with this suffix contains prose; in all others `HASH`."""

FOLDERS = (".ci", "config", "deploy", "docs", "examples", "gateway")
FILES = [
    *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*")),
    *(path for path in ROOT.glob("*") if path.suffix == ".md" or path.name in ("Makefile", "Dockerfile")),
]
DATA = (".py", ".json", ".pyc", ".png", ".svg", ".html")


def lines_with_words(text: str, prose: re.Pattern[str], words: re.Pattern[str]) -> list[str]:
    """The complaints of a file other than Python; of fenced code in pages, its comments count."""
    plain = FENCE.sub(lambda code: "\n".join(HASH.findall(code[0])), text) if prose is PROSE[".md"] else text
    found = [CODE.sub("", line[1]).strip() for each in plain.splitlines() if (line := prose.search(each))]
    return [f"{word[0]!r}: {line}" for line in found for word in words.finditer(line)]


def test_pages_and_comments_of_other_files_are_plain_technical_english() -> None:
    texts = {path.relative_to(ROOT): path for path in FILES if path.is_file() and path.suffix not in DATA}
    assert len(texts) > 150
    found = [
        f"{name}: {complaint}"
        for name, path in texts.items()
        for complaint in lines_with_words(path.read_text(), PROSE.get(path.suffix, HASH), FURTHER_IN_LINES)
    ]
    assert not found, "\n".join([*found, f"write instead: {INSTEAD | FURTHER}"])


def test_the_rule_of_other_files_itself() -> None:
    page = "A worker dies.\n```sh\nbooks  # whoever calls\n```\n`told`\n"
    assert lines_with_words(page, PROSE[".md"], WORDS) == ["'dies': A worker dies.", "'whoever': whoever calls"]
    assert lines_with_words("books: told  # nobody\n", HASH, WORDS) == ["'nobody': nobody"]
    assert lines_with_words("-- What it says\n", PROSE[".lua"], FURTHER_IN_LINES) == [
        "'What': What it says",
        "'says': What it says",
    ]
    assert lines_with_words("call('books') -- died\n", PROSE[".lua"], WORDS) == ["'died': died"]
    assert lines_with_words("/** Told\n * nowhere */ books()\nbooks(); // shelf\n", PROSE[".js"], WORDS) == [
        "'Told': Told",
        "'nowhere': nowhere */ books()",
        "'books': nowhere */ books()",
        "'shelf': shelf",
    ]


def test_comments_and_docstrings_are_plain_technical_english() -> None:
    found = [
        f"{module}: {complaint}" for module, source in {**MODULES, **TESTS}.items() for complaint in complaints(source)
    ]
    assert not found, "\n".join([*found, f"write instead: {INSTEAD}"])


QUOTED: dict[str, str] = {}
"""Texts of the gateway with such a word that are not ours, by a part of each, with the reason."""


def test_all_texts_of_the_gateway_are_plain_technical_english() -> None:
    found = [
        f"{module}: {complaint}" for module, source in MODULES.items() for complaint in complaints_in_gateway(source)
    ]
    wrong = [each for each in found if not any(part in each for part in QUOTED)]
    assert not wrong, "\n".join([*wrong, f"write instead: {INSTEAD | FURTHER}"])
    assert [part for part in QUOTED if not any(part in each for each in found)] == []


def test_the_rule_of_the_gateway_itself() -> None:
    source = '"""Prices.\n\nWhat calls\ncost."""  # Who waits.\nx = f"the file says {y}"\nhelp = "what it is"\n'
    assert sorted(line.partition(":")[0] for line in complaints_in_gateway(source)) == [
        "'. What'",
        "'Who'",
        "'says'",
        "'what'",
    ]
    good = '"""Prices of what calls use. What does a call cost? A person who calls."""\nx = y["says"]  # what is new\n'
    assert complaints_in_gateway(good.replace("# what", "# A note on what")) == []


def test_the_rule_itself() -> None:
    source = '"""Whoever dies."""\nx = "nobody"  # let go\n"""`told`: told to a shelf."""\n'
    assert [line.partition(":")[0] for line in complaints(source)] == [
        "'let go'",
        "'Whoever'",
        "'dies'",
        "'told'",
        "'shelf'",
    ]
    assert complaints('"""The worker ends: clients.told."""') == []
