"""The shell's duties to the procedures that it drives, with real threads."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Event, Thread, get_ident
from typing import Any

import pytest

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.events import CaughtUp, Observe, OperationFailed, ignore
from cutwater.protocol.base.events import Event as AnyEvent
from cutwater.protocol.base.records import StageSpec, Topology
from cutwater.protocol.member.member import Member
from cutwater.runtime.local_word import LocalWord
from cutwater.runtime.shell import THREADS, Shell
from cutwater.runtime.workers import Workers
from tests.support.configs import member_config

Said = SimpleQueue[Any]


def shell(
    perform: Callable[[fx.Effect], Any],
    failures: Said | None = None,
    apart: Callable[[fx.Effect], str | None] = lambda effect: None,
    emit: Observe = ignore,
) -> Shell:
    topology = Topology({"a": StageSpec("a", (), "main")})
    member = Member("main", "b", topology, member_config(), LocalWord)
    on_failure = failures.put if failures is not None else _unexpected
    return Shell(member, perform, lambda send: None, lambda name: None, lambda: None, on_failure, apart, emit)


def _unexpected(error: BaseException) -> None:
    raise AssertionError("the loop failed") from error


def test_a_storage_error_is_answered_with_failed_and_other_errors_are_thrown_into_the_procedure() -> None:
    said: Said = SimpleQueue()

    def perform(effect: fx.Effect) -> Any:
        assert isinstance(effect, fx.Read)
        if effect.name == "down":
            raise OSError("no route")
        if effect.name == "bad":
            raise StoreError("damaged")
        return effect.name.encode()

    def procedure() -> fx.Procedure[None]:
        said.put((yield fx.Read("good")))
        said.put((yield fx.Read("down")))
        try:
            yield fx.Read("bad")
        except StoreError as error:
            said.put(str(error))

    events: list[AnyEvent] = []
    loop = shell(perform, emit=events.append)
    loop.spawn("one", procedure())
    loop.start()
    assert [said.get(timeout=10) for _ in range(3)] == [b"good", fx.FAILED, "damaged"]
    assert events == [OperationFailed("Read", "no route")]
    loop.stop()


def test_what_happens_in_a_turn_is_emitted_at_its_end_also_if_it_fails() -> None:
    failures: Said = SimpleQueue()
    events: list[AnyEvent] = []
    loop = shell(lambda effect: None, failures, emit=events.append)

    def turn(index: int, fails: bool) -> None:
        loop.member.observe(CaughtUp(index))
        assert CaughtUp(index) not in events
        if fails:
            raise ZeroDivisionError

    loop.call(lambda: turn(1, False))
    loop.call(lambda: turn(2, True))
    loop.start()
    assert isinstance(failures.get(timeout=10), ZeroDivisionError)
    loop.stop()
    assert events == [CaughtUp(1), CaughtUp(2)]
    assert loop.member.events == []


def test_a_waiting_actor_is_poked_and_a_busy_one_skips_its_next_wait() -> None:
    said: Said = SimpleQueue()
    gate = Event()

    def perform(effect: fx.Effect) -> Any:
        said.put("reading")
        gate.wait(10)

    def procedure() -> fx.Procedure[None]:
        yield fx.Wait(60_000)
        said.put("poked")
        yield fx.Read("slow")
        yield fx.Wait(60_000)
        said.put("not waited")

    loop = shell(perform)
    loop.spawn("one", procedure())
    loop.start()
    loop.poke("one")
    assert said.get(timeout=10) == "poked"
    assert said.get(timeout=10) == "reading"
    loop.poke("one")
    gate.set()
    assert said.get(timeout=10) == "not waited"
    loop.stop()


def test_effects_of_an_ended_actor_are_not_answered() -> None:
    said: Said = SimpleQueue()
    gate = Event()

    def perform(effect: fx.Effect) -> Any:
        said.put("asked")
        gate.wait(10)

    def procedure() -> fx.Procedure[None]:
        yield fx.Read("x")
        said.put("resumed")

    loop = shell(perform)
    loop.spawn("one", procedure())
    loop.start()
    assert said.get(timeout=10) == "asked"
    loop.call(lambda: loop.end("one"))
    loop.call(lambda: said.put("ended"))
    assert said.get(timeout=10) == "ended"
    gate.set()
    loop.call(lambda: said.put("later"))
    assert said.get(timeout=10) == "later"
    loop.stop()
    assert said.empty()


def test_a_failing_procedure_ends_the_shell_and_is_reported() -> None:
    failures: Said = SimpleQueue()

    def procedure() -> fx.Procedure[None]:
        yield fx.Sleep(1)
        raise ZeroDivisionError

    loop = shell(lambda effect: None, failures)
    loop.spawn("one", procedure())
    loop.start()
    assert isinstance(failures.get(timeout=10), ZeroDivisionError)
    loop.stop()


@pytest.mark.parametrize("count", [50])
def test_effects_of_one_procedure_are_performed_in_sequence(count: int) -> None:
    said: Said = SimpleQueue()
    running: list[str] = []

    def perform(effect: fx.Effect) -> Any:
        assert isinstance(effect, fx.Read)
        assert running == []
        running.append(effect.name)
        running.clear()
        return effect.name

    def procedure() -> fx.Procedure[None]:
        found = []
        for number in range(count):
            found.append((yield fx.Read(str(number))))
        said.put(found)

    loop = shell(perform)
    loop.spawn("one", procedure())
    loop.start()
    assert said.get(timeout=30) == [str(number) for number in range(count)]
    loop.stop()


def test_no_procedure_is_interrupted_between_two_effects() -> None:
    said: Said = SimpleQueue()
    inside: list[int] = []

    def procedure(number: int) -> fx.Procedure[None]:
        for _ in range(20):
            yield fx.Read("x")
            inside.append(number)
            Event().wait(0.001)  # lets every other thread run
            assert inside == [number]
            inside.clear()
        said.put(number)

    loop = shell(lambda effect: None)
    for number in range(8):
        loop.spawn(str(number), procedure(number))
    loop.start()
    assert sorted(said.get(timeout=30) for _ in range(8)) == list(range(8))
    loop.stop()


def test_a_timer_set_by_a_pool_thread_does_not_wait_for_earlier_timers() -> None:
    said: Said = SimpleQueue()

    def sleeper() -> fx.Procedure[None]:
        said.put("asleep")
        yield fx.Sleep(60_000)

    def procedure() -> fx.Procedure[None]:
        yield fx.Wait(60_000)
        yield fx.Read("x")
        yield fx.Sleep(1)
        said.put("awake")

    loop = shell(lambda effect: None)
    loop.spawn("sleeper", sleeper())
    loop.spawn("one", procedure())
    loop.start()
    assert said.get(timeout=10) == "asleep"
    loop.poke("one")
    assert said.get(timeout=10) == "awake"
    loop.stop()


def test_nothing_is_resumed_after_the_shell_was_stopped() -> None:
    said: Said = SimpleQueue()
    gate = Event()

    def perform(effect: fx.Effect) -> Any:
        said.put("asked")
        gate.wait(10)
        said.put("performed")

    def procedure() -> fx.Procedure[None]:
        try:
            yield fx.Read("x")
            said.put("resumed")
        finally:
            said.put("over")

    loop = shell(perform)
    running = procedure()
    loop.spawn("one", running)
    loop.start()
    assert said.get(timeout=10) == "asked"
    loop.stop()
    gate.set()
    assert said.get(timeout=10) == "performed"
    loop._pool.join()
    assert said.empty()
    running.close()


def test_nothing_is_resumed_after_an_error_in_a_pool_thread() -> None:
    failures: Said = SimpleQueue()
    said: Said = SimpleQueue()
    broken = Event()

    def perform(effect: fx.Effect) -> Any:
        assert isinstance(effect, fx.Read)
        if effect.name == "after":
            broken.wait(10)

    def breaks() -> fx.Procedure[None]:
        yield fx.Read("first")
        broken.set()
        raise ZeroDivisionError

    def goes_on() -> fx.Procedure[None]:
        yield fx.Read("after")
        said.put("resumed")

    loop = shell(perform, failures)
    loop.spawn("goes on", goes_on())
    loop.spawn("breaks", breaks())
    loop.start()
    assert isinstance(failures.get(timeout=10), ZeroDivisionError)
    loop.stop()
    loop._pool.join()
    assert said.empty()
    assert failures.empty()


def test_tasks_run_in_order_and_once() -> None:
    said: Said = SimpleQueue()
    loop = shell(lambda effect: None)
    loop.start()

    def call_many(first: int) -> None:
        for number in range(first, first + 200):
            loop.call(lambda number=number: said.put(number))  # type: ignore[misc]

    callers = [Thread(target=call_many, args=(first,)) for first in (0, 1000, 2000)]
    for caller in callers:
        caller.start()
    done = [said.get(timeout=10) for _ in range(600)]
    for first in (0, 1000, 2000):
        assert [n for n in done if first <= n < first + 1000] == list(range(first, first + 200))
    loop.stop()
    assert said.empty()


def test_messages_and_timers_do_not_wait_when_effects_keep_all_threads_busy() -> None:
    said: Said = SimpleQueue()
    gate = Event()

    def perform(effect: fx.Effect) -> Any:
        said.put("busy")
        gate.wait(30)

    def busy() -> fx.Procedure[None]:
        yield fx.Read("x")

    def beats() -> fx.Procedure[None]:
        yield fx.Wait(60_000)
        yield fx.Sleep(10)
        said.put("beat")

    loop = shell(perform)
    loop.spawn("beats", beats())
    for number in range(THREADS + 3):
        loop.spawn(str(number), busy())
    loop.start()
    assert [said.get(timeout=10) for _ in range(THREADS)] == ["busy"] * THREADS
    loop.poke("beats")
    assert said.get(timeout=10) == "beat"
    gate.set()
    loop.stop()


def test_a_message_costs_at_most_one_thread_switch() -> None:
    """The thread that runs the task also performs the resulting effects."""
    said: Said = SimpleQueue()

    def perform(effect: fx.Effect) -> Any:
        said.put(("performed", get_ident()))

    def procedure() -> fx.Procedure[None]:
        while True:
            yield fx.Wait(60_000)
            said.put(("resumed", get_ident()))
            yield fx.Read("x")
            yield fx.Read("y")

    loop = shell(perform)
    loop.spawn("one", procedure())
    loop.start()
    for number in range(5):
        loop.poke("one")
        found = [said.get(timeout=10) for _ in range(3)]
        assert [what for what, _ in found] == ["resumed", "performed", "performed"]
        if (
            number > 0
        ):  # the first one may come while the timer thread holds the turn, which performs no effects
            assert len({thread for _, thread in found}) == 1
    loop.stop()


def test_a_machine_without_threads_ends_the_shell_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: Said = SimpleQueue()

    def procedure() -> fx.Procedure[None]:
        yield fx.Read("x")

    loop = shell(lambda effect: None, failures)
    loop.spawn("one", procedure())
    monkeypatch.setattr(Workers, "_grow", lambda workers: False)
    loop.start()
    assert "cannot start a thread" in str(failures.get(timeout=10))
    loop.stop()


def test_no_task_runs_after_the_end() -> None:
    said: Said = SimpleQueue()
    ended = Event()
    loop = shell(lambda effect: None)

    def stop() -> None:
        loop.call(lambda: said.put("after"))
        loop.stop()
        ended.set()

    loop.start()
    loop.call(stop)
    assert ended.wait(10)
    loop._timer_thread.join(10)
    loop._pool.join()
    assert said.empty()


def test_a_shell_that_is_stopped_within_a_turn_does_not_wait_for_itself() -> None:
    performed: Said = SimpleQueue()
    stopped = Event()

    def procedure() -> fx.Procedure[None]:
        loop.stop()
        stopped.set()
        yield fx.Read("x")

    loop = shell(performed.put)
    running = procedure()
    loop.spawn("one", running)
    loop.start()
    assert stopped.wait(10)
    loop._timer_thread.join(10)
    loop._pool.join()
    assert performed.empty(), "nothing begins after the stop"
    running.close()


# --- user functions ---------------------------------------------------------------------------------------


def sink_of(effect: fx.Effect) -> str | None:
    return f"call-{effect.sink}" if isinstance(effect, fx.PublishTable) else None


def publishes(sink: str, transaction: int = 1) -> fx.PublishTable:
    return fx.PublishTable(sink, 0, transaction, (), 1)


def test_user_functions_that_never_return_block_nobody_else() -> None:
    """More sinks than the pool has threads call hanging functions; the protocol's own effects continue."""
    said: Said = SimpleQueue()
    gate = Event()

    def perform(effect: fx.Effect) -> Any:
        if isinstance(effect, fx.PublishTable):
            said.put("called")
            gate.wait(60)

    def calls(sink: str) -> fx.Procedure[None]:
        yield publishes(sink)
        said.put("returned")

    def leads() -> fx.Procedure[None]:
        yield fx.Wait(60_000)
        for number in range(50):
            yield fx.Read(str(number))
        said.put("led")

    loop = shell(perform, apart=sink_of)
    loop.spawn("lead", leads())
    for number in range(THREADS + 8):
        loop.spawn(f"publish {number}", calls(f"s{number}"))
    loop.start()
    assert [said.get(timeout=30) for _ in range(THREADS + 8)] == ["called"] * (THREADS + 8)
    loop.poke("lead")
    assert said.get(timeout=30) == "led"
    gate.set()
    assert [said.get(timeout=30) for _ in range(THREADS + 8)] == ["returned"] * (THREADS + 8)
    loop.stop()


