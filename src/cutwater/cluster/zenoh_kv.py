"""The key-value seam over Zenoh: peers that find each other, with no server between them.

    cutwater/<pipeline>/slots/<member>/<key>              a slot, pushed to all
    cutwater/<pipeline>/to/<reader>/<member>/<key>        a slot that one member sees
    cutwater/<pipeline>/mail/<reader>/<boot>/<member>     what is posted
    cutwater/<pipeline>/ask/<member>/<boot>               a question: what is in your slots?
    cutwater/<pipeline>/alive/<member>/<boot>/<seal>      the liveliness token of a process

Zenoh delivers in order and without loss while a connection lasts. When one is made, for the first time or
again, each side sees the other's token and asks for all its slots (`peers.py`); so nothing is missed that
is still there. Every message is sealed (`seal.py`); one that is not changes nothing.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Event, RLock, Thread
from typing import Any

import msgspec
import zenoh

from cutwater.cluster.config import ClusterConfig, check_name
from cutwater.cluster.mail import Outbox
from cutwater.cluster.peers import MAX_WAITING, Peer, Snapshot
from cutwater.cluster.seal import Complaints, Envelope, Highest, Sealer
from cutwater.kv import OnChange, OnMail, Process

ASK_TIMEOUT_S = 2.0
TEND_S = 0.25
MAX_PEERS = 1_000
ADVICE = (
    "it has no valid seal. If it is one of yours, give it the same secret and the same version of Cutwater"
)
REMOTE = zenoh.Locality.REMOTE
SLOT_QOS = {
    "congestion_control": zenoh.CongestionControl.BLOCK,
    "priority": zenoh.Priority.INTERACTIVE_HIGH,
    "express": True,
    "allowed_destination": REMOTE,
}
_ENCODE = msgspec.msgpack.Encoder().encode
_SNAPSHOT = msgspec.msgpack.Decoder(Snapshot).decode


class ZenohKv:
    """One process of a member in its cluster. `tell` is given what a user should know, line by line. Raises
    `UserError` for a configuration that cannot work or would let strangers in."""

    def __init__(
        self,
        config: ClusterConfig,
        pipeline: str,
        member: str,
        boot: str,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        for what, name in (("pipeline", pipeline), ("member", member), ("process", boot)):
            check_name(what, name)
        self.name = member
        self.boot = boot
        self._config = config
        self._root = f"cutwater/{pipeline}"
        self._sealer = Sealer(config.secret, member, boot)
        self._complaints = Complaints(tell, ADVICE)
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
        self._unread: deque[tuple[str, bytes]] = deque(maxlen=MAX_WAITING)
        self._closed = Event()
        self._session = config.session()
        self._outbox = Outbox(self._session, self._sealer, f"{self._root}/mail")
        self._join()

    def _join(self) -> None:
        """The token comes last: whoever sees it can ask us, and reaches us."""
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
        self._tender = Thread(target=self._tend, name="cutwater-peers", daemon=True)
        self._tender.start()

    # --- own slots --------------------------------------------------------------------------------------

    def write(self, key: str, value: bytes, to: str | None = None) -> None:
        where = self._slot(key, to)
        with self._writing:
            self._seq += 1
            self._own[key, to] = self._seq, value
            seal = self._sealer.seal("put", where, self._seq, value)
            with suppress(zenoh.ZError):  # the session is closed: nobody hears us any more
                self._session.put(where, value, attachment=seal, **SLOT_QOS)

    def delete(self, key: str) -> None:
        with self._writing:
            for slot in [s for s in self._own if s[0] == key]:
                del self._own[slot]
                where = self._slot(*slot)
                self._seq += 1
                seal = self._sealer.seal("delete", where, self._seq, b"")
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

    def subscribe(self, on_change: OnChange, on_mail: OnMail | None = None) -> None:
        with self._lock:
            self._on_change, self._on_mail = on_change, on_mail
            for peer in self._shown():
                for key, value in peer.items():
                    on_change(peer.name, key, value)
            while on_mail is not None and self._unread:
                on_mail(*self._unread.popleft())

    def alive(self) -> dict[str, tuple[str, ...]]:
        with self._lock:
            present = sorted({(p.name, p.boot) for p in self._peers.values() if p.alive} | {self._self})
        return {name: tuple(b for n, b in present if n == name) for name, _ in present}

    @property
    def rejected(self) -> int:
        """How many messages had no valid seal."""
        return self._complaints.count

    @property
    def _self(self) -> Process:
        return self.name, self.boot

    def _shown(self) -> list[Peer]:
        """The processes whose slots can be seen; of one member, the one that came last is last."""
        self._expire()
        return sorted(self._peers.values(), key=lambda p: (p.alive, p.order))

    def close(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            self._outbox.close()
            self._token.undeclare()
            self._session.close()

    # --- what arrives, in Zenoh's threads ---------------------------------------------------------------

    def _on_slot(self, sample: Any) -> None:
        where = str(sample.key_expr)
        stream, _, rest = where.removeprefix(f"{self._root}/").partition("/")
        if stream == "to":
            rest = rest.partition("/")[2]
        owner, _, key = rest.partition("/")
        put = sample.kind == zenoh.SampleKind.PUT
        value = sample.payload.to_bytes() if put else b""
        envelope = self._opened("put" if put else "delete", where, sample, value, owner)
        if envelope is None:
            return
        with self._lock:
            peer = self._peer(envelope)
            tell = peer is not None and peer.push(stream, envelope.seq, key, value if put else None)
            if tell and self._on_change is not None:
                self._on_change(owner, key, value)

    def _on_post(self, sample: Any) -> None:
        where = str(sample.key_expr)
        data = sample.payload.to_bytes()
        envelope = self._opened("mail", where, sample, data, where.rsplit("/", 1)[-1])
        if envelope is None:
            return
        with self._lock:
            peer = self._peer(envelope)
            if peer is None or not self._mailed.is_newer((envelope.member, envelope.boot), envelope.seq):
                return
            if peer.alive:
                self._deliver(peer.name, data)
            elif len(peer.waiting) < MAX_WAITING:
                peer.waiting.append(data)

    def _deliver(self, sender: str, data: bytes) -> None:
        if self._on_mail is not None:
            self._on_mail(sender, data)
        else:
            self._unread.append((sender, data))

    def _on_question(self, query: Any) -> None:
        with query:
            where = str(query.key_expr)
            asker = query.payload.to_bytes() if query.payload is not None else b""
            envelope = self._opened("question", where, query, asker, asker.decode(errors="replace"))
            if envelope is None or not self._asked.is_newer((envelope.member, envelope.boot), envelope.seq):
                return
            with self._writing:
                mine = sorted(self._own.items(), key=lambda item: item[1][0])
                slots = {k: slot for (k, to), slot in mine if to in (None, envelope.member)}
                data = _ENCODE(Snapshot(self._seq, slots))
            seal = self._sealer.seal("answer", where, 0, data, envelope.nonce)
            query.reply(where, data, attachment=seal)

    def _on_token(self, sample: Any) -> None:
        rest = str(sample.key_expr).removeprefix(f"{self._root}/alive/")
        name, _, rest = rest.partition("/")
        boot, _, seal = rest.partition("/")
        if (name, boot) == self._self:
            return
        if seal != self._sealer.token(name, boot):
            self._complaints.add(name, "a liveliness token")
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

    def _opened(self, kind: str, where: str, message: Any, payload: bytes, sender: str) -> Envelope | None:
        """The envelope of a message that is what it says it is, and says who its sender is."""
        attachment = message.attachment
        envelope = self._sealer.open(kind, where, attachment and attachment.to_bytes(), payload)
        if envelope is None or envelope.member != sender:
            self._complaints.add(sender, "a message")
            return None
        return envelope

    def _peer(self, envelope: Envelope) -> Peer | None:
        """The sender; it may be heard before its token is seen."""
        process = envelope.member, envelope.boot
        if process not in self._peers and len(self._peers) < MAX_PEERS:
            self._peers[process] = Peer(*process)
            self._peers[process].gone_s = time.monotonic()
        return self._peers.get(process)

    # --- introductions ----------------------------------------------------------------------------------

    def _ask(self, peer: Peer) -> None:
        """Asks a process for its slots. Everybody who claims to be it is asked; only its answer counts."""
        nonce = peer.asked = secrets.token_bytes(16)
        self._questions += 1
        where, payload = f"{self._root}/ask/{peer.name}/{peer.boot}", self.name.encode()
        self._session.get(
            where,
            zenoh.handlers.Callback(
                lambda reply: self._on_answer(peer, nonce, reply), lambda: self._on_no_answer(peer, nonce)
            ),
            payload=payload,
            attachment=self._sealer.seal("question", where, self._questions, payload, nonce),
            target=zenoh.QueryTarget.ALL,
            consolidation=zenoh.ConsolidationMode.NONE,
            timeout=ASK_TIMEOUT_S,
        )

    def _on_answer(self, peer: Peer, nonce: bytes, reply: Any) -> None:
        sample = reply.ok
        if sample is None:
            return
        data = sample.payload.to_bytes()
        envelope = self._opened("answer", str(sample.key_expr), sample, data, peer.name)
        if envelope is None or envelope.nonce != nonce or envelope.boot != peer.boot:
            return
        try:
            snapshot = _SNAPSHOT(data)
        except msgspec.MsgspecError:
            self._complaints.add(peer.name, "an answer")
            return
        with self._lock:
            if peer.asked != nonce or not peer.present:
                return
            for key, value in peer.introduce(snapshot):
                if self._on_change is not None:
                    self._on_change(peer.name, key, value)
            waiting, peer.waiting = peer.waiting, []
            for mail in waiting:
                self._deliver(peer.name, mail)
            self._outbox.release(peer.name, peer.boot)

    def _on_no_answer(self, peer: Peer, nonce: bytes) -> None:
        """The question is over; if it was not answered, it will be asked again."""
        with self._lock:
            if peer.asked == nonce:
                peer.asked = None

    def _tend(self) -> None:
        """Asks again whoever has not answered, and forgets whoever has been gone for long."""
        while not self._closed.wait(TEND_S):
            with self._lock:
                self._expire()
                for peer in self._peers.values():
                    if peer.present and not peer.introduced and peer.asked is None:
                        self._ask(peer)

    def _expire(self) -> None:
        now_s, grace_s = time.monotonic(), self._config.grace_s
        for process in [k for k, p in self._peers.items() if p.expired(now_s, grace_s)]:
            del self._peers[process]
