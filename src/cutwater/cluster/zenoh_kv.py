"""The key-value interface over Zenoh: peers that discover each other, without a server.

    cutwater/<pipeline>/slots/<member>/<key>              a slot, pushed to all
    cutwater/<pipeline>/to/<reader>/<member>/<key>        a slot that only one member sees
    cutwater/<pipeline>/mail/<reader>/<boot>/<member>     mail
    cutwater/<pipeline>/ask/<member>/<boot>               a question: what is in your slots?
    cutwater/<pipeline>/alive/<member>/<boot>/<seal>      the liveliness token of a process

Zenoh delivers in order and without loss while a connection lasts. When a connection is made, for the first time or
again, each side sees the other's token and asks for all its slots (`peers.py`), so it misses nothing that still exists.
Every message is sealed (`seal.py`), and messages without a valid seal are ignored. Everything kept from others is
bounded (`peers.py`, `mail.py`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event, RLock, Thread, main_thread
from typing import Any

import msgspec
import zenoh

from cutwater.cluster.config import MAX_PEERS, MAX_VALUE_BYTES, ClusterConfig, check_name
from cutwater.cluster.keys import derive
from cutwater.cluster.kv import OnChange, OnMail, OnPresence, Process
from cutwater.cluster.mail import Outbox
from cutwater.cluster.peers import BoundedQueue, Peer, PeerSlots
from cutwater.cluster.rejections import Rejections
from cutwater.cluster.seal import MAX_ENVELOPE_BYTES, Highest, Opened, Sealer

ASK_TIMEOUT_S = 2.0
MAINTAIN_S = 0.25
WARN_AFTER_S = 15.0
ADVICE = (
    "it has no valid seal. If the sender is one of your members, give it the same secret, a certificate with its own "
    "name if you use certificates, and the same version of Cutwater"
)
REMOTE = zenoh.Locality.REMOTE
SLOT_QOS = {
    "congestion_control": zenoh.CongestionControl.BLOCK,
    "priority": zenoh.Priority.INTERACTIVE_HIGH,
    "express": True,
    "allowed_destination": REMOTE,
}
_ENCODE = msgspec.msgpack.Encoder().encode
_SNAPSHOT = msgspec.msgpack.Decoder(PeerSlots).decode


class ZenohKv:
    """One process of a member in its cluster. `notify` receives lines of text for the user. Raises `UserError` for a
    configuration that cannot work or would let strangers in."""

    def __init__(
        self,
        config: ClusterConfig,
        pipeline: str,
        member: str,
        boot: str,
        notify: Callable[[str], None] = lambda line: None,
    ) -> None:
        for what, name in (("pipeline", pipeline), ("member", member), ("process", boot)):
            check_name(what, name)
        self.name = member
        self.boot = boot
        self._config = config
        self._root = f"cutwater/{pipeline}"
        config.check()
        identity = config.identity(pipeline, member, boot)
        self._sealer = Sealer(derive(config.secret, pipeline).seal, member, boot, identity)
        self._notify = notify
        self._rejections = Rejections(notify, ADVICE)
        self._warn_at_s: float | None = time.monotonic() + WARN_AFTER_S if config.peers else None
        self._own: dict[tuple[str, str | None], tuple[int, bytes]] = {}
        self._seq = 0
        self._writing = RLock()
        self._peers: dict[Process, Peer] = {}
        self._appeared = 0
        self._questions = 0
        self._asked = Highest()
        self._mailed = Highest()
        self._lock = RLock()
        self._on_change: OnChange | None = None
        self._on_mail: OnMail | None = None
        self._on_presence: OnPresence | None = None
        self._unread: BoundedQueue[tuple[str, bytes]] = BoundedQueue()
        self._closed = Event()
        self._session = config.session(pipeline)
        self._outbox = Outbox(self._session, self._sealer, f"{self._root}/mail")
        self._join()

    def _join(self) -> None:
        """The token comes last: a process that sees it may ask us immediately, and must be able to reach us."""
        session, root = self._session, self._root
        for key in (f"{root}/slots/**", f"{root}/to/{self.name}/**"):
            session.declare_subscriber(key, self._on_slot, allowed_origin=REMOTE)
        session.declare_subscriber(
            f"{root}/mail/{self.name}/{self.boot}/*", self._on_post, allowed_origin=REMOTE
        )
        session.declare_queryable(
            f"{root}/ask/{self.name}/{self.boot}", self._on_question, allowed_origin=REMOTE
        )
        session.liveliness().declare_subscriber(f"{root}/alive/**", self._on_token, history=True)
        token = f"{root}/alive/{self.name}/{self.boot}/{self._sealer.token(self.name, self.boot)}"
        self._token = session.liveliness().declare_token(token)
        self._maintainer = Thread(target=self._maintain, name="cutwater-peers")
        self._maintainer.start()

    # --- own slots --------------------------------------------------------------------------------------

    def write(self, key: str, value: bytes, to: str | None = None) -> None:
        where = self._slot(key, to)
        if len(value) > MAX_VALUE_BYTES:
            self._notify(
                f"the message of this member in slot {key} is too large to send ({len(value) >> 20} MiB, the limit is "
                f"{MAX_VALUE_BYTES >> 20} MiB); use fewer shuffle partitions, so that its stages have fewer state files"
            )
            return
        with self._writing:
            self._seq += 1
            self._own[key, to] = self._seq, value
            data, seal = self._sealer.seal("put", where, self._seq, value)
            with suppress(zenoh.ZError):  # the session is closed: nobody receives this any more
                self._session.put(where, data, attachment=seal, **SLOT_QOS)

    def delete(self, key: str) -> None:
        with self._writing:
            for slot in [s for s in self._own if s[0] == key]:
                del self._own[slot]
                where = self._slot(*slot)
                self._seq += 1
                _, seal = self._sealer.seal("delete", where, self._seq, b"")
                with suppress(zenoh.ZError):
                    self._session.delete(where, attachment=seal, **SLOT_QOS)

    def _slot(self, key: str, to: str | None) -> str:
        whose = f"slots/{self.name}" if to is None else f"to/{to}/{self.name}"
        return f"{self._root}/{whose}/{key}"

    def post(self, to: str, data: bytes) -> None:
        with self._lock:
            self._outbox.post(to, data, [p.boot for p in self._peers.values() if p.name == to and p.alive])

    # --- the slots of others ----------------------------------------------------------------------------

    def read(self, owner: str, key: str) -> bytes | None:
        if owner == self.name:
            with self._writing:
                found = [slot for (k, _), slot in self._own.items() if k == key]
            if found:
                return max(found)[1]
        with self._lock:
            values = [v for p in self._shown() if p.name == owner and (v := p.read(key)) is not None]
        return values[-1] if values else None

    def scan(self, key: str) -> dict[str, bytes]:
        with self._lock:
            owners = sorted({p.name for p in self._shown()} | {self.name})
        found = {owner: self.read(owner, key) for owner in owners}
        return {owner: value for owner, value in found.items() if value is not None}

    def subscribe(
        self, on_change: OnChange, on_mail: OnMail | None = None, on_presence: OnPresence | None = None
    ) -> None:
        with self._lock:
            self._on_change, self._on_mail, self._on_presence = on_change, on_mail, on_presence
            for peer in self._shown():
                for key, value in peer.items():
                    on_change(peer.name, key, value)
            while on_mail is not None and self._unread:
                on_mail(*self._unread.take())

    def alive(self) -> dict[str, tuple[str, ...]]:
        with self._lock:
            present = sorted({(p.name, p.boot) for p in self._peers.values() if p.alive} | {self._self})
        return {name: tuple(b for n, b in present if n == name) for name, _ in present}

    @property
    def rejected(self) -> int:
        """How many messages had no valid seal."""
        return self._rejections.count

    @property
    def _self(self) -> Process:
        return self.name, self.boot

    def _shown(self) -> list[Peer]:
        """The processes whose slots are visible; of several processes of a member, the newest is last."""
        self._expire()
        return sorted(self._peers.values(), key=lambda p: (p.alive, p.order))

    def close(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            self._outbox.close()
            self._token.undeclare()
            self._session.close()

    # --- callbacks, in Zenoh's threads ------------------------------------------------------------------

    def _on_slot(self, sample: Any) -> None:
        where = str(sample.key_expr)
        stream, _, rest = where.removeprefix(f"{self._root}/").partition("/")
        if stream == "to":
            rest = rest.partition("/")[2]
        owner, _, key = rest.partition("/")
        put = sample.kind == zenoh.SampleKind.PUT
        opened = self._opened("put" if put else "delete", where, sample, owner)
        if opened is None:
            return
        with self._lock:
            peer = self._peer(opened)
            notify = peer is not None and peer.push(stream, opened.seq, key, opened.payload if put else None)
            if notify and self._on_change is not None:
                self._on_change(owner, key, opened.payload)

    def _on_post(self, sample: Any) -> None:
        where = str(sample.key_expr)
        opened = self._opened("mail", where, sample, where.rsplit("/", 1)[-1])
        if opened is None:
            return
        with self._lock:
            peer = self._peer(opened)
            if peer is None or not self._mailed.is_newer((opened.member, opened.boot), opened.seq):
                return
            if peer.alive:
                self._deliver(peer.name, opened.payload)
            else:
                peer.waiting.add(opened.payload, len(opened.payload))

    def _deliver(self, sender: str, data: bytes) -> None:
        if self._on_mail is not None:
            self._on_mail(sender, data)
        else:
            self._unread.add((sender, data), len(data))

    def _on_question(self, query: Any) -> None:
        with query:
            where = str(query.key_expr)
            opened = self._opened("question", where, query, None)
            if opened is None or not self._asked.is_newer((opened.member, opened.boot), opened.seq):
                return
            with self._writing:
                mine = sorted(self._own.items(), key=lambda item: item[1][0])
                slots = {k: slot for (k, to), slot in mine if to in (None, opened.member)}
                snapshot = _ENCODE(PeerSlots(self._seq, slots))
            data, seal = self._sealer.seal("answer", where, 0, snapshot, opened.nonce)
            query.reply(where, data, attachment=seal)

    def _on_token(self, sample: Any) -> None:
        rest = str(sample.key_expr).removeprefix(f"{self._root}/alive/")
        name, _, rest = rest.partition("/")
        boot, _, seal = rest.partition("/")
        if (name, boot) == self._self:
            return
        if seal != self._sealer.token(name, boot):
            self._rejections.add(name, "a liveliness token")
            return
        with self._lock:
            peer = self._peers.get((name, boot))
            if sample.kind == zenoh.SampleKind.PUT:
                peer = peer or self._peers.setdefault((name, boot), Peer(name, boot))
                peer.appear()
                self._appeared += 1
                peer.order = self._appeared
                self._ask(peer)
            elif peer is not None:
                peer.vanish(time.monotonic())
                if name != self.name and not any(p.alive for p in self._peers.values() if p.name == name):
                    self._tell_presence(name, False)

    def _opened(self, kind: str, where: str, message: Any, sender: str | None) -> Opened | None:
        """The authenticated message, or `None` if its seal is not valid or not that of `sender`. A message without an
        envelope is not even copied."""
        attachment, payload = message.attachment, message.payload
        opened = None
        if attachment is not None and len(attachment) <= MAX_ENVELOPE_BYTES:
            data = payload.to_bytes() if payload is not None else b""
            opened = self._sealer.open(kind, where, attachment.to_bytes(), data)
        if opened is None or opened.member != (sender or opened.member):
            self._rejections.add(sender, "a message")
            return None
        return opened

    def _peer(self, opened: Opened) -> Peer | None:
        """The sender, whose messages may arrive before its token."""
        process = opened.member, opened.boot
        if process not in self._peers and len(self._peers) < MAX_PEERS:
            self._peers[process] = Peer(*process)
            self._peers[process].gone_s = time.monotonic()
        return self._peers.get(process)

    # --- introductions ----------------------------------------------------------------------------------

    def _ask(self, peer: Peer) -> None:
        """Asks a process for its slots. The question goes to everybody who claims to be that process; only an answer
        with its seal counts."""
        nonce = peer.asked = secrets.token_bytes(16)
        self._questions += 1
        where = f"{self._root}/ask/{peer.name}/{peer.boot}"
        data, seal = self._sealer.seal("question", where, self._questions, b"", nonce)
        self._session.get(
            where,
            zenoh.handlers.Callback(
                lambda reply: self._on_answer(peer, nonce, reply), lambda: self._on_no_answer(peer, nonce)
            ),
            payload=data,
            attachment=seal,
            target=zenoh.QueryTarget.ALL,
            consolidation=zenoh.ConsolidationMode.NONE,
            timeout=ASK_TIMEOUT_S,
        )

    def _on_answer(self, peer: Peer, nonce: bytes, reply: Any) -> None:
        sample = reply.ok
        if sample is None:
            return
        opened = self._opened("answer", str(sample.key_expr), sample, peer.name)
        if opened is None or opened.nonce != nonce or opened.boot != peer.boot:
            return
        try:
            snapshot = _SNAPSHOT(opened.payload)
        except msgspec.MsgspecError:
            self._rejections.add(peer.name, "an answer")
            return
        with self._lock:
            if peer.asked != nonce or not peer.present:
                return
            for key, value in peer.introduce(snapshot):
                if self._on_change is not None:
                    self._on_change(peer.name, key, value)
            while peer.waiting:
                self._deliver(peer.name, peer.waiting.take())
            self._outbox.release(peer.name, peer.boot)
            if peer.name != self.name:
                self._tell_presence(peer.name, True)

    def _tell_presence(self, name: str, is_present: bool) -> None:
        if self._on_presence is not None:
            self._on_presence(name, is_present)

    def _on_no_answer(self, peer: Peer, nonce: bytes) -> None:
        """Marks an unanswered question as over, so that it will be asked again."""
        with self._lock:
            if peer.asked == nonce:
                peer.asked = None

    def _maintain(self) -> None:
        """Repeats unanswered questions, forgets processes that left long ago, and warns if nobody answers. Closes the
        session when the main thread ends, because Zenoh's threads would keep the process alive."""
        while not self._closed.wait(MAINTAIN_S):
            if not main_thread().is_alive():
                self.close()
                return
            with self._lock:
                self._expire()
                for peer in self._peers.values():
                    if peer.present and not peer.introduced and peer.asked is None:
                        self._ask(peer)
            self._warn_if_alone()

    def _warn_if_alone(self) -> None:
        """Warns if no peer was found. A connection refused because of a different secret looks like no answer."""
        if self._warn_at_s is not None and self._peers:
            self._warn_at_s = None
        if self._warn_at_s is not None and time.monotonic() > self._warn_at_s:
            self._warn_at_s = None
            self._notify(
                f"no member has answered at {', '.join(self._config.peers)} yet; still trying. If a member is running "
                "there, give both the same pipeline name and the same secret, or certificates of the same authority"
            )

    def _expire(self) -> None:
        now_s, grace_s = time.monotonic(), self._config.grace_s
        for process in [k for k, p in self._peers.items() if p.expired(now_s, grace_s)]:
            del self._peers[process]