def test_a_user_function_is_called_by_one_dedicated_thread_at_a_time() -> None:
    """Even if an actor was ended during its call, and its successor calls too."""
    said: Said = SimpleQueue()
    gate = Event()

    def perform(effect: fx.Effect) -> Any:
        if isinstance(effect, fx.PublishTable):
            said.put((f"call {effect.transaction}", get_ident()))
            gate.wait(30)
        else:
            said.put(("read", get_ident()))

    def calls(transaction: int) -> fx.Procedure[None]:
        yield publishes("mail", transaction)
        yield fx.Read("mark")

    loop = shell(perform, apart=sink_of)
    loop.spawn("publish mail", calls(1))
    loop.start()
    what, thread = said.get(timeout=10)
    assert what == "call 1"
    loop.call(lambda: loop.spawn("publish mail", calls(2)))
    with pytest.raises(Empty):
        said.get(timeout=0.3)
    gate.set()
    assert said.get(timeout=10) == ("call 2", thread)
    what, other = said.get(timeout=10)
    assert (what, other != thread) == ("read", True)
    loop.stop()


@pytest.mark.parametrize("error", [StoreError("damaged"), ZeroDivisionError()], ids=["told", "fatal"])
def test_errors_of_a_user_function_are_reported(error: Exception) -> None:
    said: Said = SimpleQueue()
    failures: Said = SimpleQueue()

    def perform(effect: fx.Effect) -> Any:
        raise error

    def calls() -> fx.Procedure[None]:
        try:
            yield publishes("mail")
        except StoreError as caught:
            said.put(caught)

    loop = shell(perform, failures, sink_of)
    loop.spawn("publish mail", calls())
    loop.start()
    assert (said if isinstance(error, StoreError) else failures).get(timeout=10) is error
    loop.stop()
    assert (failures if isinstance(error, StoreError) else said).empty()


