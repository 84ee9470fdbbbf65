"""Packages that Spark is configured to load: error messages for those that cannot be resolved, or are missing."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pyspark

PACKAGES = "spark.jars.packages"
_UNRESOLVED = re.compile(r"unresolved dependency: ([^#\s]+)#([^;\s]+);([^:\s]+)")
"""How Ivy, with which Spark resolves packages, names one that it cannot find."""
_NO_KAFKA = re.compile(r"Failed to find (?:the )?data source: kafka\b")
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
CONNECTORS = {"4.0": "4.0.4", "4.1": "4.1.3", "4.2": "4.2.0"}
"""The newest connector that is published for each version of Spark."""


def unresolved(lines: Iterable[str]) -> list[str]:
    """The coordinates that Spark could not resolve, from what it printed before it ended."""
    return sorted({":".join(match.groups()) for line in lines for match in _UNRESOLVED.finditer(line)})


def unresolved_message(missing: Iterable[str]) -> str:
    """What to do about packages that cannot be resolved."""
    names = list(missing)
    said = (
        f"Spark cannot find the package {', '.join(names)} that {PACKAGES} asks for, or something that it needs: check "
        "the coordinates, and that its repository can be reached (spark.jars.repositories, spark.jars.ivySettings)"
    )
    return f"{said}. {kafka_advice()}" if any("-kafka-" in name for name in names) else said


def is_kafka_missing(error: BaseException) -> bool:
    """Whether Spark has no Kafka source."""
    return _NO_KAFKA.search(str(error)) is not None


def kafka_advice(version: str = pyspark.__version__) -> str:
    """Where the Kafka connector for a version of Spark comes from."""
    newest = CONNECTORS.get(".".join(version.split(".")[:2]))
    if newest is None:
        return (
            f"For Spark {version} no connector is published; that of 4.2 works with 4.3. Put its jars on the class "
            f"path with --conf spark.jars=FILE,FILE...: {CONNECTOR}:{CONNECTORS['4.2']} and what it needs, which "
            "docs/kafka.md lists"
        )
    return (
        f"For Spark {version} it is --conf {PACKAGES}={CONNECTOR}:{newest}; if Spark cannot resolve that, list its jars "
        "with spark.jars (docs/kafka.md)"
    )
