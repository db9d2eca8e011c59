"""Compares the records that the upstream, the clients and the gateway each have of the same calls.

    seller = Seller()
    upstream.answer_with(always=seller)
    callers = Callers()
    callers.call(gateway.port)                                # or: with callers.at_work(lambda: gateway.port): ...
    check_books(gateway, seller, callers.received)

Each call has its own number. The client sends it as X-Client-Request-Id, which is in the gateway's record, and in the
prompt, which the upstream reads. The usage that the upstream reports is computed from the number.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gateway.store import SILENT_S
from tests.fakes.scripted import CHUNKED, Wire, chunk, event

from .client import TIMEOUT_S
from .gateway_process import COMPLETIONS, Gateway, key, model, secret

WHO = ("alice", "bob")

PROMPT_CHARACTERS = 40
ESTIMATE = (PROMPT_CHARACTERS // 4, 50)
"""The estimated usage of a call whose usage is unknown: its prompt at four bytes a token, and its max_tokens."""

EVENTS = 4
"""The number of a stream's events before the one with its usage."""

STREAM_PIECES = EVENTS + 3
"""In how many pieces a stream comes: a head, its events, its usage, and its end."""

NOBODY_HOLDS = -1
YEARS_10_S = 315_360_000
"""A rate over so long a time leaks nothing that a test could see: it has to be as exact as a calendar window."""

QUOTAS: list[dict[str, Any]] = [
    {"tokens": 5_000_000, "per": "day"},
    {"requests": 1_000_000, "per": "month"},
    {"tokens": 1_500_000, "per": YEARS_10_S},
    {"usd": 1000, "per": "month"},
]

ACCOUNTS = {
    "models": {COMPLETIONS: model("completions", price={"input": 1, "output": 2})},
    "keys": [key(who, quotas=QUOTAS, max_parallel=500) for who in WHO] + [key("single", max_parallel=1)],
    "quotas": [{"tokens": 9_000_000, "per": "day"}],
}
"""Limits for a configuration: every kind of window, large enough for all calls."""

SETTLED_S = SILENT_S + 25.0
"""The longest time until the sums are final: the leases of a killed worker may be closed only after `SILENT_S`."""


def tokens_of(number: int) -> tuple[int, int]:
    """Prompt and completion tokens of a call, as its upstream reports them; never those of the estimate."""
    return 3 + number % 89, 1 + number % 31


# --------------------------------------------------------------------------------------------------------- the upstream


@dataclass
class Sale:
    """What the upstream knows of one call."""

    pieces: int = 0
    """Of its answer, handed to the network."""
    is_whole: bool = False
    """The last piece, too."""


class Seller:
    """A behaviour of the scripted upstream that answers every call and writes down what it has sold.

    The prompt says what is wanted: its number, and behind how many pieces of the answer it is held until `let_go`.
    """

    def __init__(self, pause_s: float = 0.0) -> None:
        self.sales: dict[int, Sale] = {}
        self.repeated: list[int] = []
        """Numbers that have come more than once."""
        self.held: set[int] = set()
        self.when: Callable[[int, int], object] = lambda number, pieces: None
        """Called as soon as so many pieces of a call's answer are handed to the network; 0: when the call has come."""
        self.pause_s = pause_s
        """Between the pieces of an answer."""
        self._let_go = threading.Event()

    def let_go(self) -> None:
        """Whatever is held goes on."""
        self._let_go.set()

    def hold_again(self) -> None:
        """What comes from now on is held again, where it asks for it."""
        self.held.clear()
        self._let_go.clear()

    async def __call__(self, wire: Wire) -> None:
        asked = wire.request.json
        number, hold = map(int, asked["prompt"].split()[1:3])
        if number in self.sales:
            self.repeated.append(number)
        sale = self.sales[number] = Sale()
        pieces = _stream(number) if asked.get("stream") else _plain(number)
        for done, piece in enumerate(pieces):
            self.when(number, done)
            if done == hold:
                await self._wait(number)
            await wire.write(piece)
            sale.pieces = done + 1
            sale.is_whole = sale.pieces == len(pieces)
            await asyncio.sleep(self.pause_s)
        self.when(number, sale.pieces)

    async def _wait(self, number: int) -> None:
        self.held.add(number)
        while not self._let_go.is_set():  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.01)


