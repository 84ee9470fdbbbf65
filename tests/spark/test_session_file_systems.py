"""The file systems of a session: S3's settings, and what is missing or does not answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from cutwater.protocol.base.errors import UserError
from cutwater.spark import session
from cutwater.spark.internals import sessions
from cutwater.store import s3_access
from tests.support.fake_session import FakeSession, Values, clear_s3_environment


@pytest.fixture
def no_s3_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    clear_s3_environment(monkeypatch)


@pytest.fixture
def nothing_adopted() -> Iterator[None]:
    before = dict(s3_access._adopted)
    yield
    s3_access.adopt(before)


@pytest.mark.usefixtures("no_s3_environment", "nothing_adopted")
def test_spark_and_the_store_use_the_s3_server_of_the_environment_unless_the_user_has_set_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def s3_settings(**before: str) -> dict[str, str]:
        given = FakeSession()
        given.hadoop.update({f"fs.s3a.endpoint{key}": value for key, value in before.items()})
        session._configure_s3a(given.hadoop, given.hadoop)
        return {key.removeprefix("fs.s3a."): value for key, value in given.hadoop.items()}

    monkeypatch.setenv("AWS_DEFAULT_REGION", "here")
    assert s3_settings() == {"endpoint.region": "here"}
    monkeypatch.setenv("AWS_REGION", "there")
    assert s3_settings() == {"endpoint.region": "there"}
    assert s3_settings(**{".region": "own"}) == {"endpoint.region": "own"}
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://a")
    server = {"endpoint": "http://a", "path.style.access": "true", "endpoint.region": "there"}
    assert s3_settings() == s3_settings(**{"": "http://a"}) == server
    assert s3_settings(**{"": "http://own"}) == {**server, "endpoint": "http://own"}
    assert s3_access.access_to("s3://b/x").config["aws_endpoint"] == "http://own"
    assert s3_settings() == server
    assert s3_access._adopted == {}, "the environment would be remembered as if the user had given it"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://b")
    assert s3_settings()["endpoint"] == "http://b"
    sources = {"fs.s3a.endpoint": ["core-default.xml", "Set by Spark on host from AWS_ENDPOINT_URL"]}
    monkeypatch.setattr(Values, "sources", sources)
    assert s3_settings(**{"": "http://a"})["endpoint"] == "http://b"
    assert s3_access.access_to("s3://b/x").config["aws_endpoint"] == "http://b"


def test_the_error_for_an_unreachable_bucket_names_the_missing_package() -> None:
    given = FakeSession()
    session.check_reach(given, "file:///x")
    with pytest.raises(UserError, match=r"spark.jars.packages=org.apache.hadoop:hadoop-aws:3\.4\.2"):
        session.check_reach(given, "s3a://b/x")
    with pytest.raises(UserError, match="put a Hadoop file system for gs://"):
        session.check_reach(given, "gs://b/x")


def test_an_error_of_a_file_system_is_reported_and_one_that_hangs_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = FakeSession()
    given.schemes.add("s3a")
    tried: list[str] = []

    def fail(_: object, urls: list[str], settings: dict[str, str], trying: Callable[[str], None]) -> None:
        assert settings["fs.s3a.retry.limit"] == "1"
        for url in urls:
            trying(url)
            tried.append(url)
            if "/readable/" not in url:
                raise sessions.FileSystemFailed("cannot write: Access Denied")

    monkeypatch.setattr(session, "use_file_system", fail)
    session.try_file_systems(given, ["file:///x"])
    assert tried == []
    with pytest.raises(
        UserError, match=r"^Spark cannot use s3a://b/x: cannot write: Access Denied\. .*fs\.s3a\."
    ):
        session.try_file_systems(given, ["s3a://b/x"])
    assert tried[0].startswith("s3a://b/x/.")
    tried.clear()
    roots = ["s3a://b/readable/store", "s3a://other/readable", "s3a://b/readable/store", "s3a://b/tables/t"]
    with pytest.raises(UserError, match=r"^Spark cannot use s3a://b/tables/t: cannot write: Access Denied"):
        session.try_file_systems(given, roots)
    assert [url.rpartition("/")[0] for url in tried] == ["s3a://b/readable/store", "s3a://b/tables/t"]
    forever = Event()
    monkeypatch.setattr(session, "use_file_system", lambda *_: forever.wait(30))
    monkeypatch.setattr(session, "_TRIAL_S", 0.1)
    with pytest.raises(UserError, match=r"s3a://b/x: no answer within 0\.1 s"):
        session.try_file_systems(given, ["s3a://b/x"])
    forever.set()
    with pytest.raises(UserError, match="Spark cannot read or write gs:// yet"):
        session.try_file_systems(given, ["gs://b/x"])


def java_error(name: str, message: str, cause: Any = None) -> Any:
    return SimpleNamespace(
        getMessage=lambda: message,
        getCause=lambda: cause,
        getClass=lambda: SimpleNamespace(getSimpleName=lambda: name),
    )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (java_error("S3Exception", "Access Denied (Service: S3, Status Code: 403, ...)"), "Access Denied"),
        (java_error("S3Exception", "(Service: S3, Status Code: 404, Request ID: null)"), "status 404"),
        (java_error("UnknownHostException", "nope.invalid"), "UnknownHostException: nope.invalid"),
        (
            java_error("IOException", "x", java_error("ConnectException", "Connection refused")),
            "Connection refused",
        ),
        (
            java_error(
                "SdkClientException",
                "Unable to execute HTTP request: ... (SDK Attempt Count: 1)",
                java_error(
                    "HttpHostConnectException",
                    "Connect to 127.0.0.1:9 [/127.0.0.1] failed: Connection refused",
                    java_error("ConnectException", "Connection refused"),
                ),
            ),
            "Connect to 127.0.0.1:9 [/127.0.0.1] failed: Connection refused",
        ),
        (java_error("NullPointerException", ""), "NullPointerException"),
    ],
)
def test_an_error_of_hadoop_is_reported_with_the_message_of_its_cause(error: Any, expected: str) -> None:
    assert sessions._said(error) == expected


@pytest.mark.parametrize(
    ("error", "scheme", "package"),
    [
        ('UnsupportedFileSystemException: No FileSystem for scheme "s3a"', "s3a", "hadoop-aws"),
        (
            "java.lang.RuntimeException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found",
            "s3a",
            "hadoop-aws",
        ),
        ("Class org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem not found", "abfss", "hadoop-azure"),
        ("No FileSystem for scheme ftps", "ftps", "put a Hadoop file system for ftps://"),
    ],
)
def test_an_error_about_a_missing_file_system_says_what_to_add(error: str, scheme: str, package: str) -> None:
    said = session.missing_file_system(FakeSession(), error)
    assert said is not None
    assert said.startswith(f"Spark cannot read or write {scheme}:// yet")
    assert package in said


def test_other_errors_are_not_about_a_file_system() -> None:
    assert session.missing_file_system(FakeSession(), "Class org.example.Udf not found") is None