def test_a_shell_ends_while_a_user_function_hangs_and_calls_no_other() -> None:
    said: Said = SimpleQueue()
    gate = Event()

    def perform(effect: fx.Effect) -> Any:
        assert isinstance(effect, fx.PublishTable)
        said.put(effect.transaction)
        gate.wait(30)

    def calls(transaction: int) -> fx.Procedure[None]:
        yield publishes("mail", transaction)
        said.put("resumed")

    loop = shell(perform, apart=sink_of)
    loop.spawn("one", calls(1))
    loop.start()
    assert said.get(timeout=10) == 1
    loop.spawn("two", calls(2))
    loop.stop()
    gate.set()
    for workers in loop._threads_apart.values():
        for thread in workers._threads:
            thread.join(10)
            assert not thread.is_alive()
    assert said.empty()


def test_look_does_not_see_an_unfinished_turn() -> None:
    said: Said = SimpleQueue()
    looked: Said = SimpleQueue()
    begun, go_on = Event(), Event()

    def task() -> None:
        said.put("half")
        begun.set()
        go_on.wait(10)
        said.put("done")

    loop = shell(lambda operation: None)
    loop.start()
    loop.call(task)
    assert begun.wait(10)
    looking = Thread(target=lambda: looked.put(loop.look(said.qsize)))
    looking.start()
    with pytest.raises(Empty):
        looked.get(timeout=0.2)
    go_on.set()
    assert looked.get(timeout=10) == 2
    looking.join()
    loop.stop()


