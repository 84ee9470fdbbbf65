"""Who may ask what."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from cutwater.protocol.base.errors import UserError
from cutwater.store.contract import Store
from cutwater.web.server import WebServer, check_token, parse_address
from tests.web.conftest import LISTEN, LOCAL, TOKEN

WISH = {"kind": "cancel"}
BEARER = {"authorization": f"Bearer {TOKEN}"}


def test_without_a_token_nothing_can_be_changed(client: TestClient) -> None:
    found = client.post("/api/v1/requests", json=WISH)
    assert (found.status_code, "--http-token" in found.json()["error"]) == (403, True)


@pytest.mark.parametrize(
    "header",
    [{}, {"authorization": "Bearer wrong"}, {"authorization": TOKEN}, {"authorization": f"Basic {TOKEN}"},
     {"authorization": f"Bearer {TOKEN}x"}, {"authorization": "Bearer "}, {"authorization": "Bearer \xff"}],
)  # fmt: skip
def test_a_change_without_the_right_token_is_refused(store: Store, header: dict[str, str]) -> None:
    client = TestClient(WebServer(store, LISTEN, TOKEN).app, LOCAL)
    headers = [(name, value.encode("latin-1")) for name, value in header.items()]
    found = client.post("/api/v1/requests", json=WISH, headers=headers)  # type: ignore[arg-type]
    assert (found.status_code, found.headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"host": "evil.example"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"origin": LOCAL}, 202),
        ({"sec-fetch-site": "same-origin"}, 202),
    ],
)
def test_a_change_must_come_from_our_own_page(
    store: Store, changed: dict[str, str], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cutwater.web.requests._perform", lambda *_: (None, ""))
    client = TestClient(WebServer(store, LISTEN, TOKEN).app, LOCAL, headers=BEARER)
    found = client.post(
        "/api/v1/requests",
        content=b'{"kind": "cancel"}',
        headers={"content-type": "application/json", **changed},
    )
    assert found.status_code == status


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[::", "localhost.evil:80"])
def test_a_host_name_other_than_those_of_the_loopback_is_refused(client: TestClient, host: str) -> None:
    for path in ("/api/v1/pipeline", "/", "/api/v1/events"):
        assert client.get(path, headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:8080", "[::1]:8080", "LOCALHOST"])
def test_the_host_names_of_the_loopback_are_accepted(client: TestClient, host: str) -> None:
    assert client.get("/api/v1/pipeline", headers={"host": host}).status_code == 200


def test_outside_the_loopback_data_needs_the_token_and_the_page_does_not(store: Store) -> None:
    def say(request: Request) -> Response:
        return PlainTextResponse("ok")

    routes = [Route("/healthz", say), Route("/metrics", say)]
    client = TestClient(WebServer(store, "0.0.0.0:8080", TOKEN, routes).app, "http://pipelines.example:8080")
    for path in ("/api/v1/pipeline", "/api/v1/events", "/api/v1/openapi.json", "/metrics", "/api/v1/nothing"):
        assert client.get(path).status_code == 401, path
    for path in ("/", "/index.html", "/healthz"):
        assert client.get(path).status_code == 200, path
    for path in ("/api/v1/pipeline", "/metrics"):
        assert client.get(path, headers=BEARER).status_code == 200, path


PUBLIC = "cutwater.example.com"


def test_behind_a_proxy_all_data_needs_the_token_whatever_host_says(store: Store) -> None:
    client = TestClient(WebServer(store, LISTEN, TOKEN, names=[PUBLIC]).app, LOCAL)
    for host in (PUBLIC, f"{PUBLIC}:8443", PUBLIC.upper(), LISTEN):
        for path in ("/api/v1/pipeline", "/api/v1/events", "/api/v1/openapi.json"):
            assert client.get(path, headers={"host": host}).status_code == 401, host
        assert client.get("/api/v1/pipeline", headers={"host": host, **BEARER}).status_code == 200, host
        assert client.get("/", headers={"host": host}).status_code == 200, host
    assert client.get("/api/v1/pipeline", headers={"host": "evil.example", **BEARER}).status_code == 403


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        (PUBLIC, f"https://{PUBLIC}", 202),
        (PUBLIC, f"https://{PUBLIC}:8443", 202),
        (LISTEN, f"https://{PUBLIC}", 202),
        (LISTEN, LOCAL, 202),
        (PUBLIC, "https://evil.example", 403),
        (PUBLIC, f"https://{PUBLIC}.evil.example", 403),
        (PUBLIC, f"https://evil.example/{PUBLIC}", 403),
        (PUBLIC, f"https://{PUBLIC}@evil.example", 403),
        (PUBLIC, "null", 403),
        (PUBLIC, "https://[", 403),
    ],
)
def test_a_button_works_behind_a_proxy_and_from_no_other_page(
    store: Store, host: str, origin: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cutwater.web.requests._perform", lambda *_: (None, ""))
    client = TestClient(WebServer(store, LISTEN, TOKEN, names=[PUBLIC]).app, LOCAL, headers=BEARER)
    found = client.post("/api/v1/requests", json=WISH, headers={"host": host, "origin": origin})
    assert found.status_code == status


def test_a_public_name_needs_a_token_and_is_a_name(store: Store) -> None:
    with pytest.raises(UserError, match=f"reach this server as {PUBLIC}, so it needs a token"):
        WebServer(store, LISTEN, names=[PUBLIC])
    for name in (f"https://{PUBLIC}", f"{PUBLIC}:443", f"{PUBLIC}/", "", "a b"):
        with pytest.raises(UserError, match="give --http-name the name alone"):
            WebServer(store, LISTEN, TOKEN, names=[name])


def test_outside_the_loopback_a_server_needs_a_token(store: Store) -> None:
    for host in ("0.0.0.0:80", "10.0.0.1:80", "pipelines.example:80", "[::]:80"):
        with pytest.raises(UserError, match="--http-token"):
            WebServer(store, host)
    for host in ("127.0.0.1:80", "127.1.2.3:80", "[::1]:80", "localhost:80"):
        WebServer(store, host)
    with pytest.raises(UserError, match="16 or more"):
        check_token("127.0.0.1", "short")
    for token in ("with a space in it", "with-a-newline-16\n", "pässwort-von-alice"):
        with pytest.raises(UserError, match="which no header can carry"):
            check_token("127.0.0.1", token)


@pytest.mark.parametrize("listen", ["8080", "host", ":8080", "h:x", "h:99999", "h:-1", "h:٣"])
def test_an_address_has_a_host_and_a_port(listen: str) -> None:
    with pytest.raises(UserError, match="HOST:PORT"):
        parse_address(listen)


def test_every_answer_forbids_foreign_content(client: TestClient) -> None:
    for path in ("/", "/api/v1/pipeline", "/api/v1/nothing", "/nothing"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    assert client.get("/api/v1/pipeline").headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 400), (b"{", 400), (b"[]", 400), (b'{"kind": "rm -rf"}', 422), (b'{"kind": "savepoint", "name": "../x"}', 422),
     (b'{"kind": "restore"}', 422), (b'{"kind": "cancel", "more": 1}', 400), (b"[" * 60_000, 400), (b" " * 70_000, 413)],
)  # fmt: skip
def test_an_invalid_body_is_refused(trusted: TestClient, body: bytes, status: int) -> None:
    found = trusted.post("/api/v1/requests", content=body, headers={"content-type": "application/json"})
    assert (found.status_code, list(found.json())) == (status, ["error"])


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(client: TestClient, method: str) -> None:
    found: Any = client.request(method, "/api/v1/pipeline")
    assert found.status_code in (403, 405)
    assert list(found.json()) == ["error"]
