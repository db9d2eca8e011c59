"""`gateway backup` beside a gateway under load, and a gateway that starts on what it made."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import yaml

from tests.conftest import StartsGateways
from tests.flows.books import ACCOUNTS, check_sums, sums_of, wait_until_settled
from tests.flows.gateway_process import eventually, run, settings
from tests.flows.scenario import Scenario
from tests.flows.steering import Operator, use

NOWHERE = "http://127.0.0.1:9/v1"


def test_a_backup_under_load_is_restored_with_equal_sums(start_gateway: StartsGateways, tmp_path: Path) -> None:
    """Two workers, six clients, two streams that are under way, and a key that was made at run time."""
    with Scenario() as scenario:
        gateway = start_gateway(settings(scenario.url, **ACCOUNTS, server={"workers": 2}))
        made = Operator(gateway).create("issued", quotas=[{"requests": 5, "per": "day"}])
        scenario.begin(gateway, 2, hold=2)
        to = tmp_path / "backup.sqlite"
        with scenario.callers.at_work(lambda: gateway.port):
            eventually(lambda: len(gateway.calls()) > 50)
            done = run("backup", "--config", str(gateway.file), str(to))
        scenario.end()
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"{to} holds {gateway.folder / 'data' / 'gateway.sqlite'} as it is now (")
        again = run("backup", "--config", str(gateway.file), str(to))
        assert (again.returncode, again.stdout) == (1, "")
        assert again.stderr == f"gateway: {to} is there already; name another file, or move it away\n"
        gateway.stop()

        folder = tmp_path / "restored"
        folder.mkdir()
        shutil.copy(to, folder / "gateway.sqlite")
        other = start_gateway(settings(scenario.url, **ACCOUNTS, store={"url": f"embedded:{folder}"}))
        wait_until_settled(other)  # what was under way is closed `SILENT_S` after the start
        records = other.calls(limit=1_000_000)
        assert [record["ended"] for record in records].count("lost") >= 2
        check_sums(other, records)
        used = sum(sums_of(record)["requests"] for record in records if record["key"] == "alice")
        (window,) = [
            row
            for row in other.admin("quotas", key="alice").json["data"]
            if (row["unit"], row["per"]) == ("requests", "month")
        ]
        assert (window["used"], window["reserved"]) == (used, 0)
        assert use(other, made, prompt="call 999999 -1 " + "x" * 20).status == 200


def test_what_a_killed_gateway_left_in_its_journal_is_delivered_to_the_restored_store(
    start_gateway: StartsGateways, tmp_path: Path
) -> None:
    with Scenario() as scenario:
        store = {"url": f"embedded:{tmp_path / 'data'}", "journal_dir": str(tmp_path / "journal")}
        gateway = start_gateway(settings(scenario.url, **ACCOUNTS, store=store))
        assert scenario.serves(gateway)
        scenario.begin(gateway, 2)  # open at the backup, and when the gateway is killed
        to = tmp_path / "backup.sqlite"
        done = run("backup", "--config", str(gateway.file), str(to))
        assert (done.returncode, done.stderr) == (0, "")
        assert scenario.serves(gateway)  # which the backup does not know of
        scenario.begin(gateway, 1)
        gateway.expected_code = -signal.SIGKILL
        gateway.end()
        scenario.end()

        for name in ("gateway.sqlite", "gateway.sqlite-wal", "gateway.sqlite-shm"):
            (tmp_path / "data" / name).unlink(missing_ok=True)
        shutil.copy(to, tmp_path / "data" / "gateway.sqlite")
        other = start_gateway(settings(scenario.url, **ACCOUNTS, store=store))
        wait_until_settled(other)
        records = other.calls(limit=1000)
        # Of the one that ended behind the backup the journal may still know, or not.
        assert sorted(record["ended"] for record in records)[-4:] == ["done", "lost", "lost", "lost"]
        check_sums(other, records)
        assert scenario.serves(other)


def test_a_redis_is_backed_up_by_its_own_means(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(yaml.safe_dump(settings(NOWHERE, store={"url": "redis://user:secret@127.0.0.1:9/0"})))
    done = run("backup", "--config", str(path), str(tmp_path / "backup.sqlite"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gateway: redis://127.0.0.1:9/0 is backed up by the means of Redis")
    assert [each.name for each in tmp_path.iterdir()] == ["gateway.yaml"]