def test_look_works_within_a_turn_and_after_the_shell_has_stopped() -> None:
    looked: Said = SimpleQueue()
    loop = shell(lambda operation: None)
    loop.start()
    loop.call(lambda: looked.put(loop.look(lambda: "within")))
    assert looked.get(timeout=10) == "within"
    loop.stop()
    assert loop.look(lambda: "after") == "after"


def test_an_error_in_look_is_raised_and_releases_the_turn() -> None:
    loop = shell(lambda operation: None)
    with pytest.raises(ZeroDivisionError):
        loop.look(lambda: 1 // 0)
    other = Thread(target=lambda: loop.look(lambda: None))
    other.start()
    other.join(10)
    assert not other.is_alive()


def test_look_does_not_wait_forever_for_a_turn_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutwater.runtime.shell.LOOK_S", 0.05)
    begun, go_on = Event(), Event()

    def task() -> None:
        begun.set()
        go_on.wait(10)

    loop = shell(lambda operation: None)
    loop.start()
    loop.call(task)
    assert begun.wait(10)
    with pytest.raises(TimeoutError, match=r"a turn has not ended within 0\.05 s"):
        loop.look(lambda: None)
    go_on.set()
    loop.stop()


def test_an_operation_that_fails_is_a_trouble_until_it_succeeds() -> None:
    said: Said = SimpleQueue()
    tries: list[str] = []
    seen: list[str] = []

    def perform(effect: fx.Effect) -> Any:
        assert isinstance(effect, fx.Read)
        tries.append(effect.name)
        if len(tries) == 1:
            raise OSError("no route")
        return b""

    def procedure() -> fx.Procedure[None]:
        for _ in range(2):
            yield fx.Read("a")
            seen.append(loop._troubles.latest)
        said.put("done")

    loop = shell(perform)
    loop.spawn("one", procedure())
    loop.start()
    assert said.get(timeout=10) == "done"
    assert seen == ["Read: no route", ""]
    loop.stop()
