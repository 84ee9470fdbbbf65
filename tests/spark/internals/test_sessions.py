"""Trying a file system of Hadoop's, with a model of it."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from cutwater.spark.internals import sessions


class TriedFileSystem:
    """A file system of Hadoop's whose operation `fails` does not work."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.did: list[str] = []
        self.settings: dict[str, str] = {}
        stream = SimpleNamespace(close=lambda: self.did.append("closed stream"))
        for name in ("create", "open", "listStatus", "delete"):
            setattr(self, name, partial(self._do, name, stream))

    def _do(self, name: str, stream: Any, *_: Any) -> Any:
        if name == self.fails:
            raise self.error()
        self.did.append(name)
        return stream

    def error(self) -> Any:
        class Raised(Py4JJavaError):  # type: ignore[misc]
            def __init__(self) -> None:
                self.java_exception = SimpleNamespace(
                    getCause=lambda: None,
                    getMessage=lambda: "Access Denied (Service: S3)",
                    getClass=lambda: SimpleNamespace(getSimpleName=lambda: "Error"),
                )

        return Raised()

    def newInstance(self, uri: str, conf: Any) -> Any:
        if self.fails == "newInstance":
            raise self.error()
        return self

    def close(self) -> None:
        self.did.append("closed")

    @property
    def spark(self) -> Any:
        conf = SimpleNamespace(Configuration=lambda given: SimpleNamespace(set=self.settings.__setitem__))
        fs = SimpleNamespace(Path=lambda url: SimpleNamespace(toUri=lambda: url), FileSystem=self)
        hadoop = SimpleNamespace(fs=fs, conf=conf)
        jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(hadoop=hadoop)))
        state = SimpleNamespace(newHadoopConf=lambda: None)
        return SimpleNamespace(
            sparkContext=SimpleNamespace(_jvm=jvm), _jsparkSession=SimpleNamespace(sessionState=lambda: state)
        )


def test_a_file_system_is_tried_and_closed() -> None:
    tried = TriedFileSystem()
    sessions.use_file_system(tried.spark, "s3a://b/x", {"fs.s3a.attempts": "1"})
    assert tried.did == ["create", "closed stream", "open", "closed stream", "listStatus", "delete", "closed"]
    assert tried.settings == {"fs.s3a.attempts": "1"}


@pytest.mark.parametrize(
    ("fails", "doing"),
    [
        ("newInstance", "open its file system"),
        ("create", "write"),
        ("open", "read"),
        ("listStatus", "list"),
        ("delete", "delete"),
    ],
)
def test_a_file_system_that_fails_says_at_what_and_is_closed(fails: str, doing: str) -> None:
    tried = TriedFileSystem(fails)
    with pytest.raises(sessions.FileSystemFailed, match=f"^cannot {doing}: Access Denied$"):
        sessions.use_file_system(tried.spark, "s3a://b/x", {})
    assert (tried.did[-1:] == ["closed"]) is (fails != "newInstance")
