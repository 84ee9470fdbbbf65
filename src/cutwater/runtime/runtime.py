"""A running member: the protocol, the store, Spark's queries and the sinks, put together.

What decides is in `protocol/`; what is here performs the effects that it asks for, keeps the queries' feeds
current, notices how queries fare, and carries requests and status through the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from threading import Event
from typing import assert_never

import msgspec
from msgspec.structs import replace

from cutwater.cluster.links import Heard, Hint, Links
from cutwater.plan.build import Built
from cutwater.protocol.base import effects as fx
from cutwater.protocol.base.errors import CutwaterError, StoreError, UserError
from cutwater.protocol.base.performer import perform
from cutwater.protocol.base.records import JournalState
from cutwater.protocol.base.replay_wire import AskRange, Compacted, EntriesChunk, FetchEntries, HaveRange
from cutwater.protocol.base.wire import Ack, Announcement, Heartbeat, LogGrown, Reply, Request, SourcesDone
from cutwater.protocol.leader.leader import Leader
from cutwater.protocol.member.config import MemberConfig
from cutwater.protocol.member.member import Member
from cutwater.runtime.effects import MemberPerformer
from cutwater.runtime.mailbox import Mailbox
from cutwater.runtime.reporter import Reporter
from cutwater.runtime.settings import Settings
from cutwater.runtime.shell import Shell
from cutwater.runtime.timings import Times
from cutwater.runtime.words import LocalWord
from cutwater.sinks.cleanup import tidy
from cutwater.sinks.contract import Sink
from cutwater.spark.checkpoint import incarnations as folders
from cutwater.spark.errors import spark_is_gone
from cutwater.spark.host import StageHost
from cutwater.spark.internals.gateway import is_spark_gone
from cutwater.spark.surroundings import Surroundings
from cutwater.store import failpoints, recording
from cutwater.store.at_rest import manifest_of
from cutwater.store.contract import Store
from cutwater.store.local import LocalStore

DISCARD_FIRST_S = 60.0
DISCARD_EVERY_S = 600.0
TROUBLE_EVERY_MS = 30_000
"""How often it is told that the store or a table fails: it may do so many times a second."""
JOURNAL_STATE = msgspec.json.Decoder(JournalState)
JOURNAL_STATE_BYTES = msgspec.json.Encoder().encode


class Runtime:
    """One member of a pipeline, running in this process. `tell` is given what happens, line by line."""

    def __init__(
        self,
        built: Built,
        store: Store,
        name: str,
        boot: str,
        settings: Settings,
        tell: Callable[[str], None],
        links: Links,
    ) -> None:
        self.built = built
        self.store = store
        self.settings = settings
        self.tell = tell
        self.links = links
        self.boot = boot
        config = replace(settings.member, idle_after_ms=int(settings.idle_after_s * 1000), once=settings.once)
        self.member = Member(name, boot, built.topology, config, LocalWord)
        hosted = built.topology.hosted(name)
        self.member.timeless = frozenset(s for s in hosted if not built.stages[s].plan.has_watermark)
        self.member.native = frozenset(s for s in hosted if built.stages[s].has_native_source)
        self.member.triggers_ms = {s: int(built.stages[s].trigger_s * 1000) for s in hosted}
        self.leader = Leader(self.member, settings.leader)
        self.sinks: Mapping[str, Sink] = built.sinks
        self.times = Times(store, name)
        self.done = Event()
        self.failure: BaseException | None = None
        self.caches = {s: folders.Cache() for s in built.topology.stages}
        self.recorder = recording.from_environment(self.member)
        self.hosts: dict[str, StageHost] = {}
        performer = MemberPerformer(
            store, built.sinks, self.hosts, built.spark.conf.get, self.times.created, tell, self.caches
        )
        act, send = recording.watched(self.recorder, partial(perform, performer), self._send)
        self.shell = Shell(
            self.member, act, send, self._on_ended, self._after_step, self._on_failure, performer.apart
        )
        around = self._surroundings()
        self.hosts |= {s: StageHost(around, built.stages[s]) for s in hosted}
        self.mailbox = Mailbox(store, self.leader, links, self.shell, tell, lambda: self.failure)
        self.reporter = Reporter(self)
        self._stopping = False
        self._twin_told = False
        self._told_index = 0
        self._acked = 0
        self._progress_ms = 0
        self._stories: set[str] = set()
        self._trouble = ""
        self._trouble_due_ms = 0

    def _surroundings(self) -> Surroundings:
        """What the hosts use of this process."""
        shell, settings = self.shell, self.settings
        return Surroundings(
            pipeline=self.built.name,
            spark=self.built.spark,
            store=self.store,
            restarts=settings.member.restarts,
            caches=self.caches,
            find=lambda name: self.member.stages.get(name),
            call=shell.call,
            work=shell.work,
            tell=self.tell,
        )

    # --- life -----------------------------------------------------------------------------------------

    def start(self) -> None:
        self.shell.spawn("journal", self.member.follow_journal())
        self.shell.spawn("lead", self.leader.run())
        self.shell.spawn("beat", self.leader.beat())
        self.shell.spawn("provide", self.member.provide())
        self.shell.start()
        self.links.start(self._on_message)
        self.mailbox.start()
        self.reporter.start()

        self.shell.call(lambda: self.shell.later(DISCARD_FIRST_S, self._discard_later))

    def _discard_later(self) -> None:
        self.shell.later(DISCARD_EVERY_S, self._discard_later)
        state = self.member.journal.state
        if state.head is not None:
            known = JOURNAL_STATE.decode(JOURNAL_STATE_BYTES(state))
            self.shell.work(lambda: self._discard(known))

    def _discard(self, state: JournalState) -> None:
        """Removes staged output that nobody will publish, and history of tables to which nobody will go back. What
        fails is done another time."""
        try:
            manifests = [manifest_of(self.store, checkpoint) for checkpoint in state.committed.values()]
            for stage in self.hosts.values():
                for sink in stage.built.sinks:
                    tidy(sink, stage.name, state, manifests)
        except (OSError, StoreError) as error:
            self.shell.last_trouble = f"removing staged leftovers: {error}"

    def request(self, request: Request, timeout_s: float) -> Reply:
        """Asks the leader for something and waits for the answer. Raises `UserError` if none comes."""
        return self.mailbox.ask(request, timeout_s)

    def stop(self) -> None:
        """Ends everything at once; what is not committed will be done again."""
        if self._stopping:
            return
        self._stopping = True
        for host in self.hosts.values():
            host.close()
        self.shell.stop()
        for host in self.hosts.values():
            host.join()
        self.times.save()
        if self.recorder is not None:
            self.recorder.ended("stopped" if self.failure is None else f"failed: {self.failure}")
        self.reporter.stop("stopped" if self.failure is None else "failed")
        self.mailbox.stop()
        self.links.close()
        self.done.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until the pipeline has been drained or has failed; `False` if it runs on."""
        return self.done.wait(timeout_s)

    @property
    def drained(self) -> bool:
        """Whether the last epoch is committed, and published everywhere."""
        return self.member.drained

    def _on_failure(self, error: BaseException) -> None:
        if self.failure is None:
            gone = not isinstance(error, CutwaterError) and is_spark_gone(error)
            self.failure = UserError(spark_is_gone(error)) if gone else error
        self.done.set()

    # --- after every step, in its turn of the shell ---------------------------------------------------

    def _after_step(self) -> None:
        member = self.member
        if member.catch_up.session is not None:
            self._tell_progress()
        if member.journal.index != self._told_index:
            self._told_index = member.journal.index
            self._tell_news()
        if self.shell.last_trouble != self._trouble and member.now_ms >= self._trouble_due_ms:
            self._trouble, self._trouble_due_ms = self.shell.last_trouble, member.now_ms + TROUBLE_EVERY_MS
            self.tell(f"something failed, and is tried again: {self._trouble}")
        if self.times.must_save():
            self.shell.work(self.times.save)
        for name, host in self.hosts.items():
            stage = member.stages.get(name)
            if stage is not None:
                host.attend(stage)
        if member.superseded and not self._stopping:
            raise UserError(
                "another process has taken over this pipeline's stages, so this one ends; nothing is lost. If that "
                "was not meant, see who else runs it on this store"
            )
        if member.given_up is not None:
            raise UserError(self._give_up_story(member.given_up))
        if self.drained:
            self.done.set()

    def come_to_rest(self) -> None:
        """Has the pipeline drained, however often that has to be tried; `done` is set then."""
        self.shell.call(lambda: self._want_rest(True))

    def _want_rest(self, wanted: bool) -> None:
        self.member.wants_rest = wanted
        self.shell.poke("lead")

    @property
    def sources_done(self) -> bool:
        """Whether the sources of this member's stages have given all that was there, with `once`."""
        return self.member.sources_done

    def _give_up_story(self, why: str) -> str:
        failed = "; ".join(f"stage '{s}' failed: {e}" for s, e in sorted(self.member.failures.items()))
        many = (
            "no checkpoint can be taken"
            if self.member.hopeless
            else "too many checkpoints in a row have failed"
        )
        return f"{many}, so the run ends. {failed or why}"

    def _tell_progress(self) -> None:
        """A catch-up that takes long shows how far it is, once a second."""
        session, now_ms = self.member.catch_up.session, self.member.now_ms
        self._progress_ms = self._progress_ms or now_ms
        if session is not None and now_ms - self._progress_ms >= 1_000:
            self._progress_ms = now_ms
            self.tell(str(session.progress()))

    def _tell_news(self) -> None:
        state = self.member.journal.state
        self.times.learn(state)
        for line in self.times.news():
            self.tell(line)
        story = self.leader.story
        if story and story not in self._stories:
            self._stories.add(story)
            self.tell(story)

    def _on_ended(self, actor: str) -> None:
        if actor.startswith("stage "):
            self.hosts[actor.removeprefix("stage ")].end()

    # --- messages -------------------------------------------------------------------------------------

    def _send(self, effect: fx.Send) -> None:
        message = effect.message
        if isinstance(message, Reply):
            self.mailbox.on_reply(message)
        elif isinstance(message, Ack):
            self._acknowledge(effect.to, message)
        else:
            failpoints.reach("announcement", message.phase.value if isinstance(message, Announcement) else "")
            self.links.send(effect.to, message)

    def _acknowledge(self, to: str | None, ack: Ack) -> None:
        """Hands on this member's part of a checkpoint, for the first time or again."""
        first = ack.ok and ack.checkpoint_id > self._acked
        self._acked = max(self._acked, ack.checkpoint_id if ack.ok else 0)
        if first:
            failpoints.reach("before part")
            self.times.acked(ack.epoch)
        if to == self.member.name:
            self.leader.on_message(ack)
        else:
            self.links.send(to, ack)
        if first:
            failpoints.reach("after part")

    def _on_message(self, sender: str, message: Heard) -> None:
        self.shell.call(lambda: self._take(sender, message))

    def _take(self, sender: str, message: Heard) -> None:
        """A message of another member, in a turn of the shell."""
        if isinstance(message, Hint):
            self.mailbox.look()
            return
        if self.recorder is not None:
            self.recorder.received(sender, message)
        match message:
            case Announcement():
                self.member.on_announcement(sender, message)
            case Heartbeat():
                self._look_for_twin()
                self.member.on_heartbeat(message)
                self.leader.on_heartbeat(message)
            case LogGrown():
                self.member.on_log_grown(message)
            case Ack():
                self.leader.on_message(message)
            case SourcesDone():
                self.leader.on_sources_done(message)
            case AskRange() | FetchEntries() | HaveRange() | EntriesChunk() | Compacted():
                self.member.on_replay(sender, message)
            case Request() | Reply():
                pass  # they travel through the store
            case _:
                assert_never(message)

    def _look_for_twin(self) -> None:
        boots = self.links.alive().get(self.member.name, ())
        if len(boots) > 1 and not self._twin_told:
            self._twin_told = True
            self.tell(
                f"member '{self.member.name}' runs {len(boots)} times; the one that was started last goes on, the "
                "others end when they next have something to say"
            )


def member_config(
    store: Store, is_alone: bool, restarts: int, tolerated_failures: int | None
) -> MemberConfig:
    """How often to look without being told. Members tell each other; a look at a local folder costs next to nothing
    for one, and something when many look."""
    poll_ms = 2_000
    if isinstance(store, LocalStore):
        poll_ms = 200 if is_alone else 1_000
    return MemberConfig(poll_ms=poll_ms, restarts=restarts, tolerated_failures=tolerated_failures)
