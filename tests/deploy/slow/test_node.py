"""One node: the systemd unit, and its configuration beside those of the proxies in front of it."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from gateway import cli
from tests.deploy.examples import DEPLOY, load, make_secrets, secret_files, settle
from tests.deploy.programs import run
from tests.flows import gateway_process

UNIT = (DEPLOY / "gateway.service").read_text()
SETTINGS = (DEPLOY / "gateway.yaml").read_text()


def settings(name: str) -> list[str]:
    return [line.partition("=")[2] for line in UNIT.splitlines() if line.startswith(f"{name}=")]


@pytest.mark.parametrize("command", [*settings("ExecStartPre"), *settings("ExecStart")])
def test_unit_runs_commands_that_exist(command: str) -> None:
    program, *arguments = shlex.split(command)
    assert Path(program).name == "gateway"
    assert cli._parser().parse_args(arguments).config == "/etc/gateway/gateway.yaml"


def test_unit_waits_for_the_whole_drain_of_any_example() -> None:
    (stop_s,) = map(float, settings("TimeoutStopSec"))
    for server in (load("gateway.yaml")["server"], {"drain_delay_s": 5, "drain_timeout_s": 120}):
        assert stop_s >= server["drain_delay_s"] + server["drain_timeout_s"] + 10


def test_unit_lets_the_gateway_write_where_its_configuration_says() -> None:
    assert settings("StateDirectory") == ["gateway"]
    assert settings("WorkingDirectory") == ["/var/lib/gateway"]
    store = load("gateway.yaml")["store"]
    assert store["url"].startswith("embedded:./")
    assert store["journal_dir"].startswith("./")


if sys.platform == "linux":  # elsewhere there is no systemd, and no unit

    @pytest.fixture
    def unit(tmp_path: Path) -> Path:
        """The unit with a program that is there; whether one is installed in /opt is no matter of this test."""
        file = tmp_path / "gateway.service"
        file.write_text(UNIT.replace("/opt/gateway/bin/gateway", "/bin/true"))
        return file

    def test_systemd_has_nothing_to_say_about_the_unit(unit: Path) -> None:
        received = run("systemd-analyze", "verify", "--man=no", unit)
        # It reads the units of this machine too, and may have something to say about those.
        assert [line for line in received.stdout.splitlines() if unit.name in line] == []

    def test_systemd_takes_the_unit_for_a_safe_one(unit: Path) -> None:
        received = run("systemd-analyze", "security", "--offline=yes", "--no-pager", unit)
        (exposure,) = re.findall(r"Overall exposure level for \S+ ([\d.]+)", received.stdout)
        assert float(exposure) < 1.5, received.stdout


def test_the_configuration_is_good(tmp_path: Path) -> None:
    secrets = make_secrets(tmp_path / "secrets")
    assert {Path(file).name for file in secret_files(SETTINGS)} <= {path.name for path in secrets.iterdir()}
    places = {
        "/etc/gateway/secrets/": f"{secrets}/",
        "embedded:./gateway-data": f"embedded:{tmp_path}/data",
        "./gateway-journal": f"{tmp_path}/journal",
    }
    (tmp_path / "gateway.yaml").write_text(settle(SETTINGS, places))
    received = gateway_process.run("check", "--config", str(tmp_path / "gateway.yaml"))
    assert (received.returncode, received.stderr) == (0, "")
    assert "warning" not in received.stdout
