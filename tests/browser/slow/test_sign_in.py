"""People sign in with a real identity provider in a real browser, as member, lead and operator, at two gateways."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from gateway.records import Usage
from tests.browser.axe import check
from tests.browser.chromium import ESCAPE, Page, Scheme
from tests.browser.conftest import ago
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.redis_servers import ROOT, RedisServer
from tests.fakes.scripted import ok_json
from tests.flows.gateway_process import COMPLETIONS, Gateway, eventually, key, settings
from tests.flows.planted import plant, record

SCRIPT = Path(__file__).parent.parent / "oidc_provider.mjs"
SERVERS = ROOT / ".venv" / "servers"
SESSION_KEY = "0123456789abcdef0123456789abcdef"
KEYS = {
    "hers": {"team": "crew", "owner": "staff.ann@example.org"},
    "second": {"team": "crew"},
    "alice": {"team": "rival"},
}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """The issuer, and the port that the first gateway has to take."""
    folder = SERVERS / "oidc-provider"
    assert (folder / "node_modules").is_dir(), "oidc-provider is not installed: make servers"
    own = SERVERS / "node-sdk" / "node"
    node = str(own) if own.exists() else "node"
    port, gateway_port = free_port(), free_port()
    log = tmp_path_factory.mktemp("oidc") / "log"
    redirect = f"http://127.0.0.1:{gateway_port}/admin/sign-in/callback"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [node, str(SCRIPT), str(folder), str(port), redirect], stdout=out, stderr=out, stdin=subprocess.DEVNULL
        )
        try:
            eventually(lambda: "ready" in log.read_text() or process.poll() is not None)
            assert process.poll() is None, log.read_text()
            yield f"http://127.0.0.1:{port}", gateway_port
        finally:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def gateways(
    start_shared_gateway: StartsGateways,
    shared_upstream: ScriptedUpstream,
    provider: tuple[str, int],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[list[Gateway]]:
    issuer, port = provider
    oidc = {
        "issuer": issuer, "client_id": "gateway", "client_secret": "client-secret", "session_key": SESSION_KEY,
        "redirect_url": f"http://127.0.0.1:{port}/admin/sign-in/callback", "scopes": ["openid", "email", "groups"],
        "groups": ["ops", "heads", "staff"],
        "roles": [{"group": "ops", "role": "operator"}, {"group": "heads", "role": "lead", "team": "crew"}],
    }  # fmt: skip
    keys = [key(name, **of) for name, of in KEYS.items()]
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield [
            start_shared_gateway(settings(
                shared_upstream.url, server={"port": each}, store={"url": server.url}, oidc=oidc, keys=keys,
                teams={
                    "crew": {"members": {"max_keys": 2}, "quotas": [{"requests": 100, "per": "month"}]}, "rival": {},
                },
            ))
            for each in (port, 0)
        ]  # fmt: skip


@pytest.fixture
def page(driver: webdriver.Chrome, gateways: list[Gateway], provider: tuple[str, int]) -> Iterator[Page]:
    """A browser without a session at the gateway and at the provider."""
    made = Page(driver, gateways[0].url)
    made.forget()
    driver.delete_all_cookies()
    yield made
    driver.delete_all_cookies()


def sign_in(page: Page, person: str, fragment: str = "") -> None:
    """Like a person: the button, the provider's page, the name, the consent, and back."""
    page.open(fragment)
    page.click("#sign-in")
    page.see("input[name=login]").send_keys(person)
    page.driver.find_element(By.NAME, "password").send_keys("anything")
    page.click("button[type=submit]")
    page.until(lambda: page.all("form[action] button[type=submit]"))
    if not page.driver.current_url.startswith(page.address):
        page.click("button[type=submit]")  # consent


def shown_views(page: Page) -> list[str]:
    return [each.text for each in page.all("#nav a") if each.is_displayed()]


