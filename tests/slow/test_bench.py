"""What the bench says is what was measured: its parts that need neither nginx nor wrk."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import calls, carries, cases, issuing, load, lone, ours, page, plot, sizes, starts, wide
from bench.lockstep import Upstream as LoneUpstream
from bench.processes import BenchError, Program
from bench.streams import Upstream, streams
from bench.table import Group, as_json, as_markdown, render
from gateway.api.auth import digest
from gateway.config import build
from tests.flows.gateway_process import eventually

SUMS = {
    "requests": 1000,
    "p50_us": 1500,
    "p99_us": 9000,
    "status": 0,
    "connect": 0,
    "read": 0,
    "write": 0,
    "timeout": 0,
}

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the bench reads /proc")


def test_wrk_is_read() -> None:
    received = f"Running 4s test @ http://127.0.0.1:1/\n  1000 requests in 4.00s\n\n{json.dumps(SUMS)}\n"
    assert load.parse(received) == load.Load(requests=1000, p50_ms=1.5, p99_ms=9.0)


@pytest.mark.parametrize("kind", ["status", "connect", "read", "write", "timeout"])
def test_one_failed_call_spoils_a_round(kind: str) -> None:
    with pytest.raises(BenchError, match=f"some failed: .*{kind}"):
        load.parse(json.dumps({**SUMS, kind: 1}))


@pytest.mark.parametrize("received", ["", "unable to connect", json.dumps({**SUMS, "requests": 0})])
def test_nothing_measured_is_no_measurement(received: str) -> None:
    with pytest.raises(BenchError):
        load.parse(received)


def test_table() -> None:
    group = Group("Calls")
    for nginx, gateway in ((10, 50), (20, 120), (10, 70)):
        group.add("nginx", {"CPU, us": nginx})
        group.add("gateway", {"CPU, us": gateway})
    assert render([group]).splitlines() == [
        "            nginx   gateway   ratio   lowest - highest",
        "Calls",
        "  CPU, us    10.0      70.0    6.00        5.00 - 7.00",
    ]
    (figure,) = json.loads(as_json("here", [group]))["figures"]
    assert (figure["nginx"], figure["gateway"], figure["ratio"]) == ([10, 20, 10], [50, 120, 70], 6)


def test_a_round_that_only_one_has_run_is_an_error() -> None:
    group = Group("Calls")
    group.add("nginx", {"CPU, us": 1})
    with pytest.raises(ValueError, match="shorter"):
        render([group])


def test_calls_are_as_the_table_says() -> None:
    assert len(calls.request()) == len(calls.request(is_streamed=True)) == 1024
    assert len(calls.answer()) == 549
    assert 200 < len(b"".join(calls.event())) + 20 < 220


def test_gateway_is_measured_as_it_is_shipped(tmp_path: Path) -> None:
    """Nothing is switched off: what the bench sets is what any gateway needs, and three quotas."""
    config = build(ours.settings(tmp_path, upstream=1))
    assert config.server == type(config.server)(port=0)
    assert config.metrics == type(config.metrics)()
    assert (config.server.workers, config.server.access_log) == (1, "json")
    assert [(quota.requests is None, quota.per) for quota in config.keys[0].quotas] == [
        (False, "minute"), (True, "day"), (False, "day"),
    ]  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- streams


async def test_streams_are_counted_and_timed() -> None:
    upstream = Upstream()
    async with await upstream.start():
        async with streams(upstream.port, upstream, 5, 0.001) as clients:
            assert all(client.begun.done() for client in clients)
        assert upstream.written == len(upstream.arrived) >= 5
        assert all(0 <= age < 60e9 for age in upstream.arrived)


@pytest.mark.parametrize("cut", [b"data: [DONE]\n\n", b'"finish_reason":"stop"'])
async def test_a_stream_that_is_not_whole_spoils_a_round(cut: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    ending = calls.ending().replace(cut, b"")
    monkeypatch.setattr("bench.streams.LAST", b"%x\r\n%s\r\n0\r\n\r\n" % (len(ending), ending))
    upstream = Upstream()
    async with await upstream.start():
        with pytest.raises(BenchError, match="did not end whole"):
            async with streams(upstream.port, upstream, 2, 0.001):
                pass


# -------------------------------------------------------------------------------------------------------------- lone


def test_a_lone_calls_time_is_what_the_program_adds() -> None:
    took_ms = [float(number) for number in range(2, 102)]
    seen = lone.cost(0.2, took_ms, [1.0] * 10)
    assert seen.cpu_us == pytest.approx(2000)
    assert (seen.p50_ms, seen.p99_ms) == pytest.approx((50.5, 99.99))
    shown = lone.render({50: {"bare": [seen] * 2, "gateway": [seen._replace(cpu_us=3000), seen._replace(cpu_us=5000)]}})
    assert " ".join(shown.splitlines()[2].split()) == "CPU per call, us 2000 4000 2.00 1.50 - 2.50"


@needs_proc
async def test_calls_at_a_rate_are_made_through_the_bare_proxy(tmp_path: Path) -> None:
    upstream = LoneUpstream()
    with ExitStack() as running:
        bench = lone.Bench(running, tmp_path, "embedded")
        async with await upstream.start():
            proxy = bench.start(upstream.port)["bare"]
            await asyncio.to_thread(proxy.wait_until_answered)
            before_s = lone.cpu_s(proxy.pids)
            took_ms = await lone.load(proxy.port, rate=200, seconds=0.5, seed=1)
            assert 50 < len(took_ms) < 200
            assert 0 < lone.cpu_s(proxy.pids) - before_s < 10


# ------------------------------------------------------------------------------------------------------------ starts


@needs_proc
async def test_starts_are_measured(tmp_path: Path) -> None:
    costs = await starts.measure(tmp_path, rounds=1, workers=[2])
    assert [(name, len(each)) for name, each in costs.items()] == [("bare proxy", 1), ("gateway, 2 workers", 1)]
    assert all(0 < each.cpu_s < 60 and 0 < each.took_s < 60 and each.memory_mb > 5 for (each,) in costs.values())


def test_a_start_is_compared_with_the_bare_proxys_of_its_round() -> None:
    bare = [starts.Start(0.2, 0.3, 25), starts.Start(0.1, 0.3, 25), starts.Start(0.2, 0.3, 25)]
    own = [starts.Start(0.6, 0.9, 70), starts.Start(0.4, 0.9, 70), starts.Start(0.7, 0.9, 70)]
    shown = starts.render({starts.BARE: bare, "gateway": own})
    assert [line.split()[-4:] for line in shown.splitlines()[1:]] == [
        ["0.20", "1.00", "0.30", "25.0"], ["0.60", "3.50", "0.90", "70.0"],
    ]  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- wide


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_each_case_is_what_its_name_says(case: cases.Case, tmp_path: Path) -> None:
    received = ours.settings_of(case, tmp_path, upstream=1, ca_file=None, redis_url="redis://127.0.0.1:1/0")
    config = build(received)
    assert (config.server.workers, len(config.models)) == (case.workers, case.models)
    assert config.store.is_embedded == (case.store == "embedded")
    assert len(case.request(case.models - 1)) == case.request_bytes
    if not case.issued:
        assert [len(key.quotas) for key in config.keys] == [case.windows] * case.callers


def test_a_case_differs_from_the_main_line_in_one_thing() -> None:
    """But for two that are meant: several workers want a Redis, and many keys that call have to be there."""
    plain = dataclasses.asdict(cases.MAIN)
    for case in cases.CASES:
        different = {name for name, value in dataclasses.asdict(case).items() if value != plain[name]} - {"name"}
        assert len(different) <= 1 or different in ({"workers", "store"}, {"issued", "callers"}), case.name


def test_keys_are_where_a_gateway_looks_for_them(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    issuing.place(tmp_path, made, count=3, windows=2)
    with sqlite3.connect(made / "data" / "gateway.sqlite") as db:
        rows = db.execute("SELECT key FROM secrets WHERE digest = ?", (digest(cases.secret(2)).hex(),)).fetchall()
    db.close()
    assert rows == [(cases.key(2),)]


def test_markdown() -> None:
    group = Group("Calls, us")
    group.add("nginx", {"main": 10})
    group.add("gateway", {"main": 60})
    assert as_markdown([group]).splitlines() == [
        "| Calls, us | nginx | gateway | ratio | lowest - highest |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| main | 10.0 | 60.0 | 6.00 | 6.00 - 6.00 |",
    ]


@pytest.mark.parametrize("theme", plot.THEMES)
def test_the_picture_is_one(theme: str) -> None:
    bars = [plot.Bar("main & line", 6, 5, 7), plot.Bar("TLS", 12, 11, 13)]
    root = ElementTree.fromstring(plot.svg("CPU <per> call", bars, plot.THEMES[theme]))
    rows = root.findall("{http://www.w3.org/2000/svg}rect")
    assert [float(row.attrib["width"]) for row in rows] == pytest.approx([254, 508], abs=1)
    assert "main & line" in [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]


def test_what_is_carried_is_a_division() -> None:
    seen = carries.Figures(
        call_us=300, call_on_redis_us=400, chunk_us=20, stream_bytes=40_000, rest_bytes=100e6, redis_us=50,
        redis_window_us=5,
    )  # fmt: skip
    received = {name: much for name, (much, _) in carries.carried(seen, record_bytes=300).items()}
    assert list(received.values()) == ["2,000", "1,500", "30,000", "1,000", "22,000", "12,000", "9,200", "3,300,000"]


def test_tables_are_written_where_the_page_has_a_place_for_them(tmp_path: Path) -> None:
    written = tmp_path / "page.md"
    written.write_text("above\n<!-- sizes -->\nold\n<!-- /sizes -->\nbelow\n")
    for text in ("one", "another"):
        page.put(written, "sizes", text)
    assert written.read_text() == "above\n<!-- sizes -->\nanother\n<!-- /sizes -->\nbelow\n"
    with pytest.raises(SystemExit, match="no place for carries"):
        page.put(written, "carries", "one")


def test_every_table_has_its_place() -> None:
    for path, names in ((wide.PAGE, tuple(wide.PARTS)), (sizes.PAGE, ("sizes", "carries"))):
        text = path.read_text()
        assert [text.count(f"<!-- {name} -->\n") for name in names] == [1] * len(names)


def test_a_record_has_its_price_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.sizes.FEW", 200)
    monkeypatch.setattr("bench.sizes.MANY", 1000)
    slopes = asyncio.run(sizes.embedded(tmp_path))
    (record, *_) = slopes.values()
    assert 100 < record.disk < 1000, slopes
    assert all(-100 < slope.disk < 2000 for slope in slopes.values()), slopes


# --------------------------------------------------------------------------------------------------------- processes


@needs_proc
def test_a_program_is_pinned_measured_and_ended(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    busy = "import time\nwhile time.process_time() < 0.05: pass\nprint('done', flush=True)\ntime.sleep(60)"
    with Program("busy", [sys.executable, "-c", busy], tmp_path, core) as program:
        assert os.sched_getaffinity(program.pids[0]) == {core}
        eventually(lambda: "done" in (tmp_path / "stdout").read_text())
        assert program.cpu_s() >= 0.04
        assert 1 < program.memory_mb() < 1000
    with pytest.raises(BenchError, match="a process of busy has died"):
        program.cpu_s()


def test_what_is_missing_is_said_in_one_line(tmp_path: Path) -> None:
    env = {**os.environ, "PATH": str(tmp_path)}
    command = [sys.executable, "-m", "bench"]
    received = subprocess.run(command, env=env, cwd=ours.ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (received.returncode, received.stdout, received.stderr.count("\n")) == (2, "", 1)
    assert "wrk" in received.stderr