def _usage(number: int) -> dict[str, int]:
    prompt, completion = tokens_of(number)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _plain(number: int) -> list[bytes]:
    choice = {"text": " world" * 20, "index": 0, "logprobs": None, "finish_reason": "stop"}
    body = json.dumps({"id": f"up-{number}", "model": "up", "choices": [choice], "usage": _usage(number)}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    half = len(body) // 2
    return [head + body[:half], body[half:]]


def _stream(number: int) -> list[bytes]:
    def piece(text: str, finish: str | None = None) -> bytes:
        choice = {"text": text, "index": 0, "finish_reason": finish}
        return chunk(event({"id": f"up-{number}", "model": "up", "choices": [choice]}))

    pieces = [piece(f"word-{each} ") for each in range(EVENTS - 1)] + [piece("", "stop")]
    usage = chunk(event({"id": f"up-{number}", "model": "up", "choices": [], "usage": _usage(number)}))
    return [CHUNKED, *pieces, usage, chunk(event("[DONE]")) + b"0\r\n\r\n"]


# ---------------------------------------------------------------------------------------------------------- the clients


@dataclass
class ClientCall:
    """The result of one call at its client."""

    number: int
    who: str
    is_stream: bool
    status: int = 0
    """0: no answer at all."""
    body: bytes = b""
    is_whole: bool = False
    """The whole answer came; of a stream, its `[DONE]`."""
    has_left: bool = False
    """The client hung up by itself."""
    id: str = ""

    @property
    def is_served(self) -> bool:
        return self.status == 200 and self.is_whole


@dataclass
class Callers:
    """Clients and their results. Thread-safe: each call has its own object."""

    received: list[ClientCall] = field(default_factory=list)
    seen_piece: Callable[[ClientCall], object] = lambda received: None
    """Called for each piece of an answer that has come."""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def begin(self, who: str = "", *, is_stream: bool = False) -> ClientCall:
        """A new call, not sent yet."""
        number = next(self._numbers)
        received = ClientCall(number, who or WHO[number % len(WHO)], is_stream)
        self.received.append(received)
        return received

    def call(
        self, port: int, who: str = "", *, is_stream: bool = False, hold: int = NOBODY_HOLDS, leaves: bool = False
    ) -> ClientCall:
        """One call to its end; `leaves`: the client hangs up as soon as it hears something."""
        received = self.begin(who, is_stream=is_stream)
        self.carry(received, port, hold=hold, leaves=leaves)
        return received

    def carry(self, received: ClientCall, port: int, *, hold: int = NOBODY_HOLDS, leaves: bool = False) -> None:
        """Send a call that was begun, and listen until its end or the gateway's."""
        prompt = f"call {received.number} {hold} ".ljust(PROMPT_CHARACTERS, "x")
        body = {"model": COMPLETIONS, "prompt": prompt, "max_tokens": ESTIMATE[1], "stream": received.is_stream}
        headers = {
            "Authorization": f"Bearer {secret(received.who)}",
            "Content-Type": "application/json",
            "X-Client-Request-Id": f"client-{received.number}",
        }
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=4 * TIMEOUT_S)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            with connection.getresponse() as response:
                received.status = response.status
                received.id = response.headers["x-request-id"]
                while data := response.read1():
                    received.body += data
                    received.is_whole = received.is_stream and b"data: [DONE]\n\n" in received.body
                    self.seen_piece(received)
                    if leaves:
                        received.has_left = True
                        return
                received.is_whole = (
                    received.is_whole if received.is_stream and received.status == 200 else response.length in (0, None)
                )
        except (OSError, http.client.HTTPException):
            pass  # killed
        finally:
            connection.close()

    @contextmanager
    def at_work(self, port: Callable[[], int], count: int = 6) -> Iterator[None]:
        """So many clients that call one time after the other until the block is left; the port may change."""
        is_over = threading.Event()

        def work(mine: int) -> None:
            for turn in itertools.count(mine):
                if is_over.is_set():
                    return
                received = self.call(port(), is_stream=turn % 2 == 0, leaves=turn % 7 == 3)
                is_over.wait(0.002 if received.status == 200 else 0.1)

        threads = [threading.Thread(target=work, args=(mine,), daemon=True) for mine in range(count)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            is_over.set()
            for thread in threads:
                thread.join(5 * TIMEOUT_S)
        assert not any(thread.is_alive() for thread in threads), "a client never heard the end of its call"


# ------------------------------------------------------------------------------------------------------ the comparison


def open_windows(gateway: Gateway) -> list[str]:
    """The windows in which something is reserved or running, or whose state is unknown at the moment."""
    answer = gateway.admin("quotas")
    if answer.status != 200:
        return [f"the gateway answers {answer.status}"]
    return [
        f"{row['scope']}: {row['used']} {row['unit']} per {row['per']}, {row['reserved']} reserved"
        for row in answer.json["data"]
        if row["reserved"] or (row["unit"] == "parallel" and row["used"])
    ]


def wait_until_settled(gateway: Gateway, timeout_s: float = SETTLED_S) -> None:
    """Until nothing is reserved and no call is running."""
    end = time.monotonic() + timeout_s
    while found := open_windows(gateway):
        assert time.monotonic() < end, f"still open after {timeout_s:g} s: {found}"
        time.sleep(0.1)


def check_books(
    gateway: Gateway, seller: Seller, received: Sequence[ClientCall], timeout_s: float = SETTLED_S
) -> Counter[str]:
    """Wait until nothing is reserved and each call that needs one has a record, then compare all records of the calls.

    A Redis that was killed may have forgotten a reservation whose worker was killed, too: its record comes when another
    worker adopts the journal. Returns the number of calls for each end in the gateway's records. All calls in `told`
    have to be complete.
    """
    end = time.monotonic() + timeout_s
    while True:
        wait_until_settled(gateway, timeout_s)
        records = gateway.calls(limit=1_000_000)
        by_number = _by_number(records)
        faults = [fault for call in received if (fault := _fault(call, seller.sales.get(call.number), by_number))]
        if not any(fault.startswith("no record") for fault in faults) or time.monotonic() > end:
            break
        time.sleep(0.5)
    assert not seller.repeated, f"these came to the upstream more than once: {seller.repeated}"
    assert set(by_number) <= {call.number for call in received}, "a record of a call that nobody has made"
    assert set(seller.sales) <= {call.number for call in received}
    assert not faults, f"{len(faults)} of {len(received)} calls: " + "\n".join(faults[:20])
    check_sums(gateway, records)
    _check_windows(gateway, records)
    return Counter(record["ended"] for record in records)


def _by_number(records: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """The records by the numbers of their calls, each once."""
    for name in ("id", "client_request_id"):
        found: dict[str, list[Mapping[str, Any]]] = {}
        for record in records:
            found.setdefault(record[name], []).append(record)
        twice = {value: [r["ended"] for r in several] for value, several in found.items() if len(several) > 1}
        assert not twice, f"recorded more than once: {twice}"
    return {int(record["client_request_id"].removeprefix("client-")): record for record in records}


def _fault(received: ClientCall, sale: Sale | None, by_number: Mapping[int, Mapping[str, Any]]) -> str:
    """What is wrong with the record of one call; nothing where it is right."""
    record = by_number.get(received.number)
    if record is None:
        missing = sale is not None or received.is_served
        return f"no record of {_spelt(received)}, {sale}" if missing else ""
    tokens = (record["prompt_tokens"], record["completion_tokens"])
    ended = record["ended"]
    if record["key"] != received.who or (received.id and record["id"] != received.id):
        fault = "somebody else's"
    elif received.is_served:
        fault = "" if ended == "done" and tokens == tokens_of(received.number) else "served, and not recorded as such"
    elif received.status not in (0, 200):
        fault = "" if tokens == (0, 0) else "charged, though it was refused"
        fault = "refused, though it was carried" if sale else fault
    elif ended == "lost":
        fault = "" if tokens == ESTIMATE and record["status"] == 0 else "lost, and not at its estimate"
    elif ended == "done":
        fault = "" if sale and tokens == tokens_of(received.number) else "done, and not at the truth"
    elif ended == "client_gone":
        is_true = (
            tokens == tokens_of(received.number) if record["usage_source"] == "reported" else tokens[1] <= ESTIMATE[1]
        )
        fault = "" if received.has_left and is_true else "its client has not left, or not so"
    else:
        fault = "an error that nobody has made"
    return f"{fault}: {_spelt(received)}, {sale}, recorded as {dict(record)}" if fault else ""


def _spelt(received: ClientCall) -> str:
    of = f"call {received.number} of {received.who}"
    return f"{of} (status {received.status}, whole: {received.is_whole}, ...{received.body[-60:]!r})"


def check_sums(gateway: Gateway, records: Sequence[Mapping[str, Any]]) -> None:
    """The daily sums are the sums of the records: of each key, and of all."""
    for group, name in (("key", lambda r: r["key"]), ("model,day", lambda r: (r["model"], day_of(r)))):
        expected: dict[Any, Counter[str]] = {}
        for record in records:
            expected.setdefault(name(record), Counter()).update(sums_of(record))
        found = {
            row["key"] if group == "key" else (row["model"], row["day"]): Counter(
                {sum_: round((row[sum_] or 0) * (1e9 if sum_ == "cost_usd" else 1)) for sum_ in sums_of(records[0])}
            )
            for row in gateway.usage(group_by=group)
        }
        assert found == expected, f"daily sums by {group}: {found}; of the records: {expected}"


def sums_of(record: Mapping[str, Any]) -> dict[str, int]:
    """What one record adds to the daily sums; money in billionths of a dollar."""
    prompt, completion = record["prompt_tokens"], record["completion_tokens"]
    return {
        "requests": 1,
        "errors": int(record["ended"] == "error"),
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "estimated_tokens": prompt + completion if record["usage_source"] == "estimated" else 0,
        "cost_usd": round((record["cost_usd"] or 0) * 1e9),
        "unpriced": int(record["cost_usd"] is None),
    }


def day_of(record: Mapping[str, Any]) -> str:
    """The day that it belongs to, in UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime(record["time"]))


def _check_windows(gateway: Gateway, records: Sequence[Mapping[str, Any]]) -> None:
    """Each window has used what its calls have used, nothing is reserved, and no call is running."""
    today = time.strftime("%Y-%m-%d", time.gmtime())
    for row in gateway.admin("quotas").json["data"]:
        mine = [record for record in records if row["key"] in (None, record["key"])]
        if row["unit"] != "parallel" and row["per"] in ("day", "month"):
            length = len("2026-11-20") if row["per"] == "day" else len("2026-11")
            mine = [record for record in mine if day_of(record)[:length] == today[:length]]
        name = {"tokens": "total_tokens", "usd": "cost_usd"}.get(row["unit"], row["unit"])
        expected = 0 if row["unit"] == "parallel" else sum(sums_of(record)[name] for record in mine)
        used = round(row["used"] * 1e9) if row["unit"] == "usd" else row["used"]
        leaked = row["per"] is not None and str(row["per"]).isdigit() and used in (expected - 1, expected)
        assert leaked or used == expected, f"{len(mine)} records have used {expected}, but: {row}"
        assert row["reserved"] == 0, row