@pytest.mark.parametrize(
    ("person", "role", "views", "keys"),
    [
        ("staff.ann", "member", ["Your usage", "Calls", "Keys", "Playground"], ["hers"]),
        (
            "heads.bea",
            "lead",
            ["Overview", "Your usage", "Calls", "Keys", "Bill", "Playground"],
            ["hers", "second"],
        ),
        (
            "ops.cleo",
            "",
            ["Overview", "Your usage", "Calls", "Keys", "Models", "Bill", "Playground", "Changes"],
            ["alice", "hers", "second"],
        ),
    ],
)
def test_people_see_what_is_theirs_at_every_gateway(
    page: Page, gateways: list[Gateway], person: str, role: str, views: list[str], keys: list[str]
) -> None:
    sign_in(page, person)
    page.see("#nav a[aria-current]")
    assert page.driver.current_url.partition("#")[0] == f"{gateways[0].url}/dashboard"
    assert shown_views(page) == views
    if role:
        page.see("#role", role)
    for gateway in gateways:  # a session is good at every gateway
        there = Page(page.driver, gateway.url)
        there.open("keys")
        # Another test makes keys of its own.
        assert (
            there.until(lambda there=there: [row["Key"] for row in there.rows() if row["Key"] in KEYS] or None) == keys
        )

    cookie = page.driver.get_cookie("gateway-session")
    assert cookie is not None
    assert cookie["httpOnly"]
    stolen = f"gateway-session={cookie['value']}"
    assert gateways[1].get("/admin/api/session", key=None, headers={"Cookie": stolen}).status == 200
    page.open()
    page.click("#leave")
    eventually(lambda: "/session/end" in page.driver.current_url)  # the provider asks for confirmation
    for gateway in gateways:
        assert gateway.get("/admin/api/session", key=None, headers={"Cookie": stolen}).status == 401
    page.open()
    page.see("#sign-in")


PAGES = {
    "staff.ann": ["mine", "calls", "quotas", "keys", "keys/hers", "playground"],
    "heads.bea": ["overview", "mine", "calls", "quotas", "keys/second", "teams/crew", "statement"],
}


@pytest.mark.parametrize("person", PAGES)
def test_axe_finds_nothing_on_the_pages_of_members_and_leads(page: Page, person: str) -> None:
    sign_in(page, person)
    page.see("#nav a[aria-current]")

    def look(where: str) -> None:
        page.until(lambda: not page.all("[aria-busy], main .bone"))
        themes: tuple[Scheme, ...] = ("light", "dark")
        for theme in themes:
            page.prefer(theme, is_still=True)
            check(page, f"{where} of {person}, {theme}")

    for view in PAGES[person]:
        page.go(view)
        page.see("dialog .facts" if "/" in view else "main h2")
        look(view)
        page.press(ESCAPE)
        page.gone("dialog")
    page.go("mine")
    page.see("#keys-title")
    page.resize(360, 800)
    look("mine on a phone")
    page.resize(1280, 900)
    if person == "staff.ann":
        page.click("#new-key")
        page.see("#field-id")
        look("a new key")
        page.press(ESCAPE)
        page.click("[data-key=hers] button", "Revoke")
        page.see("dialog button.danger")
        look("a question")
        page.press(ESCAPE)


def test_a_member_makes_pauses_rotates_and_revokes_a_key_of_her_own(page: Page, gateways: list[Gateway]) -> None:
    sign_in(page, "staff.ann")
    page.see("[data-key=hers]")
    page.click("#new-key")
    page.type("#field-id", "hers-too")
    assert [each.text for each in page.all("#field-team option")] == ["crew"]  # the only team of hers
    assert page.attribute("placeholder", "#field-models") == "all that the team allows"
    assert not page.all("#field-on_exceeded")
    page.click("dialog button[type=submit]")
    secret = page.text("#secret")
    assert secret in page.text("dialog .settings")
    page.click("dialog button", "Done")
    page.gone("dialog")
    made = gateways[1].admin("keys/hers-too").json
    assert (made["owner"], made["team"], made["status"]) == ("staff.ann@example.org", "crew", "active")
    page.click("[data-key=hers-too] button", "Pause")
    page.click("dialog button.danger", "Pause")
    page.see("[data-key=hers-too]", "paused")
    assert gateways[1].admin("keys/hers-too").json["status"] == "paused"
    page.click("[data-key=hers-too] button", "Resume")
    page.click("dialog button.danger", "Resume")
    page.see("[data-key=hers-too]", "active")
    page.click("[data-key=hers-too] button", "Rotate")
    page.click("dialog button[type=submit]")
    assert page.text("#secret") != secret
    page.click("dialog button", "Done")
    page.click("#new-key")
    page.type("#field-id", "hers-three")
    page.click("dialog button[type=submit]")
    page.see("dialog .trouble", "as many keys in the team 'crew' as it allows (2")
    page.press(ESCAPE)
    page.gone("dialog")
    page.click("[data-key=hers-too] button", "Revoke")
    page.click("dialog button.danger", "Revoke")
    page.see("[data-key=hers-too]", "revoked")
    actors = [each["actor"].partition(" from ")[0] for each in gateways[0].admin("audit", limit="5").json["data"]]
    assert actors == ["person staff.ann@example.org"] * 5


