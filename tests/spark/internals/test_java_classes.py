"""The check that Java has the classes that we use, and our source as Spark calls it, with a model of the JVM."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from cutwater.protocol.base.errors import UserError
from cutwater.spark.internals import java as module
from cutwater.spark.internals import queries
from cutwater.spark.internals.java import NEW, Java, Need
from cutwater.spark.internals.source import SparkSource


class Jvm:
    """Classes by name, with the text that reflection gives for their constructors and methods."""

    def __init__(self, patch: pytest.MonkeyPatch, **classes: tuple[str, str]) -> None:
        self.classes = {name.replace("_", "."): shown for name, shown in classes.items()}
        self.asked: list[str] = []
        patch.setattr(module, "JavaClass", self._class)
        gateway = Gateway()
        self.spark: Any = SimpleNamespace(version="4.3.0", sparkContext=SimpleNamespace(_gateway=gateway))

    def _class(self, name: str, client: Any) -> Any:
        assert client == "client"
        static = {"MODULE$": f"the {name}"}
        return SimpleNamespace(name=name, classForName=self._found, stringOf=lambda text: text, **static)

    def _found(self, name: str) -> Any:
        self.asked.append(name)
        if name not in self.classes:
            raise Py4JJavaError("no", SimpleNamespace(_target_id="x", _gateway_client=None))
        constructors, methods = self.classes[name]
        return SimpleNamespace(getConstructors=lambda: constructors, getMethods=lambda: methods)


class Gateway:
    _gateway_client = "client"


@pytest.fixture(autouse=True)
def nothing_is_checked() -> Iterator[None]:
    known = dict(Java._checked)
    yield
    for gateway in [g for g in Java._checked if g not in known]:
        del Java._checked[gateway]


NEWER = Need("new.Thing", {NEW: (2, 3), "go": (0,)}, "old")
SHOWN = (
    "Array(public new.Thing(int,java.lang.String))",
    "Array(public void new.Thing.go(), public int new.Thing.go(a,b))",
)


def test_a_class_has_its_newest_name_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert NEWER.names == ("new.Thing", "old.Thing")
    assert Need("a.B").names == ("a.B",)
    jvm = Jvm(monkeypatch, new_Thing=SHOWN)
    java = Java(jvm.spark, [NEWER])
    assert jvm.asked == ["new.Thing"]
    assert java.name(NEWER) == java.type(NEWER).name == "new.Thing"
    assert java.singleton(NEWER) == "the new.Thing"


def test_constructors_are_distinguished_by_the_number_of_their_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    java = Java(Jvm(monkeypatch, new_Thing=SHOWN).spark, [NEWER])
    assert [count for count in range(5) if java.takes(NEWER, count)] == [2]
    none = Need("a.B", {NEW: (0,)})
    java = Java(Jvm(monkeypatch, a_B=("Array(public a.B())", "")).spark, [none])
    assert [count for count in range(5) if java.takes(none, count)] == [0]


def test_methods_are_distinguished_by_the_number_of_their_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    jvm = Jvm(monkeypatch, new_Thing=SHOWN)
    for counts in ((0,), (2,), (5, 2)):
        Java(jvm.spark, [Need("new.Thing", {"go": counts})])
    with pytest.raises(
        UserError, match=r"lacks go of new\.Thing with 1 or 3 arguments, which Cutwater needs"
    ):
        Java(jvm.spark, [Need("new.Thing", {"go": (3, 1)})])


def test_after_one_class_with_an_earlier_name_others_are_tried_so_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name that does not exist costs dozens of calls."""
    jvm = Jvm(monkeypatch, old_Thing=SHOWN, old_Other=("", ""), a_B=("", ""))
    Java(jvm.spark, [NEWER, Need("a.B"), Need("new.Other", {}, "old")])
    assert jvm.asked == ["new.Thing", "old.Thing", "a.B", "old.Other"]
    jvm.asked.clear()
    Java(jvm.spark, [Need("a.B"), Need("new.Other", {}, "old")])
    assert jvm.asked == ["a.B", "new.Other", "old.Other"]


