"""A Spark session without a JVM."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession


class Values(dict[str, str]):
    """Settings with the interface of Spark's and Hadoop's."""

    def set(self, key: str, value: str, *source: str) -> None:
        self[key] = value

    def getValByRegex(self, pattern: str) -> dict[str, str]:
        return {key: value for key, value in self.items() if re.search(pattern, key)}

    def getPropertySources(self, key: str) -> list[str]:
        """Hadoop knows where each setting comes from."""
        return self.sources.get(key, ["programmatically"])

    sources: ClassVar[dict[str, list[str]]] = {}


class FakeSession(SparkSession):
    """A session without a JVM."""

    def __init__(self) -> None:
        self.settings, self.hadoop = Values(), Values()
        self.schemes = {"file"}
        self.stopped: BaseException | None = None
        self.level = ""

    @property
    def conf(self) -> Any:
        return self.settings

    @property
    def sparkContext(self) -> Any:
        def find(scheme: str, _: Any) -> None:
            if scheme not in self.schemes:
                raise Py4JJavaError("no", SimpleNamespace(_target_id="x", _gateway_client=None))

        fs = SimpleNamespace(FileSystem=SimpleNamespace(getFileSystemClass=find))
        version = SimpleNamespace(VersionInfo=SimpleNamespace(getVersion=lambda: "3.4.2"))
        hadoop = SimpleNamespace(fs=fs, util=version)
        jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(hadoop=hadoop)))
        return SimpleNamespace(
            _jsc=SimpleNamespace(hadoopConfiguration=lambda: self.hadoop),
            _jvm=jvm,
            setLogLevel=self._set_level,
        )

    def _set_level(self, level: str) -> None:
        if self.stopped is not None:
            raise self.stopped
        self.level = level

    def stop(self) -> None:
        if self.stopped is not None:
            raise self.stopped


def clear_s3_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