def test_a_lead_and_an_operator_work_for_a_day(
    page: Page, gateways: list[Gateway], shared_upstream: ScriptedUpstream
) -> None:
    """What is done at the page of the first gateway holds at the second one."""

    def received(name: str) -> Any:
        return gateways[1].admin(f"keys/{name}").json

    sign_in(page, "staff.ann")
    page.see(".shared[data-scope='team:crew'] .quota", "of 100 requests")
    cookie = page.driver.get_cookie("gateway-session")
    assert cookie is not None
    of_member = {"Cookie": f"gateway-session={cookie['value']}"}
    page.forget()
    page.driver.delete_all_cookies()

    sign_in(page, "heads.bea")
    page.see("#role", "lead")
    page.go("keys")
    page.click("#new-key")
    page.type("#field-id", "made-by-lead")
    page.type("#field-owner", "heads.bea@example.org")
    page.click("dialog fieldset button", "Add a quota")
    page.type("dialog .quota-rows .amount", "5")
    page.choose("dialog .quota-rows select", "requests")
    page.click("dialog button[type=submit]")
    secret = page.text("#secret")
    page.click("dialog button", "Done")
    page.gone("#secret")
    assert (received("made-by-lead")["team"], received("made-by-lead")["status"]) == ("crew", "active")
    headers = {"Authorization": f"Bearer {secret}"}
    body = {"model": COMPLETIONS, "prompt": "Hi"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    with shared_upstream.answering(ok_json({"model": "m", "choices": [], "usage": usage})):
        assert gateways[1].post("/v1/completions", body, key=None, headers=headers).status == 200
        refused = gateways[1].post("/v1/completions", {**body, "temperature": 9}, key=None, headers=headers)
    assert refused.status == 400
    page.go("keys/made-by-lead")
    page.see("dialog .quota[data-scope='team:crew']")
    page.click("dialog footer button", "Edit")
    page.type("dialog .quota-rows .amount", "2")
    page.click("dialog form button[type=submit]")
    eventually(lambda: received("made-by-lead")["quotas"] == [{"requests": 2, "per": "day"}])
    page.see("dialog .quota[data-scope='key:made-by-lead']", "of 2 requests")
    page.click("dialog footer button", "Pause")
    page.click("dialog button.danger", "Pause")
    eventually(lambda: received("made-by-lead")["status"] == "paused")
    page.press(ESCAPE)
    eventually(lambda: gateways[1].admin(f"requests/{refused.id}").status == 200)
    page.go(f"calls?id={refused.id}")
    page.see("main table", "decimal_above_max_value")
    page.go("mine")
    page.see("[data-key=made-by-lead]", "paused")
    page.until(lambda: page.attribute("data-value", "[data-figure=requests-in-range] .figure") == "1")
    page.see(".shared[data-scope='team:crew'] .quota")
    assert not page.all("[data-key=hers]")
    page.forget()
    page.driver.delete_all_cookies()

    sign_in(page, "ops.cleo")
    page.go("teams")
    page.click("#new-team")
    page.type("#field-name", "night-shift")
    page.click("dialog button[type=submit]")
    eventually(lambda: gateways[1].admin("teams/night-shift").status == 200)
    page.go("keys/made-by-lead")
    page.click("dialog footer button", "Resume")
    page.click("dialog button.danger", "Resume")
    eventually(lambda: received("made-by-lead")["status"] == "active")
    page.press(ESCAPE)
    for gateway in gateways:
        assert gateway.get("/admin/api/session", key=None, headers=of_member).status == 200
    page.go("keys/hers")
    page.click("dialog footer button", "End sessions of its owner")
    page.click("dialog button.danger", "End sessions")
    eventually(lambda: gateways[1].get("/admin/api/session", key=None, headers=of_member).status == 401)
    assert gateways[0].get("/admin/api/session", key=None, headers=of_member).status == 401
    page.press(ESCAPE)
    page.go("audit")
    page.see("main table", "person staff.ann@example.org")
    done = [(each["action"], each["actor"].partition(" from ")[0]) for each in gateways[1].admin("audit").json["data"]]
    assert done[:6] == [
        ("end_sessions", "person ops.cleo@example.org"), ("resume", "person ops.cleo@example.org"),
        ("create", "person ops.cleo@example.org"), ("pause", "person heads.bea@example.org"),
        ("update", "person heads.bea@example.org"), ("create", "person heads.bea@example.org"),
    ]  # fmt: skip


OF_OTHERS = [
    "teams/rival", "keys/alice", "overview?team=rival", "overview?group=key&key=alice", "overview?group=team",
    "calls?team=rival", "calls?key=alice", "calls/alice", "quotas", "keys/alice?range=7d", "teams/nowhere",
    "keys/nobody", "models", "models/gpt-4o-mini", "upstreams/main", "audit", "mine", "no-such-view/at-all",
]  # fmt: skip
NO_SENTENCE = ("undefined", "null", "NaN", "[object", "TypeError", "Traceback")
SECRET_TOKENS = 7_777


def test_a_lead_who_types_addresses_of_another_team_reads_a_sentence(page: Page, gateways: list[Gateway]) -> None:
    rival = record(ago(1), "alice", team="rival", usage=Usage(SECRET_TOKENS, SECRET_TOKENS, source="reported"))
    plant(gateways[0].config["store"]["url"], [rival])
    sign_in(page, "heads.bea")
    page.see("#nav a[aria-current]")
    for fragment in OF_OTHERS:
        page.go(fragment)
        page.until(lambda: not page.all("[aria-busy], .bone"))
        shown = page.run("return (document.querySelector('dialog') ?? document.querySelector('main')).innerText")
        assert len(shown.split()) >= 4, f"{fragment} shows {shown!r}"
        assert not [each for each in NO_SENTENCE if each in shown], f"{fragment} shows {shown!r}"
        assert not [each for each in ("7,777", "7777", "15,554", "7.78K", "15.6K") if each in shown], fragment
        if fragment.startswith(("teams/rival", "keys/alice")):
            assert "There is no" in page.text("dialog .empty.bad, dialog .why.bad"), shown
        page.press(ESCAPE)
    own = [line for line in page.logged() if line.startswith(page.address)]
    assert not [line for line in own if "Failed to load resource" not in line]


def test_a_link_leads_to_what_it_names_through_the_sign_in(page: Page) -> None:
    sign_in(page, "heads.bea", "calls?outcome=failed")
    page.see("select[name=outcome]")
    page.until(lambda: page.driver.current_url.endswith("#calls?outcome=failed"))
    page.open()
    page.see("#nav a[aria-current=page]")
    assert "outcome" not in page.driver.current_url


def test_a_cancelled_or_late_sign_in_is_a_page_with_the_way_on(page: Page) -> None:
    for query in ("error=access_denied&state=x", "code=a&state=b", ""):
        page.driver.get(f"{page.address}/admin/sign-in/callback?{query}")
        page.see("main [role=alert]", "The sign-in failed: it was not begun in this browser, or too long ago.")
    said = [line for line in page.logged() if "Failed to load resource" not in line]
    assert not said  # the page keeps the policy, and finds its style and picture
    page.click("#again")
    page.see("input[name=login]")


def test_a_person_without_a_group_gets_an_explanation(page: Page) -> None:
    sign_in(page, "stranger")
    page.see("main [role=alert]", "You are in no group that may sign in here.")
    themes: tuple[Scheme, ...] = ("light", "dark")
    for theme in themes:
        page.prefer(theme, is_still=True)
        check(page, f"a failed sign-in, {theme}")
    page.click("#to-dashboard")
    page.see("#sign-in")
