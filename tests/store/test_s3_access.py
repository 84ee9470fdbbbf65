"""One set of settings for S3, from Spark or from the environment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cutwater.protocol.base.errors import StoreError
from cutwater.store import s3_access
from cutwater.store.s3_access import access_to, adopt, from_environment


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (
        "ENDPOINT_URL",
        "ENDPOINT_URL_S3",
        "REGION",
        "DEFAULT_REGION",
        "VIRTUAL_HOSTED_STYLE_REQUEST",
    ):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    before = dict(s3_access._adopted)
    adopt({})
    yield
    adopt(before)


def test_without_settings_nothing_is_added() -> None:
    assert access_to("s3://b/x") == ({}, False)
    assert from_environment({}) == {}
    adopt({"fs.s3a.endpoint": "http://h:1"})
    assert access_to("gs://b/x") == ({}, False)


def test_an_endpoint_in_the_environment_reaches_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://general:1")
    assert from_environment({}) == {
        "fs.s3a.endpoint": "http://general:1",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.endpoint.region": "us-east-1",
    }
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://special:2/")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert from_environment({})["fs.s3a.endpoint.region"] == "eu-west-1"
    config, allows_http = access_to("s3a://b/x")
    assert allows_http
    assert config == {
        "aws_endpoint": "http://special:2",
        "aws_virtual_hosted_style_request": "false",
        "aws_region": "eu-west-1",
    }


def test_what_spark_was_given_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://env:1")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    given = {
        "fs.s3a.endpoint": "minio:9000",
        "fs.s3a.connection.ssl.enabled": "false",
        "fs.s3a.access.key": "me",
        "fs.s3a.secret.key": "hush",
        "fs.s3a.session.token": "t",
    }
    added = from_environment(given)
    assert added == {"fs.s3a.path.style.access": "true", "fs.s3a.endpoint.region": "eu-west-1"}
    adopt(given | added)
    access = access_to("s3://b/x")
    assert access.storage_options() == {
        "aws_endpoint": "http://minio:9000",
        "aws_virtual_hosted_style_request": "false",
        "aws_region": "eu-west-1",
        "aws_access_key_id": "me",
        "aws_secret_access_key": "hush",
        "aws_session_token": "t",
        "allow_http": "true",
    }


def test_settings_of_one_bucket_win_for_that_bucket() -> None:
    adopt({"fs.s3a.endpoint": "https://a", "fs.s3a.bucket.my.own.endpoint": "https://b"})
    assert access_to("s3://other/x").config["aws_endpoint"] == "https://a"
    assert access_to("s3://my.own/x").config["aws_endpoint"] == "https://b"


def test_virtual_hosts_name_the_bucket_in_the_endpoint() -> None:
    adopt({"fs.s3a.endpoint": "https://s3.example", "fs.s3a.path.style.access": "false"})
    config = access_to("s3://b/x").config
    assert config["aws_endpoint"] == "https://b.s3.example"
    assert config["aws_virtual_hosted_style_request"] == "true"


def test_anonymous_access_signs_nothing() -> None:
    adopt({"fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"})
    assert access_to("s3://b/x").config == {"aws_skip_signature": "true"}


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:9000", "127.0.0.1", "https://[::1]:9", "http://b.10.0.0.1:1"]
)
def test_a_bucket_is_not_put_before_an_ip_address(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    adopt({"fs.s3a.endpoint": endpoint})
    assert access_to("s3://b/x").config["aws_virtual_hosted_style_request"] == "false"
    adopt({"fs.s3a.endpoint": endpoint, "fs.s3a.path.style.access": "false"})
    with pytest.raises(
        StoreError, match=r"is an IP address, .* use path style\. Unset AWS_VIRTUAL_HOSTED_STYLE_REQUEST"
    ):
        access_to("s3://b/x")
    adopt({"fs.s3a.path.style.access": "false", "fs.s3a.endpoint": "http://127.0.0.1.nip.io:9000"})
    assert access_to("s3://b/x").config["aws_endpoint"] == "http://b.127.0.0.1.nip.io:9000"


@pytest.mark.parametrize(
    "endpoint", ["http://host:port", "http://my host:1", "http://:9000", "http://[::1", "http://"]
)
def test_an_endpoint_that_is_not_an_address_is_refused_in_one_line(endpoint: str) -> None:
    adopt({"fs.s3a.endpoint": endpoint})
    with pytest.raises(StoreError, match="is not the address of a server: give http://HOST:PORT"):
        access_to("s3://b/x")


@pytest.mark.parametrize("value", ["true", "True", "TRUE", " true ", "\ttrue\n"])
def test_a_setting_is_true_as_hadoop_reads_it(value: str) -> None:
    adopt({"fs.s3a.endpoint": "http://h:1", "fs.s3a.path.style.access": value})
    config = access_to("s3://b/first/second").config
    assert config["aws_endpoint"] == "http://h:1"
    assert config["aws_virtual_hosted_style_request"] == "false"


@pytest.mark.parametrize("value", ["false", "False", " FALSE "])
def test_a_setting_is_false_as_hadoop_reads_it(value: str) -> None:
    adopt(
        {
            "fs.s3a.endpoint": "h:1",
            "fs.s3a.path.style.access": value,
            "fs.s3a.connection.ssl.enabled": value,
        }
    )
    access = access_to("s3://b/x")
    assert (access.config["aws_endpoint"], access.allows_http) == ("http://b.h:1", True)
    assert access.config["aws_virtual_hosted_style_request"] == "true"


@pytest.mark.parametrize(
    "name", ["path.style.access", "connection.ssl.enabled", "bucket.b.path.style.access"]
)
def test_a_setting_that_is_neither_true_nor_false_is_refused_by_name(name: str) -> None:
    adopt({"fs.s3a.endpoint": "http://h:1", f"fs.s3a.{name}": "yes"})
    with pytest.raises(StoreError, match=f"fs.s3a.{name} is 'yes', which is neither true nor false"):
        access_to("s3://b/first/second")


def test_the_choice_of_virtual_hosts_in_the_environment_is_true_or_false(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    adopt({"fs.s3a.endpoint": "http://h.example:1"})
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", " True ")
    assert access_to("s3://b/x").config["aws_endpoint"] == "http://b.h.example:1"
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "1")
    with pytest.raises(StoreError, match="AWS_VIRTUAL_HOSTED_STYLE_REQUEST is '1'"):
        access_to("s3://b/x")


def test_only_the_style_of_a_bucket_itself_counts() -> None:
    adopt(
        {
            "fs.s3a.endpoint": "http://h.example:1",
            "fs.s3a.path.style.access": "true",
            "fs.s3a.bucket.own.path.style.access": "False",
        }
    )
    assert access_to("s3://b/x").config["aws_endpoint"] == "http://h.example:1"
    assert access_to("s3://own/x").config["aws_endpoint"] == "http://own.h.example:1"
