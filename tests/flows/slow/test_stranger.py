"""A stranger with the token and the session of a lead tries to read or change what is of another team.

Two gateways on one Redis. Everything of the rival team contains a mark or an odd number that no request of the stranger
contains, so that a mark in an answer is a leak, in whatever place. In the end nothing of the rival team is changed.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import pytest

from gateway.config import build
from gateway.web.wings import admin_operations, permissions
from gateway.wings.people import sessions
from gateway.wings.people.sessions import Session
from gateway.wings.people.settings import OidcSettings
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes import responses_api as api
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import ok_json
from tests.flows.client import Answer
from tests.flows.gateway_process import ADMIN_TOKEN, COMPLETIONS, Gateway, eventually, key, model, run, settings

from .test_reload import change

MARK = "zz-private"
NUMBERS = re.compile(r"(?<![\w.])(?:7,?919|15,?838|23,?757|31,?676|31,?718|39,?595|39,?637)(?!\w|\.\d*[1-9])")
"""Tokens of one to five calls of the rival team, and of all, as whole numbers: times and ids contain their digits."""
RIVALS = ("rival", "rival-file", "rival-one")
GONE, MOVED, LEFT, REFUSED = "gone-file", "ours-moved", "left", "refused-only"
"""A key that left the file, one that came from the other team, one that went to it, and one of it that has refusals
alone. Their names are no secret."""
LEAD_TOKEN = "lead-token-0123456789"
METRICS_TOKEN = "metrics-token-0123456789"
SESSION_KEY = b"0123456789abcdef0123456789abcdef"
PERSON = "head@example.org"
OIDC = {
    "issuer": "http://127.0.0.1:9",
    "client_id": "gateway",
    "session_key": SESSION_KEY.decode(),
    "redirect_url": "http://127.0.0.1/admin/sign-in/callback",
}
RESPONSES = f"{MARK}-responses"
PRIVATE_MODEL = f"{MARK}-model"


class World(NamedTuple):
    """The gateways, and what the stranger may have heard of: ids of requests and of a response."""

    gateways: list[Gateway]
    request_ids: list[str]
    response_id: str
    cursors: list[str]
    left_response_id: str
    """Of a key that the team of the stranger has now."""


def config(upstream: str, store: str) -> dict[str, Any]:
    rival: dict[str, Any] = {
        "team": "rival",
        "owner": f"{MARK}-owner@example.org",
        "note": f"{MARK}-note",
        "labels": {"cost-center": f"{MARK}-label"},
        "models": [f"{MARK}-*"],
    }
    return settings(
        upstream,
        store={"url": store},
        oidc=OIDC,
        metrics={"token": METRICS_TOKEN},
        admin={"tokens": {"head": {"token": LEAD_TOKEN, "role": "lead", "team": "ours"}}},
        models={
            COMPLETIONS: model("completions"),
            "own-responses": model("responses"),
            PRIVATE_MODEL: model("completions"),
            RESPONSES: model("responses"),
        },
        keys=[
            key("ours-file", team="ours", models=[COMPLETIONS, "own-responses"]),
            key("rival-file", quotas=[{"tokens": 1_000_000, "per": "day"}], **rival),
            key(GONE, **rival),
        ],
        teams={
            "ours": {"quotas": [{"tokens": 500_000, "per": "day"}]},
            "rival": {"quotas": [{"tokens": 900_000, "per": "day"}]},
        },
    )


@pytest.fixture(scope="module")
def world(
    start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        gateways = [start_shared_gateway(config(shared_upstream.url, server.url)) for _ in range(2)]
        for name, team, more in (
            ("ours-one", "ours", {"models": [COMPLETIONS]}),
            ("rival-one", "rival", {"models": [f"{MARK}-*"], "owner": f"{MARK}-owner@example.org", "note": MARK}),
        ):
            made = operator(gateways[0], "POST", "keys", {"id": name, "team": team, **more})
            assert made.status == 201, made
        shared_upstream.answer_with(
            always=ok_json({"model": "m", "choices": [], "usage": {"prompt_tokens": 7900, "completion_tokens": 19}})
        )
        marks = {"user": f"{MARK}-user", "prompt": "x" * 500}
        headers = {"x-gateway-tag-project": f"{MARK}-tag", "X-Client-Request-Id": f"{MARK}-client-id"}
        ids = [
            gateway.complete("rival-file", model=PRIVATE_MODEL, **marks).id
            if number
            else gateway.post(
                "/v1/completions", {"model": PRIVATE_MODEL, **marks}, key="rival-file", headers=headers
            ).id
            for gateway in gateways
            for number in range(2)
        ]
        refused = gateway_refuses(gateways[0])
        shared_upstream.answer_with(
            always=ok_json({"model": "m", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
        )
        for gateway in gateways:
            assert gateway.complete("ours-file", user="our-user").status == 200
        response_id = f"resp_{7919:048x}"
        shared_upstream.answer_with(ok_json(api.response([api.message("Hi")], id=response_id)))
        made = gateways[0].post("/v1/responses", {"model": RESPONSES, "input": "Hi", "store": True}, key="rival-file")
        assert made.json["id"] == response_id
        shared_upstream.answer_with(always=ok_json(api.response([api.message("Hi")])))
        left = move_keys(gateways, shared_upstream)
        cursors = []
        for name in ("calls?limit=1", "refusals?limit=1", "usage?limit=1&group_by=team,key", "keys?limit=1"):
            cursors += [str(gateways[0].admin(name).json["next"])]
        yield World(gateways, [*ids, refused, made.id], response_id, cursors, left)


def move_keys(gateways: list[Gateway], shared_upstream: ScriptedUpstream) -> str:
    """A key of the other team comes, one of the own team goes, one leaves the file; each was used before. Returns the
    id of a response that the key that comes has kept."""
    rival = {"team": "rival", "models": [f"{MARK}-*"], "labels": {"cost-center": f"{MARK}-label"}}
    secrets = {}
    for name, more in ((MOVED, rival), (REFUSED, rival), (LEFT, {"team": "ours"})):
        made = operator(gateways[0], "POST", "keys", {"id": name, **more})
        assert made.status == 201, made
        secrets[name] = {"Authorization": f"Bearer {made.json['secret']}"}
    response_id = f"resp_{15838:048x}"
    shared_upstream.answer_with(ok_json(api.response([api.message(MARK)], id=response_id)))
    body = {"model": RESPONSES, "input": MARK, "store": True, "user": f"{MARK}-user"}
    assert gateways[0].post("/v1/responses", body, key=None, headers=secrets[MOVED]).status == 200
    unknown = {"model": f"{MARK}-nowhere", "prompt": "x"}
    for name in (MOVED, REFUSED):
        assert gateways[0].post("/v1/completions", unknown, key=None, headers=secrets[name]).status == 404
    shared_upstream.answer_with(
        always=ok_json({"model": "m", "choices": [], "usage": {"prompt_tokens": 7900, "completion_tokens": 19}})
    )
    call = {"model": PRIVATE_MODEL, "prompt": MARK, "user": f"{MARK}-user"}
    assert gateways[0].post("/v1/completions", call, key=GONE).status == 200
    shared_upstream.answer_with(
        always=ok_json({"model": "m", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
    )
    call = {"model": COMPLETIONS, "prompt": "x"}
    assert gateways[0].post("/v1/completions", call, key=None, headers=secrets[LEFT]).status == 200
    eventually(lambda: gateways[0].usage(group_by="key", key=LEFT) or False)
    changes: tuple[tuple[str, Mapping[str, Any]], ...] = (
        (MOVED, {"team": "ours", "models": ["*"], "labels": {}}),
        (LEFT, {"team": "rival", "labels": {"cost-center": f"{MARK}-label"}}),
    )
    for name, wanted in changes:
        assert operator(gateways[0], "PATCH", f"keys/{name}", wanted).status == 200
    for gateway in gateways:
        change(gateway, keys=[each for each in gateway.config["keys"] if each["id"] != GONE])
    return response_id


def gateway_refuses(gateway: Gateway) -> str:
    answer = gateway.complete("rival-file", model=f"{MARK}-nowhere", user=f"{MARK}-user")
    assert answer.status == 404
    return answer.id


def operator(gateway: Gateway, method: str, path: str, body: Any = None) -> Answer:
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    return gateway.send(method, f"/admin/api/{path}", body, key=None, headers=headers)


def session(role: str = "lead", team: str | None = "ours", rules: str | None = None) -> Session:
    """As the sign-in makes it."""
    found = build(
        {
            "upstreams": {"u": {"base_url": "http://127.0.0.1:9/v1", "api_key": "k"}},
            "models": {"m": {"routes": [{"upstream": "u"}], "max_output_tokens": 1}},
            "oidc": OIDC,
        }
    ).section(OidcSettings)
    return Session("a-session", PERSON, role, team, rules or found.rules, time.time() + 3600)  # type: ignore[arg-type]


def cookie(text: str, csrf: str | None = None) -> dict[str, str]:
    return {"Cookie": f"gateway-session={text}"} | ({} if csrf is None else {"X-CSRF-Token": csrf})


def as_lead(by: str) -> dict[str, str]:
    if by == "token":
        return {"Authorization": f"Bearer {LEAD_TOKEN}"}
    found = session()
    return cookie(found.encode(SESSION_KEY), found.csrf_token(SESSION_KEY))


WAYS = ("token", "session")


def try_all(
    world: World,
    method: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] = {},
    given: str = "",
    ways: Iterable[int] = range(len(WAYS)),
) -> list[Answer]:
    """The answers to both credentials of the lead, or to those of `ways`. They must contain nothing of the rival team
    but what was `given`."""
    answers = []
    for at in ways:
        by = WAYS[at]
        gateway = world.gateways[at % len(world.gateways)]
        answer = gateway.send(method, path, body, key=None, headers={**as_lead(by), **headers})
        check_answer(answer, given, f"{by}: {method} {path} {body}")
        answers.append(answer)
    return answers


def check_answer(answer: Answer, given: str, what: str) -> None:
    assert answer.status < 500, (what, answer)
    text = answer.body.decode(errors="replace")
    if given:
        text = text.replace(json.dumps(given)[1:-1], "").replace(given, "")
    assert not private_words(text), (what, text[:2000])
    assert "rival" in given.lower() or "rival" not in text, (what, text[:2000])


def private_words(text: str) -> list[str]:
    return [MARK] * (MARK in text) + NUMBERS.findall(text)


VARIANTS = (
    "{}",
    "{} ",
    " {}",
    "{}\t",
    "{},ours",
    "ours,{}",
    "{}*",
    "key:{}",
    "team:{}",
    "../{}",
    "./{}",
    "{}/",
    "{}\x00",
    "{}'--",
    '["{}"]',
    '{{"key":"{}"}}',
    "%72ival",
)


def guesses(world: World) -> list[str]:
    """A team and a key in each spelling, and the other names as they are."""
    spelt = [
        variant.replace("{{", "{").replace("}}", "}").replace("{}", name)
        for name in ("rival", "rival-one")
        for variant in VARIANTS
    ]
    found = [*spelt, *RIVALS, "RIVAL", "Rival-One", "\uff52ival"]
    others = ["", "*", "%", "_", "null", "None", "[]", "' OR '1'='1", "-1", "0", "99999999999999999999"]
    return [*found, *others, *world.request_ids, *world.cursors]


@pytest.mark.timeout(400)
def test_no_parameter_of_a_report_leads_to_another_team(world: World) -> None:
    """Each value with one of the credentials, by turns: both lead to the same role and team."""
    tried, turns = 0, itertools.cycle([0, 1])
    for (method, path), operation in admin_operations().items():
        if method != "GET" or "{" in path or "lead" not in permissions()[method, path]:
            continue
        names = [each["name"] for each in operation.parameters if each["in"] == "query"]
        forms = [{}, {"format": "csv"}] if "format" in names else [{}]
        for name, value, form in itertools.product(names, guesses(world), forms):
            if form and (name == "format" or value not in RIVALS):
                continue  # the form of an answer does not change how a parameter is read
            asked = f"{path}?{urlencode({**form, name: value})}"
            (answer,) = try_all(world, method, asked, given=value, ways=[next(turns)])
            if name in ("key", "team") and "ours" not in value and value != "":
                assert answer.status in (400, 404), (name, value)
            tried += 1
        for one, two in (("ours-one", "rival-one"), ("rival-one", "ours-one")):
            if "key" in names:
                try_all(world, method, f"{path}?key={one}&key={two}", given="rival-one")
                try_all(world, method, f"{path}?key=ours-one&team=rival&key={two}", given="rival-one")
                try_all(world, method, f"{path}?KEY={two}&key={one}", given="rival-one")
    assert tried > 1000


def test_no_filter_by_what_the_rival_sent_finds_its_calls(world: World) -> None:
    """Even who knows the values."""
    for text in (f"{MARK}-user", f"project:{MARK}-tag", PRIVATE_MODEL, "main", *world.request_ids):
        for name in ("user", "tag", "model", "upstream", "id"):
            for path in ("calls", "refusals", "usage"):
                for answer in try_all(world, "GET", f"/admin/api/{path}?{urlencode({name: text})}", given=text):
                    assert answer.status in (200, 400)


def test_every_grouping_has_the_own_rows_alone(world: World) -> None:
    groups = (
        "key",
        "team",
        "model",
        "upstream",
        "endpoint",
        "day",
        "month",
        "hour",
        "user",
        "tag:project",
        "label:cost-center",
        "",
    )
    totals = set()
    for path in ("usage", "latency"):
        for one, two in itertools.product(groups, groups):
            for more in ("", "&format=csv", "&limit=1000", "&since=2020-01-01&until=2099-01-01"):
                asked = urlencode({"group_by": ",".join(dict.fromkeys(each for each in (one, two) if each))})
                for answer in try_all(world, "GET", f"/admin/api/{path}?{asked}{more}"):
                    if answer.status == 200 and path == "usage" and not (one or two or more):
                        totals.add(answer.json["data"][0]["requests"])
    assert totals == {3}


def test_no_path_leads_to_an_object_of_another_team(world: World) -> None:
    before = snapshot(world)
    bodies: Mapping[str, Any] = {
        "POST /admin/api/keys/{id}/top_up": {"tokens": 5, "per": "day"},
        "PATCH /admin/api/keys/{id}": {"note": "x"},
        "POST /admin/api/teams/{name}/top_up": {"tokens": 5, "per": "day"},
        "PATCH /admin/api/teams/{name}": {"quotas": []},
        "POST /admin/api/quotas/top_up": {"tokens": 5, "per": "day"},
    }
    for method, path in admin_operations():
        if "{" not in path:
            continue
        place = path[: path.index("{")]
        rest = path[path.index("}") + 1 :]
        for name in [*RIVALS, *world.request_ids, world.response_id]:
            for spelt in (
                name,
                quote(name, safe="").replace("r", "%72"),
                name.upper(),
                f"{name}%20",
                f"ours-one%2F..%2F{name}",
                f"ours-one/../{name}",
                f".%2F{name}",
                f"{name};x=1",
                f"{name}%00",
                f"{name}%2F",
                f"%2e%2e/keys/{name}",
                f"{name}?key=ours-one",
                f"{name}?team=ours",
            ):
                for answer in try_all(
                    world, method, f"{place}{spelt}{rest}", bodies.get(f"{method} {path}"), given=name
                ):
                    assert answer.status in (400, 403, 404, 405), (method, spelt, answer)
    assert snapshot(world) == before


def test_no_change_reaches_another_team(world: World) -> None:
    before = snapshot(world)
    bodies: list[Any] = [
        {"team": "rival"},
        {"team": "RIVAL"},
        {"team": None},
        {"team": ["rival"]},
        {"team": {"name": "rival"}},
        {"Team": "rival"},
        {"on_exceeded": "shadow"},
        {"id": "rival-one"},
        {"team": "ours", "key": "rival-one"},
        {"settings": {"team": "rival"}},
        {"team": "rival "},
        {"team": ""},
        b'{"team": "ours", "team": "rival"}',
        b'{"team": "rival", "team": "ours"}',
        b'{"t\\u0065am": "rival"}',
    ]
    for body in bodies:
        for answer in try_all(world, "PATCH", "/admin/api/keys/ours-one", body, given="rival-one"):
            assert answer.status in (400, 403, 409), (body, answer)
        whole = {"id": f"climber-{len(str(body))}", **body} if isinstance(body, dict) else body
        for answer in try_all(world, "POST", "/admin/api/keys", whole, given="rival-one"):
            assert answer.status in (400, 403, 409), (body, answer)
    for answer in try_all(world, "POST", "/admin/api/teams", {"name": "ours-too"}):
        assert answer.status == 403
    for path in ("quotas/reset", "quotas/top_up", "reload"):
        for answer in try_all(world, "POST", f"/admin/api/{path}", {}):
            assert answer.status == 403
    for path in ("audit", "live", "upstreams", "models", "reload"):
        for answer in try_all(world, "GET", f"/admin/api/{path}"):
            assert answer.status == 403
    assert snapshot(world) == before


def test_a_key_with_the_owner_of_a_rival_reads_nothing_of_hers(world: World) -> None:
    made = [
        gateway.send(
            "POST",
            "/admin/api/keys",
            {"id": f"borrowed-{at}", "owner": f"{MARK}-owner@example.org"},
            key=None,
            headers=as_lead(by),
        )
        for at, (gateway, by) in enumerate(zip(world.gateways, WAYS, strict=True))
    ]
    for answer, gateway in itertools.product(made, world.gateways):
        assert answer.status == 201
        headers = {"Authorization": f"Bearer {answer.json['secret']}"}
        for path in (
            "usage",
            "usage?group_by=user",
            "calls",
            "refusals",
            "quotas",
            "keys",
            "latency",
            "session",
            "keys/rival-one",
            "usage?key=rival-file",
            f"requests/{world.request_ids[0]}",
        ):
            received = gateway.send("GET", f"/admin/api/{path}", key=None, headers=headers)
            text = received.body.decode().replace(f"{MARK}-owner@example.org", "").replace("rival-one", "")
            assert not private_words(text), (path, text)
            assert "rival" not in text.replace("rival-file", ""), (path, text)
    for at, gateway in enumerate(world.gateways):
        assert operator(gateway, "POST", f"keys/borrowed-{at}/delete").status == 200


def test_no_id_that_was_used_is_made_again(world: World) -> None:
    """A new key of such an id would read what the former one has left."""
    for gateway, by in itertools.product(world.gateways, WAYS):
        made = gateway.send("POST", "/admin/api/keys", {"id": GONE}, key=None, headers=as_lead(by))
        assert (made.status, made.error["code"]) == (409, "id_was_used")
        made = gateway.send("POST", "/admin/api/keys", {"id": REFUSED}, key=None, headers=as_lead(by))
        assert (made.status, made.error["code"]) == (409, "already_exists")
        gone = operator(gateway, "POST", f"keys/{REFUSED}/delete")
        assert (gone.status, gone.error["code"]) == (409, "key_was_used")
    env = {**os.environ, "GATEWAY_URL": world.gateways[0].url, "GATEWAY_TOKEN": LEAD_TOKEN}
    ended = run("keys", "create", "--id", GONE, env=env)
    assert (ended.returncode, "There was a key" in ended.stderr) == (1, True), ended


def test_an_operator_reads_what_is_private(world: World) -> None:
    text = operator(world.gateways[0], "GET", "usage?group_by=team,user").body.decode()
    assert private_words(text) == [MARK, "39637"], text


def test_a_key_that_has_come_brings_nothing_along(world: World) -> None:
    rotated = world.gateways[0].send("POST", f"/admin/api/keys/{MOVED}/rotate", {}, key=None, headers=as_lead("token"))
    assert rotated.status == 200
    headers = {"Authorization": f"Bearer {rotated.json['secret']}"}
    for gateway in world.gateways:
        for path in (
            "usage",
            "usage?group_by=team,key,user,model",
            "usage?group_by=label:cost-center",
            "usage?format=csv",
            "calls",
            "calls?format=csv",
            f"calls?key={MOVED}",
            f"usage?key={MOVED}&group_by=user",
            "refusals",
            "latency?group_by=model",
            "keys",
            "quotas",
        ):
            for who in (headers, as_lead("session")):
                received = gateway.send("GET", f"/admin/api/{path}", key=None, headers=who)
                assert received.status == 200, (path, received)
                check_answer(received, "", path)
        for method, rest in (("GET", ""), ("GET", "/input_items"), ("POST", "/cancel"), ("DELETE", "")):
            path = f"/v1/responses/{world.left_response_id}{rest}"
            foreign = gateway.send(method, path, key=None, headers=headers)
            unknown = gateway.send(method, f"/v1/responses/resp_{8:048x}{rest}", key=None, headers=headers)
            assert (foreign.status, foreign.error["code"]) == (unknown.status, unknown.error["code"]) == (404, None)
        body = {"model": "own-responses", "input": "Hi", "previous_response_id": world.left_response_id}
        assert gateway.post("/v1/responses", body, key=None, headers=headers).status == 404


def test_labels_of_a_key_that_has_left_are_not_shown(world: World) -> None:
    for answer in try_all(world, "GET", "/admin/api/usage?group_by=label:cost-center"):
        assert answer.status == 200
    assert MARK in operator(world.gateways[0], "GET", "usage?group_by=label:cost-center").body.decode()


def test_no_key_gets_before_those_of_other_teams(world: World) -> None:
    for name, value in (("priority", "interactive"), ("weight", 1000), ("max_wait_s", 600)):
        for answer in try_all(world, "PATCH", "/admin/api/keys/ours-one", {name: value}):
            assert (answer.status, answer.error["param"]) == (403, name)
        for answer in try_all(world, "POST", "/admin/api/keys", {"id": "climber", name: value}):
            assert (answer.status, answer.error["param"]) == (403, name)


def test_a_response_of_another_key_is_not_there(world: World) -> None:
    for gateway in world.gateways:
        for method, rest in (
            ("GET", ""),
            ("DELETE", ""),
            ("POST", "/cancel"),
            ("GET", "/input_items"),
            ("GET", "?stream=true"),
        ):
            for name in (world.response_id, world.response_id.upper(), quote(world.response_id).replace("r", "%72")):
                foreign = gateway.send(method, f"/v1/responses/{name}{rest}", key="ours-file")
                unknown = gateway.send(method, f"/v1/responses/resp_{8:048x}{rest}", key="ours-file")
                assert (foreign.status, foreign.error["code"]) == (unknown.status, unknown.error["code"])
                check_answer(foreign, world.response_id, rest)
        body = {"model": "own-responses", "input": "Hi", "previous_response_id": world.response_id}
        assert gateway.post("/v1/responses", body, key="ours-file").status in (400, 404)
        received = gateway.get("/v1/models", key="ours-file")
        check_answer(received, "", "models")
    assert world.gateways[1].send("GET", f"/v1/responses/{world.response_id}", key="rival-file").status == 200


def test_pages_without_a_role_show_nothing(world: World) -> None:
    for path in ("/metrics", "/metrics?key=rival-one"):
        for answer in try_all(world, "GET", path, given="rival-one"):
            assert answer.status in (401, 403)
    for path in (
        "/",
        "/dashboard",
        "/openapi.json",
        "/healthz",
        "/readyz",
        "/docs",
        "/v1/key",
        "/admin",
        "/admin/api",
        "/admin/api/",
        "//admin/api/audit",
        "/admin//api/audit",
        "/ADMIN/api/audit",
        "/admin/api/audit/",
        "/admin/api/../api/audit",
        "/admin/api/%61udit",
        "/admin/sign-in/callback?state=x&code=y",
    ):
        try_all(world, "GET", path)
        try_all(world, "HEAD", path)
    for name in (
        "X-HTTP-Method-Override",
        "X-Original-URL",
        "X-Rewrite-URL",
        "X-Forwarded-User",
        "X-Remote-User",
        "X-Team",
    ):
        for answer in try_all(world, "GET", "/admin/api/session", headers={name: "rival"}):
            assert (answer.json["role"], answer.json["team"]) == ("lead", "ours")
        for answer in try_all(world, "GET", "/admin/api/keys/rival-one", headers={name: "DELETE"}, given="rival-one"):
            assert answer.status == 404
    for method in ("OPTIONS", "TRACE", "PUT", "MOVE"):
        for answer in try_all(world, method, "/admin/api/keys/rival-one", given="rival-one"):
            assert answer.status >= 400


def test_a_session_cannot_become_another(world: World) -> None:
    good = session().encode(SESSION_KEY)
    body, _, signature = good.partition(".")
    stronger = session("operator", None)
    forged = [
        f"{stronger.encode(SESSION_KEY).partition('.')[0]}.{signature}",
        stronger.encode(b"another-key-another-key-another!"),
        stronger.encode(b""),
        session("lead", "rival", rules="those-of-yesterday").encode(SESSION_KEY),
        session("owner").encode(SESSION_KEY),
        sessions.sign("sign-in", stronger._asdict(), SESSION_KEY),
        sessions.sign("csrf", stronger._asdict(), SESSION_KEY),
        session()._replace(exp=time.time() - 1).encode(SESSION_KEY),
        body,
        f"{body}.",
        f".{signature}",
        f"{body}.{signature}.{signature}",
        f"{body}.{signature.upper()}",
        "null",
        "{}",
        *(f"{body[:at]}{'A' if body[at] != 'A' else 'B'}{body[at + 1 :]}.{signature}" for at in range(0, len(body), 7)),
    ]
    for gateway, text in itertools.product(world.gateways, forged):
        answer = gateway.get("/admin/api/usage?group_by=team", key=None, headers=cookie(text))
        assert answer.status == 401, (text, answer)
        check_answer(answer, "", text)
    for gateway, csrf in itertools.product(
        world.gateways, (None, "", "x", stronger._replace(id="other").csrf_token(SESSION_KEY))
    ):
        answer = gateway.post("/admin/api/keys/ours-one/pause", {}, key=None, headers=cookie(good, csrf))
        assert (answer.status, answer.error["code"]) == (403, "csrf_token_missing")
    # A token beside the cookie: the token counts, and neither lends the other its role.
    both = {**cookie(good), "Authorization": "Bearer lead-token-9876543210"}
    assert world.gateways[0].get("/admin/api/usage", key=None, headers=both).status == 401


def test_commands_over_the_network_show_the_own_team(world: World, tmp_path: Path) -> None:
    tried = [
        ["usage"],
        ["usage", "--by", "team,key"],
        ["usage", "--by", "user"],
        ["usage", "--by", "label:cost-center"],
        ["calls"],
        ["refusals"],
        ["keys", "list"],
        ["teams", "list"],
        ["quotas"],
        ["audit"],
        ["upstreams"],
        ["keys", "show", "rival-one"],
        ["teams", "show", "rival"],
        ["usage", "--key", "rival-one"],
        ["calls", "--key", "rival-file"],
        ["refusals", "--key", "rival-file"],
        ["calls", "--id", world.request_ids[0]],
        ["keys", "pause", "rival-one"],
        ["keys", "rotate", "rival-one"],
        ["teams", "update", "rival", "--usd", "1/day"],
    ]
    before = snapshot(world)
    for gateway, arguments in zip(itertools.cycle(world.gateways), tried, strict=False):
        env = {**os.environ, "GATEWAY_URL": gateway.url, "GATEWAY_TOKEN": LEAD_TOKEN}
        ended = run(*arguments, env=env)
        given = next((each for each in arguments if each in (*RIVALS, *world.request_ids)), "")
        text = (ended.stdout + ended.stderr).replace(given or "\0", "")
        assert "Traceback" not in text
        assert not private_words(text), (arguments, text)
        assert given or "rival" not in text, (arguments, text)
        assert not given or ended.returncode != 0 or not ended.stdout.strip() or "no" in text.lower(), (arguments, text)
    assert snapshot(world) == before


def snapshot(world: World) -> list[Any]:
    """All of the rival team, as an operator sees it at each gateway."""
    found: list[Any] = []
    for gateway in world.gateways:
        for path in ("keys?team=rival", "teams/rival", "quotas?team=rival", "usage?team=rival&group_by=key,model,user"):
            answer = operator(gateway, "GET", path)
            assert answer.status == 200, answer
            found += [
                {name: row[name] for name in row if name != "reset_s"} for row in answer.json.get("data", [answer.json])
            ]
        log = operator(gateway, "GET", "audit?limit=1000").json["data"]
        mine = [row for row in log if "rival" in json.dumps(row) and ("head" in row["actor"] or PERSON in row["actor"])]
        assert mine == []
    return found
