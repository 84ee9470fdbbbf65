"""How to reach S3: endpoint, region, path style and keys, given once for the store, for tables and for Spark.

They come from the settings of Hadoop's S3A (`--conf spark.hadoop.fs.s3a.*`, spark-submit, `spark-defaults.conf`), and
what is missing there from the environment (AWS_*). A process without Spark has only the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from cutwater.protocol.base.errors import StoreError

PREFIX = "fs.s3a."
ENDPOINT = "endpoint"
REGION = "endpoint.region"
PATH_STYLE = "path.style.access"
TLS = "connection.ssl.enabled"
PROVIDER = "aws.credentials.provider"
_KEYS = {
    "access.key": "aws_access_key_id",
    "secret.key": "aws_secret_access_key",
    "session.token": "aws_session_token",
}
SETTINGS = (ENDPOINT, REGION, PATH_STYLE, TLS, PROVIDER, *_KEYS)
"""The settings of S3A, without `fs.s3a.` or `fs.s3a.bucket.NAME.`, that both sides follow."""

_ANY_REGION = "us-east-1"
"""The region of servers that have none. It is part of every signature, so both sides must name one."""

_VIRTUAL_HOSTS = "AWS_VIRTUAL_HOSTED_STYLE_REQUEST"
_HOST = re.compile(r"[^\s/?#@\\%<>^`{|}\[\]]+")

_adopted: dict[str, str] = {}


class S3Access(NamedTuple):
    """What obstore and deltalake need besides the environment, which both read on their own."""

    config: dict[str, str]
    """Settings with the names that both use."""
    allows_http: bool

    def storage_options(self) -> dict[str, str]:
        """For deltalake."""
        return self.config | ({"allow_http": "true"} if self.allows_http else {})


def adopt(settings: Mapping[str, str]) -> None:
    """From now on, use these settings of S3A (`fs.s3a.*`) in this process. A process has one SparkContext."""
    _adopted.clear()
    _adopted.update(settings)


def from_environment(given: Mapping[str, str]) -> dict[str, str]:
    """The settings of S3A that the environment adds to those that the user has given. (Spark itself passes on the
    keys.)"""
    added: dict[str, str] = {}
    endpoint, region = _environment_endpoint(), _environment_region()
    if endpoint and not given.get(f"{PREFIX}{ENDPOINT}"):
        added[f"{PREFIX}{ENDPOINT}"] = endpoint
    has_endpoint = given.get(f"{PREFIX}{ENDPOINT}") or endpoint
    if has_endpoint and not given.get(f"{PREFIX}{PATH_STYLE}", "").strip():
        added[f"{PREFIX}{PATH_STYLE}"] = "false" if _wants_virtual_hosts() else "true"
    if not given.get(f"{PREFIX}{REGION}") and (region or has_endpoint):
        added[f"{PREFIX}{REGION}"] = region or _ANY_REGION
    return added


def access_to(url: str) -> S3Access:
    """How to reach the bucket of a URL; nothing special if it is not on S3. Raises `StoreError` if its endpoint cannot be
    one (obstore would crash), or if a truth value is none (another bucket might be used)."""
    parts = urlsplit(url)
    if parts.scheme not in ("s3", "s3a"):
        return S3Access({}, False)
    bucket = parts.netloc

    def given(key: str) -> str:
        return _adopted.get(f"{PREFIX}bucket.{bucket}.{key}") or _adopted.get(f"{PREFIX}{key}") or ""

    def is_true(key: str, default: bool) -> bool:
        of_bucket = f"{PREFIX}bucket.{bucket}.{key}"
        name = of_bucket if _adopted.get(of_bucket) else f"{PREFIX}{key}"
        return _truth(name, _adopted.get(name, ""), default)

    endpoint = given(ENDPOINT) or _environment_endpoint()
    region = given(REGION) or _environment_region() or (_ANY_REGION if endpoint else "")
    config: dict[str, str] = {}
    if endpoint:
        uses_tls, is_by_path = is_true(TLS, True), is_true(PATH_STYLE, not _wants_virtual_hosts())
        if "://" not in endpoint:
            endpoint = f"{'https' if uses_tls else 'http'}://{endpoint}"
        _check_endpoint(endpoint, is_by_path)
        if not is_by_path:
            scheme, _, host = endpoint.partition("://")
            endpoint = endpoint if host.startswith(f"{bucket}.") else f"{scheme}://{bucket}.{host}"
        config["aws_endpoint"] = endpoint.rstrip("/")
        config["aws_virtual_hosted_style_request"] = "false" if is_by_path else "true"
    if region:
        config["aws_region"] = region
    if given("access.key") and given("secret.key"):
        config |= {name: given(key) for key, name in _KEYS.items() if given(key)}
    elif "AnonymousAWSCredentialsProvider" in given(PROVIDER):
        config["aws_skip_signature"] = "true"
    return S3Access(config, endpoint.startswith("http://"))


def _truth(name: str, value: str, default: bool) -> bool:
    """A truth value as Hadoop reads it: in any case, with spaces around it. Hadoop takes anything else for the default,
    without a word; here it is refused."""
    value = value.strip()
    if not value:
        return default
    if value.lower() not in ("true", "false"):
        raise StoreError(
            f"the setting {name} is {value!r}, which is neither true nor false: set it to one of them"
        )
    return value.lower() == "true"


def _check_endpoint(endpoint: str, is_by_path: bool) -> None:
    try:
        parts = urlsplit(endpoint)
        host, _ = parts.hostname or "", parts.port
    except ValueError:  # not a port, or half an address of IPv6
        host = ""
    if not _HOST.fullmatch(host):
        raise StoreError(
            f"the S3 endpoint {endpoint} is not the address of a server: give http://HOST:PORT or https://HOST:PORT, in "
            "AWS_ENDPOINT_URL or --conf spark.hadoop.fs.s3a.endpoint"
        )
    if not is_by_path and (":" in host or host.rstrip(".").rpartition(".")[2].isdecimal()):
        raise StoreError(
            f"the S3 endpoint {endpoint} is an IP address, and the name of a bucket cannot be put before it: use path "
            "style. Unset AWS_VIRTUAL_HOSTED_STYLE_REQUEST, or set --conf spark.hadoop.fs.s3a.path.style.access=true; "
            "or give the endpoint by a host name"
        )


def _environment_endpoint() -> str:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""


def _environment_region() -> str:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or ""


def _wants_virtual_hosts() -> bool:
    return _truth(_VIRTUAL_HOSTS, os.environ.get(_VIRTUAL_HOSTS, ""), False)
