"""REST does what its OpenAPI document says, whatever is asked."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CheckFunction
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)
from starlette.routing import Route

from cutwater.store.opening import open_store
from cutwater.web import requests as requests_module
from cutwater.web.openapi import openapi
from cutwater.web.server import WebServer
from tests.support.written import put_status
from tests.web.conftest import TOKEN

pytestmark = pytest.mark.slow

EXAMPLES = 12
CHECKS: list[CheckFunction] = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
]


def document() -> dict[str, Any]:
    """Without the stream of events, which has no end."""
    found = openapi()
    return {**found, "paths": {path: item for path, item in found["paths"].items() if path != "/events"}}


schema = schemathesis.openapi.from_dict(document())


@pytest.fixture(scope="module")
def server(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    """A server whose requests are not carried out."""
    folder = tmp_path_factory.mktemp("openapi") / "state"
    shutil.copytree(written, folder)
    store = open_store(str(folder))
    put_status(store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests_module, "_perform", lambda store, wish: (1, wish.kind))
        made = WebServer(store, "127.0.0.1:0", TOKEN)
        made.start()
        yield made
        made.stop()


@schema.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_every_answer_is_as_documented(case: schemathesis.Case[Any], server: WebServer) -> None:
    headers = {"authorization": f"Bearer {TOKEN}"}
    case.call_and_validate(base_url=f"{server.url}/api/v1", headers=headers, checks=CHECKS)


@pytest.mark.parametrize("ref", ["1", "2", "3", "4", "latest", "before-deploy"])
def test_what_exists_is_answered_as_documented(server: WebServer, ref: str) -> None:
    for path in ("/checkpoints/{ref}", "/checkpoints/{ref}/explain"):
        case = schema[path]["GET"].Case(path_parameters={"ref": ref})
        response = case.call_and_validate(base_url=f"{server.url}/api/v1", checks=CHECKS)
        assert response.status_code == (404 if (ref, path) == ("4", "/checkpoints/{ref}") else 200)


def test_every_route_is_documented(server: WebServer) -> None:
    assert server._shown is not None
    paths = {route.path for route in server._shown.rest.routes if isinstance(route, Route)}
    assert paths - {"/openapi.json"} == set(openapi()["paths"])
