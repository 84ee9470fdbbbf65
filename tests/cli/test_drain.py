"""`cutwater drain` decides by the journal and the marks, over all members of the current graph."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest
from typer.testing import CliRunner, Result

from cutwater.cli.drain import _unfinished, look
from cutwater.cli.main import app
from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.log import append
from cutwater.protocol.base.paths import REPLY_PREFIX, REQUEST_PREFIX
from cutwater.protocol.base.wire import Reply, Request, RequestKind, encode_message
from cutwater.runtime.runtime import Runtime
from cutwater.runtime.store_requests import understood
from cutwater.store.at_rest import drive, read_journal
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from cutwater.store.presence import Watch
from cutwater.store.process_identity import this_process
from cutwater.store.status import read_status
from tests.support.builders import pipeline, stage
from tests.support.live_member import ONE, TWO, members
from tests.support.spark_helpers import await_that
from tests.support.written import Written, beating, put_status

SHOP = pipeline(
    stage("bills", member="billing", sinks=[r.SinkSpec("billed")]),
    stage("zest", "bills", member="zeta", sinks=[r.SinkSpec("zested")]),
)


def drain(store: Store, *options: str) -> Result:
    return CliRunner().invoke(app, ["drain", "--store", store.url, *options])


def ends_when_done(made: Runtime) -> None:
    """Stop a runtime when it is done, as `Pipeline.stay` does."""

    def end() -> None:
        made.done.wait()
        made.stop()

    Thread(target=end, daemon=True).start()


# --- with real members ----------------------------------------------------------------------------------


@pytest.fixture
def empty(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "state"), create=True)


@pytest.mark.parametrize("topology", [ONE, TWO], ids=["one member", "two members"])
def test_a_drain_ends_when_every_member_has_ended(empty: Store, topology: r.Topology) -> None:
    put_status(empty, pipeline="shop", member="a_member_that_was_dropped", state="stopped")
    put_status(empty, pipeline="shop", member="zz_another_one", state="failed", trouble="long ago")
    with members(empty, topology) as up:
        for name in topology.members():
            ends_when_done(up.start(name))
        await_that("a checkpoint", lambda: read_journal(empty, must_exist=False).state.head, 30)
        shown = drain(empty, "--json", "--timeout", "60s")
        assert shown.exit_code == 0, shown.output
        states = {s.member: s.state for s in read_status(empty) if s.member in topology.members()}
        assert set(states.values()) == {"drained"}
    head = read_journal(empty).state.head
    assert json.loads(shown.stdout) == {"epoch": head, "state": "drained", "failed": []}
    assert empty.list(REQUEST_PREFIX) == empty.list(REPLY_PREFIX) == []
    again = drain(empty)
    assert again.exit_code == 0
    assert f"already drained: epoch {head}" in again.stdout


# --- with statuses in the store instead of members ------------------------------------------------------


def shop(folder: Path, *, flags: int = Flags.DRAIN, unmarked: tuple[str, ...] = ()) -> Store:
    """A pipeline of two members whose last epoch is a drain, not published in the sinks `unmarked`."""
    play = Written(SHOP)
    play.checkpoint()
    play.checkpoint(flags)
    store = play.write(folder)
    assert play.state.head == 2
    store.delete([paths.mark_name(play.state.committed[2].index, sink) for sink in unmarked])
    return store


@contextmanager
def two_running(store: Store, then: Callable[[], None], ok: bool = True) -> Iterator[None]:
    """Both members run until one is asked to drain; both stop reporting, `then` is called, and one answers."""
    with ExitStack() as stack:
        overs = [stack.enter_context(beating(store, member=name)) for name in ("billing", "zeta")]
        given_up = Event()

        def answer() -> None:
            while not given_up.wait(0.02):
                for name in store.list(REQUEST_PREFIX):
                    request = understood(store.read(name), Request)
                    if request is not None:
                        assert request.kind is RequestKind.DRAIN
                        for over in overs:
                            over.set()
                        stack.close()
                        then()
                        if ok:
                            reply = Reply(request.request_id, True, 2)
                            store.create(f"{REPLY_PREFIX}{request.request_id}.json", encode_message(reply))
                        return

        thread = Thread(target=answer)
        thread.start()
        try:
            yield
        finally:
            given_up.set()
            thread.join()


def said(store: Store, **states: str) -> Callable[[], None]:
    """Write the members' last statuses."""

    def say() -> None:
        for member, state in states.items():
            put_status(store, member=member, state=state, trouble="no space left", beat=99)

    return say


def test_a_member_that_failed_before_it_published_is_named_although_another_has_drained(
    tmp_path: Path,
) -> None:
    store = shop(tmp_path, unmarked=("zested",))
    with two_running(store, said(store, billing="drained", zeta="failed")):
        shown = drain(store)
    assert shown.exit_code == 1
    assert "not published in zested: member 'zeta' has failed (no space left)" in shown.stderr
    assert "billing" not in shown.stderr.split("error: ")[1]


def test_a_failed_member_is_reported_while_others_are_still_running(tmp_path: Path) -> None:
    """The others wait for what is not published, which may take long."""
    store = shop(tmp_path, unmarked=("zested",))
    with beating(store, member="billing"), two_running(store, said(store, zeta="failed")):
        shown = drain(store)
    assert shown.exit_code == 1
    assert "member 'zeta' has failed" in shown.stderr


def test_a_member_that_fails_after_everything_is_published_is_reported(tmp_path: Path) -> None:
    store = shop(tmp_path)
    with two_running(store, said(store, billing="drained", zeta="failed")):
        shown = drain(store)
    assert shown.exit_code == 0, shown.output
    assert "published everywhere\nfailed after that: member 'zeta' has failed (no space left)" in shown.stdout


