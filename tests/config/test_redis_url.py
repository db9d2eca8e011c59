"""How `store.url` names a Redis: hosts, database, credentials; its display form has no secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import RedisURL, StoreSettings
from gateway.config.redis_url import read_redis_url

SECRET = "pa:ss/w@rd%?#,ü"
SPELT = "pa%3Ass%2Fw%40rd%25%3F%23%2C%C3%BC"


@pytest.mark.parametrize(
    ("text", "hosts", "db", "service", "shown"),
    [
        ("redis://host", [("host", 6379)], 0, "", "redis://host:6379/0"),
        ("redis://host/", [("host", 6379)], 0, "", "redis://host:6379/0"),
        ("redis://10.0.0.1:7000/15", [("10.0.0.1", 7000)], 15, "", "redis://10.0.0.1:7000/15"),
        ("redis://[::1]/1", [("::1", 6379)], 1, "", "redis://[::1]:6379/1"),
        ("rediss://cache.example.com:6380/2", [("cache.example.com", 6380)], 2, "", "rediss://cache.example.com:6380/2"),
        (
            "redis+sentinel://h1,h2:26380,[::2]/my-master.1/3", [("h1", 26379), ("h2", 26380), ("::2", 26379)], 3,
            "my-master.1", "redis+sentinel://h1:26379,h2:26380,[::2]:26379/my-master.1/3",
        ),
        ("redis+sentinel://h1/m", [("h1", 26379)], 0, "m", "redis+sentinel://h1:26379/m/0"),
        ("redis+cluster://h1,h2:7001", [("h1", 6379), ("h2", 7001)], 0, "", "redis+cluster://h1:6379,h2:7001"),
        ("redis+cluster://h1/0", [("h1", 6379)], 0, "", "redis+cluster://h1:6379"),
    ],
)  # fmt: skip
def test_an_address_is_read(text: str, hosts: list[tuple[str, int]], db: int, service: str, shown: str) -> None:
    url = read_redis_url(text)
    assert (list(url.hosts), url.db, url.service, url.user, url.password) == (hosts, db, service, None, None)
    assert url.is_tls == text.startswith("rediss")
    assert str(url) == shown
    assert read_redis_url(shown) == url


@pytest.mark.parametrize("rest", ["host:6379/1", "[::1]/1"])
@pytest.mark.parametrize("user", ["", "the%20user"])
def test_credentials_are_read_and_never_shown(user: str, rest: str) -> None:
    text = f"redis://{user}:{SPELT}@{rest}"
    url = read_redis_url(text)
    assert url.password is not None
    assert (url.user, url.password.get_secret_value()) == (user.replace("%20", " ") or None, SECRET)
    settings = StoreSettings(url=text)
    assert settings.redis == url
    assert settings.shown_url == str(url)
    for shown in (repr(url), str(url), repr(settings), str(settings), settings.shown_url):
        assert SECRET not in shown
        assert SPELT not in shown
        assert "the" not in shown


def test_an_authority_of_its_own_is_a_file(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("authority") / "ca with space.pem"
    path.touch()
    url = read_redis_url(f"rediss://host/0?ca_file={str(path).replace(' ', '%20')}")
    assert url.ca_file == str(path)
    assert str(url) == "rediss://host:6379/0"


def test_an_address_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.touch()
    settings = StoreSettings(url=f"rediss://host/0?ca_file={path}")
    path.unlink()  # only a connection needs the file; the display form does not
    assert settings.redis is settings.redis
    assert settings.redis.ca_file == str(path)
    assert settings.shown_url in settings.origin
    assert settings == settings.model_copy()


def test_the_embedded_store_is_shown_as_it_is() -> None:
    assert StoreSettings().shown_url == "embedded:./gateway-data"
    assert "embedded" not in repr(RedisURL("redis", (("host", 1),)))
