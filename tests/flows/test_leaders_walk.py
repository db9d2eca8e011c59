"""A leader's walk: the six commands of docs/quotas.md as they are printed, with forty people who call."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import ok_json
from tests.snippets.pages import snippets

from .gateway_process import ADMIN_TOKEN, CHAT, Gateway, eventually, model, run, settings

PEOPLE = [f"person-{number:02}@example.org" for number in range(1, 41)]
NEAR, OTHER = "person-07@example.org", "person-21@example.org"
ADDRESS = "https://gateway-admin.example.org"
COST_USD = 9.5
"""Of one call: three of them are 28.50 of 30 dollars."""


def printed() -> list[str]:
    """The commands of the walk."""
    (found,) = [each for each in snippets("console") if each.page == "docs/quotas.md" and NEAR in each.text]
    return [line for line in found.commands if line.startswith("gateway ")]


def people_in(text: str) -> list[str]:
    """The lines of people."""
    return [line for line in text.splitlines() if "@example.org" in line]


@pytest.fixture
def gateway(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> Gateway:
    usage = {"prompt_tokens": 0, "completion_tokens": 5, "total_tokens": 5}
    upstream.answer_with(always=ok_json({"model": "up", "choices": [], "usage": usage}))
    price = {"input": 0, "output": COST_USD / 5 * 1e6}
    return start_gateway(
        settings(upstream.url, models={CHAT: model("chat", price=price, max_output_tokens=1)}, keys=[])
    )


def test_the_walk(gateway: Gateway) -> None:
    commands = iter(printed())

    def walk(shows: Callable[[str], object]) -> None:
        """Runs the next command until it shows that: the record of a call is written behind its answer."""
        words = shlex.split(next(commands).replace(ADDRESS, gateway.url))

        def seen() -> object:
            done = run(*words[1:], env={"GATEWAY_TOKEN": ADMIN_TOKEN})
            assert done.returncode == 0, (words, done.stderr)
            print(shlex.join(words), done.stdout, sep="\n")  # seen where the test fails
            return shows(done.stdout)

        eventually(seen)

    walk(lambda text: "platform" in text)
    admin = {"Authorization": f"Bearer {ADMIN_TOKEN}"}

    def made(person: str) -> str:
        body = {"id": person.partition("@")[0], "owner": person, "team": "platform"}
        answer = gateway.send("POST", "/admin/api/keys", body, headers=admin)
        assert answer.status == 201, answer
        return str(answer.json["secret"])

    with ThreadPoolExecutor(4) as threads:
        secrets = dict(zip(PEOPLE, threads.map(made, PEOPLE), strict=True))

    def call(person: str) -> int:
        body = {"model": CHAT, "messages": [{"role": "user", "content": "a"}], "max_tokens": 5}
        head = {"Authorization": f"Bearer {secrets[person]}"}
        return gateway.send("POST", "/v1/chat/completions", body, key=None, headers=head).status

    assert [call(NEAR) for _ in range(4)] == [200, 200, 200, 429]
    assert call(OTHER) == 200

    def fullest_first(text: str) -> bool:
        listed = people_in(text)
        first, second = listed[:2]
        shares = ("95% of 30 usd/month" in first, "32% of 30 usd/month" in second)
        return len(listed) == len(PEOPLE) and (NEAR in first, OTHER in second) == shares == (True, True)

    walk(fullest_first)
    walk(lambda text: "50" in text)  # her limit in this month
    eventually(lambda: call(NEAR) == 200)  # a refused call costs nothing
    walk(lambda text: NEAR in text and "76" in text)  # per cent of it
    walk(
        lambda text: (
            {line.split()[0]: {"38.00", "9.50"} & {*line.split()} for line in people_in(text)}
            == {NEAR: {"38.00"}, OTHER: {"9.50"}}
        )
    )
    walk(lambda text: "47.50" in text)
    assert next(commands, None) is None
