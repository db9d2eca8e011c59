"""`gateway check` about the machine: each finding has its place and its remedy, and a good machine has none."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from gateway import cli
from gateway.config import Config, build
from gateway.wings.machine.findings import folders_of, of_descriptors, of_files, of_folders

SECRET = "a-secret-of-28-characters-001"
MOUNTS = """\
21 1 254:0 / / rw - ext4 /dev/vda rw
30 21 0:5 / /run rw - tmpfs tmpfs rw
31 30 254:1 / /run/kept rw - ext4 /dev/vdb rw
32 21 0:6 / /with\\040blank rw - ramfs none rw
33 21 254:2 / /mnt/disk rw - xfs /dev/vdc rw
"""
PLANNED = "# a comment /comment x\nUUID=1 / ext4 defaults 0 1\n/dev/vdd /srv/gateway ext4 defaults 0 2\n"


@pytest.mark.parametrize(
    ("folder", "finding"),
    [
        ("/var/lib/gateway", None),
        ("/run/gateway", "is in memory (tmpfs at /run): a restart of the machine empties it"),
        ("/run/kept/gateway", None),
        ("/with blank/data", "is in memory (ramfs at /with blank)"),
        ("/runner/data", None),
        ("/srv/gateway/data", "is below /srv/gateway, which"),
        ("/mnt/disk/data", None),
        ("/mnt/other/data", "is on the file system of /: nothing is mounted below /mnt"),
        ("/media/stick", "nothing is mounted below /media"),
    ],
)
def test_folders(folder: str, finding: str | None, tmp_path: Path) -> None:
    mounts, planned = tmp_path / "mounts", tmp_path / "fstab"
    mounts.write_text(MOUNTS)
    planned.write_text(PLANNED)
    found = list(of_folders([("store.url", Path(folder))], mounts, planned))
    assert [place for place, _ in found] == ["store.url"] * (finding is not None)
    assert finding is None or finding in found[0][1]


def test_a_machine_without_these_files_has_no_finding(tmp_path: Path) -> None:
    assert list(of_folders([("store.url", Path("/run/x"))], tmp_path / "no", tmp_path / "none")) == []


def config(**store: str) -> Config:
    return build(
        {
            "upstreams": {"up": {"base_url": "https://api.example.com/v1"}},
            "models": {"m": {"routes": [{"upstream": "up"}], "max_output_tokens": 1}},
            "keys": [{"id": "k", "secret": SECRET}],
            "store": store,
        }
    )


def test_the_folders_of_a_configuration() -> None:
    assert dict(folders_of(config(url="embedded:/data", journal_dir="/journal"))) == {
        "store.url": Path("/data"), "store.journal_dir": Path("/journal"),
    }  # fmt: skip
    assert [place for place, _ in folders_of(config(url="redis://localhost"))] == ["store.journal_dir"]


@pytest.mark.parametrize(
    ("mode", "text", "finding"),
    [
        (0o600, SECRET, None),
        (0o640, SECRET, None),
        (0o644, "${KEY}", None),
        (0o644, SECRET, "has secrets, and every user of this machine can read it (mode 644): chmod 600"),
        (0o666, "${KEY}", "every user of this machine can change it (mode 666): chmod 600"),
    ],
)
def test_files(mode: int, text: str, finding: str | None, tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(f"keys: [{{id: k, secret: {text}}}]")
    file.chmod(mode)
    found = list(of_files([str(file), str(tmp_path / "absent")], config()))
    assert [place for place, _ in found] == [str(file)] * (finding is not None)
    assert finding is None or finding in found[0][1]
    assert SECRET not in str(found)


def test_descriptors() -> None:
    assert list(of_descriptors((64, 1024))) == list(of_descriptors((64, resource.RLIM_INFINITY))) == []
    ((place, text),) = of_descriptors((64, 64))
    assert (place, text) == (
        "ulimit -n",
        "64 open files are few: a call needs two; set LimitNOFILE or ulimits to 65536",
    )


CONFIG = f"""
store: {{url: "embedded:data", journal_dir: journal}}
upstreams: {{up: {{base_url: "https://api.example.com/v1", api_key: sk-1}}}}
models: {{gpt-4o: {{routes: [{{upstream: up}}], max_output_tokens: 1000, price: {{input: 2, output: 8}}}}}}
keys: [{{id: filed, secret: {SECRET}}}]
"""


def test_check_has_the_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 64))
    file = tmp_path / "gateway.yaml"
    file.write_text(CONFIG)
    file.chmod(0o666)
    assert cli.main(["check", "gateway.yaml"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("gateway.yaml can be used, but see 2 warnings.")
    assert "warning    gateway.yaml: every user of this machine can change it (mode 666)" in shown
    assert "warning    ulimit -n: 64 open files are few" in shown


@pytest.mark.parametrize(
    ("words", "warning"),
    [
        ("--expires 2020-01-01", "expires: is in the past: every call with this key is refused"),
        ("--models claude-*", "models[0]: matches none of the models: gpt-4o"),
        (
            "--tokens 100/day",
            "quotas[0]: a chat call of 'gpt-4o' without a limit of its own reserves 1000",
        ),
        ("--usd 0.001/day", "quotas[0]: "),
        ("--limit n=200", "limits.n: 200 has no effect: the API's own maximum is 128"),
    ],
)
def test_keys_create_warns_as_the_file_does(
    words: str, warning: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gateway.yaml").write_text(CONFIG)
    assert cli.main(["keys", "create", "--id", "new", *words.split()]) == 0
    assert f"gateway: warning: {warning}" in capsys.readouterr().err
