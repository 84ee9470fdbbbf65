"""Real pipelines whose store and tables are on a real S3 server, which Spark reaches through Hadoop's S3A, behind a proxy
that makes requests fail. `make test-s3`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from typer.testing import CliRunner

from cutwater.cli.main import app
from cutwater.protocol.base.errors import StoreError
from cutwater.store.at_rest import read_journal
from cutwater.store.opening import open_store
from tests.faults.inputs import MATCHED, ORDERS, PAID_REVENUE, PAYMENTS
from tests.faults.runner import Bench
from tests.support.s3_proxy import Fault, S3Proxy, s3_proxy, storm
from tests.support.s3_server import BUCKET, TOOLS, S3Server, find_server, s3_server

JARS = sorted((TOOLS.parent / "jars").glob("*.jar"))

pytestmark = [
    pytest.mark.s3,
    pytest.mark.slow,
    pytest.mark.skipif(
        find_server() is None or len(JARS) < 3,
        reason="no S3 server, or no S3A for Spark; `make tools` fetches them",
    ),
]

SHOP = {"orders": ORDERS, "payments": PAYMENTS, "matched": MATCHED, "revenue": PAID_REVENUE}
CONF = {"spark.jars": ",".join(map(str, JARS))}
RATE = 0.01
"""The part of the requests that fail in a storm: one or two in every batch."""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with s3_server(tmp_path / "s3") as running:
        for key, value in running.environment.items():
            monkeypatch.setenv(key, value)
        yield running


@pytest.fixture
def proxy(server: S3Server) -> Iterator[S3Proxy]:
    with s3_proxy(server.port) as running:
        yield running


@pytest.fixture
def bench(tmp_path: Path, server: S3Server, proxy: S3Proxy) -> Iterator[Bench]:
    """The pipelines go through the proxy. The test itself reads from the server."""
    tables = f"s3://{BUCKET}/tables"
    made = Bench(tmp_path, "shop", store=server.url, tables=tables, env={"AWS_ENDPOINT_URL": proxy.endpoint})
    yield made
    made.end_all()


def command(*words: str) -> object:
    """The output of a command, which must succeed."""
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


@pytest.mark.timeout(1800)
def test_a_pipeline_on_s3_is_killed_restarted_and_restored_in_a_storm(bench: Bench, proxy: S3Proxy) -> None:
    proxy.weather = storm(1, RATE)
    for place in (
        "after prepared@matched",
        "before journal entry@COMMITTED:2",
        "after publish@orders",
        "during folder@matched",
    ):
        bench.input.add(2)
        bench.run_killed(place, conf=CONF)
    bench.input.add(2)
    bench.run("savepoint=good", "drain", conf=CONF)
    bench.check(**SHOP)
    assert set(proxy.faults) == set(Fault), "some kind of fault has never happened"
    store = open_store(bench.store)
    listed = {entry["path"] for entry in obstore.list(store._bucket).collect()}  # type: ignore[attr-defined]
    assert listed - set(store.list("")), "S3A has left no folder markers, so nothing is proved about them"

    bench.input.amount = 7
    bench.input.add(2)
    bench.run(conf=CONF)
    bench.check(orders=ORDERS)
    bench.input.remove(2)
    bench.input.amount = 97
    bench.input.add(2)
    bench.run_killed("before folder@matched", restore="good", conf=CONF)
    bench.run(restore="good", conf=CONF)
    bench.check(**SHOP)
    assert read_journal(store).state.generation == 3

    command("gc", "--store", bench.store)
    command("verify", "--tables", "--store", bench.store)
    proxy.weather = storm(2, RATE)
    bench.input.add(2)
    bench.run(conf=CONF)
    bench.check(**SHOP)


def test_settings_of_spark_alone_reach_the_store_and_the_tables(
    bench: Bench, proxy: S3Proxy, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = server.environment
    conf = CONF | {
        "spark.hadoop.fs.s3a.endpoint": proxy.endpoint,
        "spark.hadoop.fs.s3a.access.key": keys["AWS_ACCESS_KEY_ID"],
        "spark.hadoop.fs.s3a.secret.key": keys["AWS_SECRET_ACCESS_KEY"],
    }
    bench.env = {}
    bench.kind = "stateless"
    bench.store = bench.store.replace("s3://", "s3a://")
    bench.input.add(2)
    with monkeypatch.context() as nothing:
        for key in keys:
            nothing.delenv(key)
        bench.run(conf=conf)
    bench.check(orders=ORDERS)
    assert {request.client for request in proxy.requests} == {"spark", "cutwater"}


def test_without_s3a_the_error_says_what_to_add(bench: Bench) -> None:
    bench.input.add(1)
    child = bench.start()
    assert child.end() == 1
    assert "Spark cannot read or write s3a:// yet; start with --conf spark.jars.packages=" in child.said()


WRONG = {
    "region": {"AWS_REGION": "eu-north-1"},
    "endpoint": {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
    "secret": {"AWS_SECRET_ACCESS_KEY": "wrong"},
    "permission": {"AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": "somebody-secret"},
}
TRIALS = """
import json, os, sys, time
from cutwater.protocol.base.errors import UserError
from cutwater.spark.session import make_session, try_file_systems

