"""REST on a store at rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from cutwater.protocol.base import records as r
from cutwater.protocol.base.paths import manifest_name, mark_name
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from cutwater.web.server import WebServer
from tests.support.command_helpers import document
from tests.support.written import Written, beating, put_status
from tests.web.conftest import LISTEN, LOCAL


def test_the_pipeline_is_what_the_command_status_prints(client: TestClient, store: Store) -> None:
    put_status(store, state="stopped")
    found = client.get("/api/v1/pipeline").json()
    assert found.pop("may_steer") is False
    assert found == document("status", "--store", store.url)
    assert [stage["name"] for stage in found["graph"]] == ["a", "b", "c", "d"]
    assert found["graph"][3]["inputs"] == ["b", "c"]
    assert found["graph"][3]["sinks"] == [{"name": "out", "final": False}]


def test_chained_stages_are_in_the_graph_and_have_a_status(tmp_path: Path) -> None:
    """`raw` and `clean` run in the query of `out`."""
    graph = r.Topology(
        {
            "out": r.StageSpec("out", (), "main", (r.SinkSpec("out"),)),
            "other": r.StageSpec("other", ("out",), "main"),
        },
        {"raw": r.ChainedStage("raw", (), "clean"), "clean": r.ChainedStage("clean", ("raw",), "out")},
    )
    store = Written(graph).write(tmp_path / "state")
    with TestClient(WebServer(store, LISTEN).app, LOCAL) as client:
        stages = client.get("/api/v1/stages").json()["stages"]
        assert [(s["name"], s["inputs"], s["runs_in"]) for s in stages] == [
            ("raw", [], "out"), ("clean", ["raw"], "out"), ("out", ["clean"], ""), ("other", ["out"], ""),
        ]  # fmt: skip
        assert client.get("/api/v1/stages/clean").json()["member"] == "main"


@pytest.mark.parametrize("ref", ["1", "2", "before-deploy", "latest"])
def test_a_checkpoint_and_its_explanation_are_what_the_commands_print(
    client: TestClient, store: Store, ref: str
) -> None:
    assert client.get(f"/api/v1/checkpoints/{ref}").json() == document("show", ref, "--store", store.url)
    explained = client.get(f"/api/v1/checkpoints/{ref}/explain").json()
    assert explained == document("explain", ref, "--store", store.url)


def test_an_aborted_epoch_is_explained(client: TestClient) -> None:
    assert client.get("/api/v1/checkpoints/4").status_code == 404
    found = client.get("/api/v1/checkpoints/4/explain").json()
    assert (found["fate"], found["reason"] != "", found["advice"] != "") == ("aborted", True, True)


def test_the_list_has_the_fields_of_the_command_and_epochs_that_failed(
    client: TestClient, store: Store
) -> None:
    found = client.get("/api/v1/checkpoints").json()
    rows = {row["epoch"]: row for row in found["checkpoints"]}
    assert list(rows) == [4, 3, 2, 1]
    for kept in document("checkpoints", "--store", store.url)["checkpoints"]:
        row = rows[kept["epoch"]]
        assert {name: row[name] for name in kept} == kept
    assert (rows[2]["kind"], rows[2]["result"], rows[4]["result"]) == ("savepoint", "committed", "aborted")
    assert rows[3]["written_bytes"] is not None
    assert found["figures"]["took_s"] == {"min": 12.3, "median": 12.3, "p99": 12.3, "max": 12.3}
    assert (found["figures"]["kept"], found["figures"]["restored"]) == (3, 0)


@pytest.mark.parametrize(("only", "epochs"), [("kept", [3, 2, 1]), ("savepoints", [2]), ("aborted", [4])])
def test_the_list_can_be_restricted(client: TestClient, only: str, epochs: list[int]) -> None:
    found = client.get(f"/api/v1/checkpoints?only={only}").json()
    assert [row["epoch"] for row in found["checkpoints"]] == epochs
    assert found["total"] == len(epochs)


def test_the_list_comes_in_pages(client: TestClient) -> None:
    first = client.get("/api/v1/checkpoints?limit=3").json()
    assert [row["epoch"] for row in first["checkpoints"]] == [4, 3, 2]
    second = client.get(f"/api/v1/checkpoints?limit=3&before={first['next']}").json()
    assert ([row["epoch"] for row in second["checkpoints"]], second["next"]) == ([1], None)


@pytest.mark.parametrize("limit", ["0", "501", "-1", "x", "", "9" * 30, "٣"])
def test_a_limit_must_be_a_number(client: TestClient, limit: str) -> None:
    found = client.get("/api/v1/checkpoints", params={"limit": limit})
    assert (found.status_code, "limit is a number" in found.json()["error"]) == (400, True)


@pytest.mark.parametrize(
    "path",
    [
        "stages/x", "checkpoints/5", "checkpoints/0", "checkpoints/nobody", "checkpoints/99999999999999999999999",
        "checkpoints/5/explain", "checkpoints/-1/explain", "requests/x", "nothing", "checkpoints/..%2f..%2fformat.json",
        "..%2f..%2fetc%2fpasswd", "pipeline/", "checkpoints/",
    ],
)  # fmt: skip
def test_what_does_not_exist_is_404_with_a_reason(client: TestClient, path: str) -> None:
    found = client.get(f"/api/v1/{path}")
    assert found.status_code == 404
    assert found.headers["content-type"] == "application/json"
    assert list(found.json()) == ["error"]


def test_tables_list_the_versions_of_each_epoch(client: TestClient, store: Store) -> None:
    found = client.get("/api/v1/tables").json()
    said = document("tables", "--store", store.url)
    assert {name: found[name] for name in said} == said
    assert [one["epoch"] for one in found["epochs"]] == [3, 2, 1]
    assert found["epochs"][0]["tables"]["out"]["version"] == 103


def test_a_table_that_has_not_published_an_epoch_says_so_until_it_has(
    tmp_path: Path, history: Written
) -> None:
    store = history.write(tmp_path / "state", unmarked=(3,))
    client = TestClient(WebServer(store, LISTEN).app, LOCAL)
    assert client.get("/api/v1/tables").json()["epochs"][0]["tables"] == {"out": None}
    assert client.get("/api/v1/pipeline").json()["journal"]["unpublished"] == ["out"]
    index = history.state.committed[3].index
    store.create(mark_name(index, "out"), r.encode(r.Published(3, "out", index, 103)))
    server = WebServer(store, LISTEN)
    server.reader.look()
    found = TestClient(server.app, LOCAL).get("/api/v1/tables").json()["epochs"][0]["tables"]
    assert found["out"]["version"] == 103


def test_the_timeline_has_a_branch_per_generation(tmp_path: Path, history: Written) -> None:
    history.record(r.Restored(1, 2, 1, history.state.committed[1].cuts))
    client = TestClient(WebServer(history.write(tmp_path / "state"), LISTEN).app, LOCAL)
    found = client.get("/api/v1/timeline").json()
    assert [(g["generation"], g["parent"], g["epoch"]) for g in found["generations"]] == [
        (1, None, None),
        (2, 1, 1),
    ]
    assert [e["epoch"] for e in found["epochs"] if e["abandoned"]] == [2, 3]
    assert found["epochs"][1]["savepoints"] == ["before-deploy"]


def test_stages_have_the_status_that_their_member_reports(client: TestClient, store: Store) -> None:
    assert client.get("/api/v1/stages/a").json()["status"] is None
    put_status(store)
    found = TestClient(WebServer(store, LISTEN).app, LOCAL).get("/api/v1/stages").json()["stages"]
    assert {s["name"]: s["status"] and s["status"]["state"] for s in found} == {
        "a": "running", "b": "idle", "c": "restarting", "d": None,
    }  # fmt: skip


def test_a_running_member_is_shown_as_running(store: Store) -> None:
    server = WebServer(store, LISTEN)
    with beating(store):
        server.reader.look()
        members = server.reader.pipeline(_until_running(server))["members"]
    assert [(m["member"], m["alive"], m["presence"]) for m in members] == [("main", True, "running")]


def _until_running(server: WebServer):  # type: ignore[no-untyped-def]
    while True:
        sight = server.reader.look()
        if any(seen.presence.value == "running" for seen in sight.members):
            return sight


def test_a_damaged_manifest_is_reported(client: TestClient, store: Store, history: Written) -> None:
    store.delete([manifest_name(3, history.state.committed[3].checkpoint_id)])
    row = client.get("/api/v1/checkpoints").json()["checkpoints"][1]
    assert (row["epoch"], "damaged" in row["flags"], row["state_bytes"]) == (3, True, None)
    assert "is missing" in client.get("/api/v1/checkpoints/3").json()["problem"]


def test_an_empty_store_is_shown_as_empty(tmp_path: Path) -> None:
    client = TestClient(WebServer(open_store(str(tmp_path), create=True), LISTEN).app, LOCAL)
    assert client.get("/api/v1/pipeline").json()["graph"] == []
    assert client.get("/api/v1/checkpoints").json()["checkpoints"] == []
    assert client.get("/api/v1/tables").json()["epoch"] is None
    assert client.get("/api/v1/checkpoints/latest").status_code == 404


def test_a_store_that_fails_is_503(client: TestClient, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError("the disk is on fire")

    monkeypatch.setattr("cutwater.web.reader.drive", broken)
    found = client.get("/api/v1/pipeline")
    assert (found.status_code, "on fire" in found.text) == (503, False)
    assert "the log of the server says why" in found.json()["error"]


def test_an_unexpected_failure_shows_no_trace(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret detail")

    server = WebServer(store, LISTEN)
    monkeypatch.setattr(server.reader, "timeline", broken)
    found = TestClient(server.app, LOCAL, raise_server_exceptions=False).get("/api/v1/timeline")
    assert found.status_code == 500
    assert found.headers["content-type"] == "application/json"
    assert "secret" not in found.text
    assert "Traceback" not in found.text
