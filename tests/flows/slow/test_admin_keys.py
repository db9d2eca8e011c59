"""Keys, teams and quotas through the admin API, on both stores, with two workers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import ok_json
from tests.flows.client import Raw
from tests.flows.gateway_process import ADMIN_TOKEN, Gateway, key, secret, settings
from tests.flows.steering import Operator, until_all_know, until_all_say, use, window

VIEWER_TOKEN = "viewer-token-that-nobody-may-see"
USAGE = {"prompt_tokens": 10, "completion_tokens": 5}


@pytest.fixture(scope="module", params=["embedded", "redis"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("store")
    if request.param == "embedded":
        yield {"url": f"embedded:{folder / 'data'}"}
        return
    with RedisServer(folder) as server:
        yield {"url": server.url}


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, store: dict[str, Any]) -> Gateway:
    shared_upstream.answer_with(always=ok_json({"choices": [], "usage": USAGE}))
    return start_shared_gateway(
        settings(
            shared_upstream.url,
            store=store,
            server={"workers": 2},
            admin={"viewer_token": VIEWER_TOKEN},
            keys=[key("alice"), key("teamed", team="filed"), key("doomed")],
            teams={"filed": {"quotas": [{"tokens": 10**9, "per": "month"}]}},
            quotas=[{"requests": 10**6, "per": "day"}],
        )
    )


@pytest.fixture
def operator(gateway: Gateway) -> Operator:
    return Operator(gateway)


@pytest.fixture
def viewer(gateway: Gateway) -> Operator:
    return Operator(gateway, VIEWER_TOKEN)


# ------------------------------------------------------------------------------------------------------ made and shown


def test_a_key_is_made_and_serves_at_once(operator: Operator) -> None:
    answer = operator.send("POST", "keys", {"id": "made", "team": "filed", "models": ["gpt-3.5*"], "max_parallel": 3})
    assert (answer.status, answer.headers["cache-control"]) == (201, "no-store")
    made = answer.json
    assert re.fullmatch(r"sk-gw-made-[A-Za-z0-9_-]{43}", made["secret"])
    assert (made["id"], made["team"], made["models"], made["max_parallel"]) == ("made", "filed", ["gpt-3.5*"], 3)
    assert (made["managed_by"], made["status"], len(made["secrets"])) == ("store", "active", 1)
    assert operator.use(made["secret"]).status == 200
    assert operator.use(made["secret"], model="gpt-4o-mini").status == 404
    shown = operator.done("GET", "keys/made")
    assert shown == {name: value for name, value in made.items() if name != "secret"}


def test_a_secret_is_shown_once_and_not_stored(operator: Operator) -> None:
    made = operator.create("silent")
    again = operator.done("POST", "keys/silent/rotate")["secret"]
    received = [
        operator.send("GET", path).body for path in ("keys/silent", "keys?limit=1000", "audit?limit=1000", "usage")
    ]
    for each in (made, again):
        assert not [body for body in received if each.encode() in body]
        for path in operator.gateway.folder.parent.parent.rglob("*"):
            if path.is_file() and path.name != "stdout":
                assert each.encode() not in path.read_bytes(), path
        assert each not in operator.gateway.stdout
        assert hashlib.sha256(each.encode()).hexdigest().encode() not in b"".join(received)


def test_keys_of_file_and_store_are_listed_page_by_page(operator: Operator) -> None:
    for number in range(5):
        operator.create(f"page-{number}", team="filed" if number % 2 else None)
    names = [row["id"] for row in operator.rows("keys?limit=2")]
    assert names == sorted(names)
    assert {"alice", "teamed", *(f"page-{number}" for number in range(5))} <= set(names)
    page = operator.done("GET", "keys?limit=2&after=page-0")
    assert ([row["id"] for row in page["data"]], page["next"]) == (["page-1", "page-2"], "page-2")
    of_team = {row["id"] for row in operator.rows("keys?limit=1&team=filed")}
    assert {"teamed", "page-1", "page-3"} <= of_team
    assert not {"alice", "page-0", "page-2"} & of_team


def test_what_is_not_there_is_said_to_be_not_there(operator: Operator) -> None:
    for method, path in [("GET", "keys/nobody"), ("PATCH", "keys/nobody"), ("DELETE", "keys/nobody"),
                         ("POST", "keys/nobody/rotate"), ("POST", "keys/nobody/reset")]:  # fmt: skip
        assert operator.send(method, path, {}).refusal == (404, "invalid_request_error", None, "key_not_found")
    assert operator.send("GET", "teams/nobody").refusal == (404, "invalid_request_error", None, "team_not_found")
    assert operator.send("GET", "keys/made/secret").status == 404


# ------------------------------------------------------------------------------------------------------------- changed


def test_settings_that_are_named_change_and_all_others_stay(operator: Operator) -> None:
    made = operator.create("changing", max_parallel=5, models=["gpt-4*"], limits={"n": 2})
    assert operator.use(made).status == 404
    changed = operator.done(
        "PATCH", "keys/changing", {"models": ["gpt-3.5*"], "quotas": [{"requests": 2, "per": "day"}]}
    )
    assert (changed["models"], changed["max_parallel"], changed["limits"]) == (["gpt-3.5*"], 5, {"n": 2})
    until_all_know(operator.gateway, made, lambda received: bool(received["quotas"][0]["limit"] == 2))
    assert [operator.use(made).status for _ in range(3)] == [200, 200, 429]
    assert operator.done("PATCH", "keys/changing", {"max_parallel": None})["max_parallel"] is None


def test_rotation_leaves_the_old_secret_its_overlap(operator: Operator) -> None:
    first = operator.create("turning")
    second = operator.done("POST", "keys/turning/rotate", {"overlap_s": 3600})["secret"]
    operator.done("PATCH", "keys/turning", {"max_parallel": 50})  # who knows of this has heard of the rotation
    until_all_know(operator.gateway, second, lambda received: bool(received["quotas"][-1]["limit"] == 50))
    assert (use(operator.gateway, first).status, use(operator.gateway, second).status) == (200, 200)
    shown = operator.done("GET", "keys/turning")["secrets"]
    assert [secret["expires_at"] is None for secret in shown] == [True, False]
    third = operator.done("POST", "keys/turning/rotate")["secret"]
    for old in (first, second):
        until_all_say(operator.gateway, old, 401)
    assert operator.use(third).status == 200


def test_a_revoked_key_is_refused_by_every_worker_and_stays_revoked(operator: Operator) -> None:
    made = operator.create("leaving")
    until_all_say(operator.gateway, made, 200)
    gone = operator.done("DELETE", "keys/leaving")
    assert (gone["status"], gone["revoked_at"] is not None) == ("revoked", True)
    until_all_say(operator.gateway, made, 401)
    assert operator.done("DELETE", "keys/leaving")["revoked_at"] == gone["revoked_at"]
    for method, path in (("PATCH", "keys/leaving"), ("POST", "keys/leaving/rotate")):
        assert operator.send(method, path, {}).refusal == (409, "invalid_request_error", None, "revoked")
    assert operator.send("POST", "keys", {"id": "leaving"}).refusal[3] == "already_exists"


def test_keys_of_the_file_are_read_only_but_can_be_revoked(operator: Operator) -> None:
    for method, path in (("PATCH", "keys/doomed"), ("POST", "keys/doomed/rotate"), ("PATCH", "teams/filed"),
                         ("DELETE", "teams/filed")):  # fmt: skip
        assert operator.send(method, path, {}).refusal == (409, "invalid_request_error", None, "managed_by_file")
    assert operator.send("POST", "keys", {"id": "doomed"}).refusal[3] == "already_exists"
    until_all_say(operator.gateway, secret("doomed"), 200)
    assert operator.done("DELETE", "keys/doomed")["status"] == "revoked"
    until_all_say(operator.gateway, secret("doomed"), 401)


# -------------------------------------------------------------------------------------------------- quotas of the day


def test_twenty_top_ups_at_once_are_all_added(operator: Operator) -> None:
    operator.create("crowded", quotas=[{"requests": 2, "per": "day"}])
    grant = {"requests": 3, "per": "day"}
    with ThreadPoolExecutor(20) as crowd:
        found = list(crowd.map(lambda _: operator.send("POST", "keys/crowded/top_up", grant).status, range(20)))
    assert found == [200] * 20
    (granted,) = operator.done("GET", "keys/crowded")["top_ups"]
    assert granted["amount"] == 60
    changes = operator.done("GET", "audit?limit=100")["data"]
    assert len([row for row in changes if (row["action"], row["name"]) == ("top_up", "crowded")]) == 20


def test_quotas_are_exhausted_topped_up_and_reset(operator: Operator) -> None:
    made = operator.create("spender", quotas=[{"requests": 2, "per": "day"}, {"tokens": 10**6, "per": "month"}])
    assert [operator.use(made).status for _ in range(3)] == [200, 200, 429]
    rows = operator.done("POST", "keys/spender/top_up", {"requests": 1, "per": "day"})["data"]
    assert (window(rows, "requests", "day")["limit"], window(rows, "requests", "day")["used"]) == (3, 2)
    (granted,) = operator.done("GET", "keys/spender")["top_ups"]
    assert (granted["unit"], granted["per"], granted["amount"]) == ("requests", "day", 1)
    until_all_know(operator.gateway, made, lambda received: window(received["quotas"], "requests", "day")["limit"] == 3)
    assert [operator.use(made).status for _ in range(2)] == [200, 429]
    rows = operator.done("POST", "keys/spender/reset", {"unit": "requests"})["data"]
    assert window(rows, "requests", "day")["used"] == 0
    assert window(rows, "tokens", "month")["used"] == 45
    assert [operator.use(made).status for _ in range(4)] == [200, 200, 200, 429]
    assert {row["used"] for row in operator.done("POST", "keys/spender/reset")["data"]} == {0}


def test_windows_of_teams_and_of_the_gateway_have_the_same_two_verbs(operator: Operator) -> None:
    rows = operator.done("POST", "teams/filed/top_up", {"tokens": 5, "per": "month"})["data"]
    assert (rows[0]["scope"], rows[0]["limit"]) == ("team:filed", 10**9 + 5)
    assert operator.done("POST", "teams/filed/reset", {"per": "month"})["data"][0]["used"] == 0
    rows = operator.done("POST", "quotas/top_up", {"requests": 7, "per": "day"})["data"]
    assert (rows[0]["scope"], rows[0]["limit"]) == ("gateway", 10**6 + 7)
    assert operator.done("POST", "quotas/reset", {})["data"][0]["used"] == 0


def test_quotas_that_are_not_there(operator: Operator) -> None:
    operator.create("frugal", quotas=[{"requests": 2, "per": "minute"}])
    asked: list[tuple[str, Any]] = [
        ("keys/frugal/top_up", {"tokens": 5, "per": "day"}), ("keys/frugal/reset", {"unit": "usd"}),
        ("quotas/reset", {"unit": "usd"}), ("teams/filed/top_up", {"usd": 5, "per": "day"}),
    ]  # fmt: skip
    for path, body in asked:
        assert operator.send("POST", path, body).refusal == (404, "invalid_request_error", None, "quota_not_found")


def test_store_keys_stand_in_the_list_of_quotas(operator: Operator) -> None:
    made = operator.create("listed", team="filed", quotas=[{"requests": 9, "per": "month"}])
    assert operator.use(made).status == 200
    rows = operator.done("GET", "quotas?key=listed")["data"]
    assert [(row["key"], row["team"], row["limit"], row["used"]) for row in rows] == [("listed", "filed", 9, 1)]
    everybody = operator.done("GET", "quotas")["data"]
    assert "key:listed" in [row["scope"] for row in everybody]
    assert {row["scope"] for row in operator.done("GET", "quotas?team=filed")["data"]} >= {"team:filed", "key:listed"}


# -------------------------------------------------------------------------------------------------------------- teams


def test_a_team_lives_and_ends(operator: Operator) -> None:
    team = operator.send("POST", "teams", {"name": "crew", "quotas": [{"requests": 1, "per": "day"}]})
    assert (team.status, team.json["managed_by"]) == (201, "store")
    made = operator.create("member", team="crew")
    until_all_say(operator.gateway, made, 200)
    assert [operator.use(made).status for _ in range(2)] == [200, 429]
    assert operator.send("DELETE", "teams/crew").refusal == (409, "invalid_request_error", None, "team_in_use")
    assert operator.done("PATCH", "teams/crew", {"quotas": []})["quotas"] == []
    until_all_know(operator.gateway, made, lambda received: [row["scope"] for row in received["quotas"]] == ["gateway"])
    assert operator.use(made).status == 200
    operator.done("DELETE", "keys/member")
    assert operator.done("DELETE", "teams/crew") == {"object": "team", "name": "crew", "deleted": True}
    assert operator.send("GET", "teams/crew").status == 404
    assert "filed" in [row["name"] for row in operator.rows("teams")]


# -------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("path", "body", "received"),
    [
        ("keys", {}, (400, "id", "missing_required_parameter")),
        ("keys", {"id": "UPPER"}, (400, "id", None)),
        ("keys", {"id": "other"}, (400, "id", None)),
        ("keys", {"id": "x", "team": "nowhere"}, (400, "team", None)),
        ("keys", {"id": "x", "max_parallel": "two"}, (400, "max_parallel", "invalid_value")),
        ("keys", {"id": "x", "quotas": [{"tokens": 1, "requests": 1, "per": "day"}]}, (400, "quotas[0]", None)),
        ("keys", {"id": "x", "quotas": [{"tokens": 1, "per": "day"}] * 2}, (400, "quotas[1]", None)),
        ("keys", {"id": "x", "ips": ["10.0.0.1/8"]}, (400, "ips[0]", None)),
        ("keys", {"id": "x", "expires": "soon"}, (400, "expires", None)),
        ("keys", {"id": "x", "secret": "mine"}, (400, "secret", "unknown_parameter")),
        ("keys", b'{"id": "x", "id": "y"}', (400, "id", "duplicate_parameter")),
        ("keys", b'{"id": "x"', (400, None, None)),
        ("keys", b"[" * 1000, (400, None, None)),
        ("keys", b'"' + b"x" * 70_000 + b'"', (413, None, None)),
        ("keys/alice/rotate", {"overlap_s": 10**9}, (400, "overlap_s", None)),
        ("teams", {"name": "No Name"}, (400, "name", None)),
        ("quotas/top_up", {"requests": 1, "per": "minute"}, (400, "per", "invalid_value")),
    ],
)  # fmt: skip
def test_refusals_say_what_to_mend(operator: Operator, path: str, body: Any, received: tuple[Any, ...]) -> None:
    answer = operator.send("POST", path, body)
    assert (answer.status, answer.error["param"], answer.error["code"]) == received


@pytest.mark.parametrize(
    "path", ["keys?limit=0", "keys?limit=1001", "teams?limit=x", "audit?limit=-1", "audit?before=x"]
)
def test_pages_that_cannot_be_had(operator: Operator, path: str) -> None:
    answer = operator.send("GET", path)
    assert (answer.status, answer.error["param"]) == (400, path.partition("?")[2].partition("=")[0])


def test_a_body_has_to_be_json_and_is_waited_for_when_it_is_wanted(operator: Operator) -> None:
    answer = operator.send("POST", "keys", b'{"id": "x"}', Content_Type="text/plain")
    assert answer.refusal == (400, "invalid_request_error", None, "unsupported_content_type")
    lines = ["POST /admin/api/keys HTTP/1.1", "Host: x", "Expect: 100-continue", "Content-Length: 2"]
    for token, begins in ((ADMIN_TOKEN, b"HTTP/1.1 100 Continue"), ("no-token-of-this-gateway", b"HTTP/1.1 401")):
        with Raw(operator.gateway.port) as client:
            head = [*lines, "Content-Type: application/json", f"Authorization: Bearer {token}", "", ""]
            client.send("\r\n".join(head).encode())
            assert client.socket.recv(100).startswith(begins)


# ------------------------------------------------------------------------------------------------------------ a viewer


READS = ("usage", "calls", "quotas", "upstreams", "keys", "keys/alice", "teams", "teams/filed")
CHANGES = (("POST", "keys"), ("PATCH", "keys/alice"), ("DELETE", "keys/alice"), ("POST", "keys/alice/rotate"),
           ("POST", "keys/alice/reset"), ("POST", "keys/alice/top_up"), ("POST", "teams"), ("PATCH", "teams/filed"),
           ("DELETE", "teams/filed"), ("POST", "teams/filed/reset"), ("POST", "quotas/reset"),
           ("POST", "quotas/top_up"), ("POST", "reload"), ("GET", "audit"))  # fmt: skip


@pytest.mark.parametrize("path", READS)
def test_a_viewer_sees_what_the_operator_sees(operator: Operator, viewer: Operator, path: str) -> None:
    mine, theirs = operator.send("GET", path), viewer.send("GET", path)
    assert (mine.status, theirs.status) == (200, 200)


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_a_viewer_changes_nothing_and_gets_a_hint(viewer: Operator, method: str, path: str) -> None:
    answer = viewer.send(method, path, {} if method in ("POST", "PATCH") else None)
    assert answer.refusal == (403, "invalid_request_error", None, "read_only_token")
    assert "Use the admin token" in answer.error["message"]
    assert operator_sees_alice(viewer)


def operator_sees_alice(viewer: Operator) -> bool:
    return bool(viewer.done("GET", "keys/alice")["status"] == "active")


# ------------------------------------------------------------------------------------------------------------- the log


def test_every_change_is_in_the_audit_log(operator: Operator) -> None:
    operator.create("watched", max_parallel=1)
    operator.done("PATCH", "keys/watched", {"max_parallel": 2})
    operator.done("POST", "keys/watched/rotate", {"overlap_s": 60})
    operator.done("DELETE", "keys/watched")
    assert operator.send("PATCH", "keys/watched", {"max_parallel": 3}).status == 409
    received = [row for row in operator.done("GET", "audit?limit=50")["data"] if row["name"] == "watched"]
    assert [row["action"] for row in received] == ["revoke", "rotate", "update", "create"]
    assert {row["actor"] for row in received} == {"admin.token from 127.0.0.1"}
    update = received[2]
    assert (update["kind"], update["before"]["max_parallel"], update["after"]["max_parallel"]) == ("key", 1, 2)
    first = operator.done("GET", "audit?limit=1")
    second = operator.done("GET", f"audit?limit=1&before={first['next']}")
    assert [page["data"][0]["action"] for page in (first, second)] == ["revoke", "rotate"]


# -------------------------------------------------------------------------------------------------------- wrong tokens


def test_guesses_at_the_token_are_slowed_down_and_counted_and_the_operator_is_not_locked_out(gateway: Gateway) -> None:
    """Last in this file: the guesser is at the same address."""
    operator, guesser = Operator(gateway), Operator(gateway, "a-guess-at-the-admin-token")
    for _ in range(20):
        assert operator.send("GET", "teams").status == 200  # by now every worker knows where the operator is
    answers = [guesser.send("GET", "usage") for _ in range(60)]
    assert {answer.status for answer in answers} == {401, 429}
    slowed = next(answer for answer in answers if answer.status == 429)
    assert slowed.refusal == (429, "requests", None, "too_many_wrong_tokens")
    assert int(slowed.headers["retry-after"]) >= 1
    assert {operator.send("GET", "teams").status for _ in range(20)} == {200}
    assert gateway.metric("gateway_rejections_total", reason="too_many_wrong_tokens") > 0
    assert gateway.metric("gateway_rejections_total", reason="wrong_token") >= 5