def test_a_missing_class_is_reported_with_all_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"Spark 4\.3\.0 lacks the class new\.Thing or old\.Thing"):
        Java(Jvm(monkeypatch).spark, [NEWER])


def test_a_jvm_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    jvm = Jvm(monkeypatch)
    made: list[Any] = []

    class Checked(Java):
        def __init__(self, spark: Any) -> None:
            made.append(spark)

    assert Checked.of(jvm.spark) is Checked.of(jvm.spark)
    assert made == [jvm.spark]
    assert Checked.of(Jvm(monkeypatch).spark) is not Checked.of(jvm.spark)


# --- a source in Python -----------------------------------------------------------------------------------


class Source(SparkSource):
    reaches = "5"
    frozen = False

    def next_offset(self, start: str | None) -> str:
        return self.reaches

    def read(self, after: str | None, upto: str) -> Any:
        return after, upto

    def freeze(self) -> None:
        self.frozen = True

    def stop(self) -> None: ...

    def toString(self) -> str:
        return "source"


class Offset:
    def __init__(self, text: str) -> None:
        self.text = text

    def json(self) -> str:
        return self.text


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    def kind(need: Need) -> Any:
        return Offset if need is module.OFFSET else SimpleNamespace(allAvailable=lambda: "everything")

    monkeypatch.setattr(Java, "of", lambda spark: SimpleNamespace(type=kind))
    return Source("spark", "the schema")  # type: ignore[arg-type]


def test_a_source_says_what_spark_asks(source: Source) -> None:
    assert source.schema() == "the schema"
    assert source.getDefaultReadLimit() == "everything"
    assert source.reportLatestOffset() is None
    source.prepareForTriggerAvailableNow()
    assert source.frozen


def test_a_source_without_news_gives_the_same_offset(source: Source) -> None:
    start = Offset("5")
    assert source.latestOffset(start, "everything") is start
    assert source.latestOffset(Offset("4"), "everything").text == "5"
    assert source.latestOffset(None, "everything").text == "5"


def test_a_batch_is_read_between_two_offsets(source: Source) -> None:
    start = SimpleNamespace(isDefined=lambda: True, get=lambda: Offset("3"))
    assert source.getBatch(start, Offset("5")) == ("3", "5")
    assert source.getBatch(SimpleNamespace(isDefined=lambda: False), Offset("5")) == (None, "5")


def test_a_source_is_equal_to_itself_alone(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Source("spark", "the schema")  # type: ignore[arg-type]
    assert source.equals(source)
    assert not source.equals(other)
    assert not source.equals(None)
    assert 0 <= source.hashCode() < 2**31, "it is an int of Java's"


# --- what is asked of a query ---------------------------------------------------------------------------------


def query(**known: Any) -> Any:
    return SimpleNamespace(_jsq=SimpleNamespace(streamingQuery=lambda: SimpleNamespace(**known)))


def of_class(name: str, **more: Any) -> Any:
    return SimpleNamespace(getClass=lambda: SimpleNamespace(getSimpleName=lambda: name, **more))


@pytest.mark.parametrize("value", [True, False])
def test_whether_a_query_found_nothing_new(value: bool) -> None:
    assert queries.found_nothing_new(query(noNewData=lambda: value)) is value


@pytest.mark.parametrize(("name", "is_one"), [("SingleBatchExecutor", True), ("MultiBatchExecutor", False)])
def test_whether_a_query_reads_all_in_one_batch(name: str, is_one: bool) -> None:
    assert queries.is_one_batch(query(triggerExecutor=lambda: of_class(name))) is is_one


def test_the_trace_of_an_error_of_javas() -> None:
    error: Any = RuntimeError("short")
    assert queries.java_trace(error) == "short"
    error._stackTrace = "long"
    assert queries.java_trace(error) == "long"