@contextmanager
def answered_by_billing(store: Store, then: Callable[[], None]) -> Iterator[None]:
    """One member is running; it answers the drain, and `then` is called when the answer was read."""

    def answer() -> None:
        name = await_that("it is asked", lambda: store.list(REQUEST_PREFIX))[0]
        request_id = name.removeprefix(REQUEST_PREFIX).removesuffix(".json")
        store.create(f"{REPLY_PREFIX}{request_id}.json", encode_message(Reply(request_id, True, 2)))
        await_that("the answer is taken", lambda: not store.list(REQUEST_PREFIX) + store.list(REPLY_PREFIX))
        then()

    with beating(store, member="billing") as over:

        def answer_and_end() -> None:
            answer()
            if then is not stay:
                over.set()

        thread = Thread(target=answer_and_end)
        thread.start()
        yield
        thread.join()


def stay() -> None:
    """The member keeps running."""


def test_a_status_from_before_the_drain_does_not_count(tmp_path: Path) -> None:
    """The member failed in an earlier run; the process that takes part in the drain did not."""
    store = shop(tmp_path, unmarked=("zested",))
    put_status(store, member="zeta", state="failed")

    def publish() -> None:
        head = read_journal(store).state.committed[2]
        mark = r.Published(2, "zested", head.index, 7)
        store.create(paths.mark_name(head.index, "zested"), r.encode(mark))

    with answered_by_billing(store, publish):
        shown = drain(store, "--timeout", "60s")
    assert shown.exit_code == 0, shown.output


def test_a_drain_fails_when_no_member_is_left_to_publish(tmp_path: Path) -> None:
    store = shop(tmp_path, unmarked=("zested",))
    put_status(store, member="zeta", state="failed")
    with answered_by_billing(store, lambda: None):
        shown = drain(store, "--timeout", "30s")
    assert shown.exit_code == 1
    assert "not published in zested: member 'zeta' has failed. Start the pipeline again" in shown.stderr


@pytest.mark.slow
def test_a_drain_waits_for_a_member_that_has_not_ended(tmp_path: Path) -> None:
    store = shop(tmp_path)
    with answered_by_billing(store, stay):
        shown = drain(store, "--timeout", "3s")
    assert shown.exit_code == 1
    assert (
        "published everywhere, but some members have not ended: member 'billing' is running" in shown.stderr
    )


def test_a_killed_member_is_not_reported_as_failed(tmp_path: Path) -> None:
    store = shop(tmp_path, unmarked=("billed", "zested"))
    here = this_process()
    if here is None:
        pytest.skip("needs /proc to identify processes")
    dead = type(here)(
        here.host, here.kernel, here.pid_namespace, here.time_namespace, here.pid, here.began - 1
    )

    def die() -> None:
        put_status(store, member="zeta", process=dead, beat=99)

    with two_running(store, die):
        shown = drain(store)
    assert shown.exit_code == 1
    assert "member 'zeta' was killed" in shown.stderr


def test_a_pipeline_that_ends_during_the_drain_is_not_drained(tmp_path: Path) -> None:
    store = shop(tmp_path, flags=0)
    with two_running(store, said(store, billing="stopped", zeta="failed"), ok=False):
        shown = drain(store)
    assert shown.exit_code == 1
    assert "ended without being drained: member 'billing' was stopped, member 'zeta' has failed" in (
        shown.stderr
    )
    assert store.list(REQUEST_PREFIX) == []


def test_a_pipeline_that_was_drained_by_another_request_is_drained(tmp_path: Path) -> None:
    """This request was never answered; the journal has the outcome."""
    store = shop(tmp_path)
    with two_running(store, said(store, billing="drained", zeta="drained"), ok=False):
        shown = drain(store)
    assert shown.exit_code == 0, shown.output


def test_a_pipeline_that_is_restarted_during_the_drain_is_an_error(tmp_path: Path) -> None:
    store = shop(tmp_path)

    def start_again() -> None:
        journal = read_journal(store)
        entry = r.Leader(journal.state.term + 1, "supervised")
        drive(store, append(journal.view, journal.view.seal(entry, "n")))

    with two_running(store, start_again):
        shown = drain(store)
    assert shown.exit_code == 1
    assert "'supervised' has restarted the pipeline" in shown.stderr


@pytest.mark.slow
def test_a_drain_that_takes_too_long_says_what_is_missing(tmp_path: Path) -> None:
    store = shop(tmp_path, unmarked=("billed",))
    with beating(store, member="billing"), two_running(store, lambda: None):
        shown = drain(store, "--timeout", "3s")
    assert shown.exit_code == 1
    assert "epoch 2 is committed; it is not published yet in billed" in shown.stderr


def test_a_drain_that_times_out_says_how_far_it_is(tmp_path: Path) -> None:
    for name, store, said in (
        ("a", shop(tmp_path / "a", flags=0), "the last epoch, which ends the pipeline, is not committed yet"),
        ("b", shop(tmp_path / "b", unmarked=("billed",)), "it is not published yet in billed"),
        (
            "c",
            shop(tmp_path / "c"),
            "it is published everywhere, but some members have not ended: member 'billing'",
        ),
    ):
        put_status(store, member="billing", process=this_process(), host=name)
        progress = look(store, Watch(store), read_journal(store))
        assert f"epoch 2 is committed; {said}" in _unfinished(store, progress)


def test_draining_a_stopped_pipeline_that_is_not_drained_is_an_error(tmp_path: Path) -> None:
    for store in (shop(tmp_path / "a", flags=0), shop(tmp_path / "b", unmarked=("billed",))):
        shown = drain(store)
        assert shown.exit_code == 1
        assert "no pipeline is running on" in shown.stderr