given = json.loads(sys.argv[1])
spark = make_session("trials", "local[1]", given["conf"])
names = {
    "AWS_REGION": "endpoint.region", "AWS_ENDPOINT_URL": "endpoint",
    "AWS_ACCESS_KEY_ID": "access.key", "AWS_SECRET_ACCESS_KEY": "secret.key",
}
try_file_systems(spark, [given["root"]])
for case, settings in given["cases"].items():
    session = spark.newSession()
    for key, value in settings.items():
        session.conf.set(f"fs.s3a.{names[key]}", value)
    began = time.monotonic()
    try:
        try_file_systems(session, [given["root"]])
        said = ""
    except UserError as error:
        said = str(error)
    print("TRIAL", json.dumps([case, said, time.monotonic() - began]), flush=True)
"""
SOON_S = 60.0
"""Most of it is for a busy machine: each takes a few seconds."""
SAID = {
    "region": r"region",
    "endpoint": r"[Cc]onnect.*127\.0\.0\.1:9",
    "secret": r"signature|Signature",
    "permission": r"Access ?Denied",
}


def test_a_wrong_setting_is_one_line_within_seconds_from_spark(server: S3Server) -> None:
    server.add_user("somebody", "somebody-secret")
    given = {"conf": CONF, "root": f"s3a://{BUCKET}/pipelines/orders", "cases": WRONG}
    done = subprocess.run(
        [sys.executable, "-c", TRIALS, json.dumps(given)], capture_output=True, text=True, timeout=600
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("TRIAL ")]
    trials = [json.loads(line.removeprefix("TRIAL ")) for line in lines]
    assert [case for case, _, _ in trials] == list(WRONG), done.stdout + done.stderr
    for case, said, took_s in trials:
        assert said.startswith(f"Spark cannot use s3a://{BUCKET}/pipelines/orders: cannot "), (case, said)
        assert re.search(SAID[case], said), (case, said)
        assert "\n" not in said
        assert took_s < SOON_S, (case, took_s)


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_setting_is_one_line_within_seconds_from_the_store(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    server.add_user("somebody", "somebody-secret")
    for key, value in WRONG[case].items():
        monkeypatch.setenv(key, value)
    began = time.monotonic()
    with pytest.raises((StoreError, OSError)) as raised:
        open_store(server.url, create=True)
    said = str(raised.value)
    assert re.search(SAID[case], said), said
    assert server.url in said
    assert "\n" not in said
    assert time.monotonic() - began < SOON_S


def test_doctor_writes_a_probe_through_spark(server: S3Server, proxy: S3Proxy) -> None:
    words = ["doctor", "--spark", "--master", "local[1]", "--store", server.url, "--json"]
    words += ["--conf", f"spark.jars={CONF['spark.jars']}"]
    environment = {**os.environ, "AWS_ENDPOINT_URL": proxy.endpoint}
    done = subprocess.run(
        [sys.executable, "-m", "cutwater", *words],
        capture_output=True, text=True, timeout=600, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    written = {request.client for request in proxy.requests if request.method == "PUT"}
    assert written == {"spark", "cutwater"}
    assert open_store(server.url).list("") == []


def test_what_spark_cannot_do_is_reported_at_once(bench: Bench, proxy: S3Proxy) -> None:
    """The store has its own keys, and Spark has wrong ones."""
    bench.input.add(1)
    nobody = "software.amazon.awssdk.auth.credentials.AnonymousCredentialsProvider"
    child = bench.start(conf=CONF | {"spark.hadoop.fs.s3a.aws.credentials.provider": nobody})
    assert child.end() == 1
    assert "Spark cannot use s3a://cutwater/pipelines/orders: cannot " in child.said()
    assert "Traceback" not in child.said().rpartition("UserError")[2]
