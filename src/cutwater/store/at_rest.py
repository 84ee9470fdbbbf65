"""Reading and steering a store without running a member: the protocol's procedures, driven one by one."""

from __future__ import annotations

import itertools
import re
import time
import uuid
from typing import Any, TypeVar

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base.errors import VERIFY_FIRST, StoreError, UserError
from cutwater.protocol.base.log import follow
from cutwater.protocol.base.performer import perform
from cutwater.protocol.base.records import Checkpoint, JournalState, Manifest
from cutwater.protocol.base.wire import Reply, Request
from cutwater.protocol.leader.steering import command
from cutwater.protocol.member.journal import Journal
from cutwater.protocol.member.publish import read_manifest
from cutwater.store import recording
from cutwater.store.contract import CannotWrite, Store
from cutwater.store.perform import Find, Head, History, MemberlessPerformer

R = TypeVar("R")
MAX_RETRIES = 20
"""How often a command retries a failing store before it gives up."""


def drive(
    store: Store,
    procedure: fx.Procedure[R],
    find: Find | None = None,
    recorder: recording.Recorder | None = None,
    history: History | None = None,
    head: Head | None = None,
) -> R:
    """Runs a procedure that needs only the store, and optionally `find`, `history` and `head` to query a table. Raises
    `StoreError` if the store keeps failing."""
    performer = MemberlessPerformer(store, find, history, head)
    act, _ = recording.watched(recorder, lambda operation: perform(performer, operation), lambda send: None)
    answer: Any = None
    failures: dict[type, int] = {}  # per kind of effect: a store may allow reads but not writes
    thrown: StoreError | None = None
    while True:
        try:
            effect = procedure.send(answer) if thrown is None else procedure.throw(thrown)
            thrown = None
        except StopIteration as end:
            result: R = end.value
            return result
        try:
            match effect:
                case fx.Sleep() | fx.Wait():
                    time.sleep(effect.ms / 1000)
                    answer = None
                case fx.Send():
                    raise AssertionError(f"{effect} needs a running member")
                case _:
                    answer = act(effect)
            failures.pop(type(effect), None)
        except StoreError as error:
            thrown = error
        except OSError as error:
            kind, answer = type(effect), fx.FAILED
            failures[kind] = failures.get(kind, 0) + 1
            if failures[kind] > MAX_RETRIES:
                said = (
                    str(error)
                    if isinstance(error, CannotWrite)
                    else f"the store {store.url} does not answer: {error}"
                )
                raise StoreError(said) from error


def read_journal(store: Store, *, must_exist: bool = True) -> Journal:
    """Reads the whole journal. Raises `UserError` if it is empty and `must_exist` is set."""
    journal = Journal()
    drive(store, follow(journal.view))
    if must_exist and journal.index == 0:
        raise UserError(
            f"{store.url} contains no pipeline yet (its journal is empty); start one with `cutwater run FILE --store "
            f"{store.url}`, or pass a different store"
        )
    return journal


def load_manifest(store: Store, checkpoint: Checkpoint) -> Manifest:
    """Reads the manifest of a committed epoch. Raises `StoreError` if it is missing or damaged."""
    manifest = drive(store, read_manifest(checkpoint))
    if manifest is None:
        raise StoreError(
            f"the manifest of epoch {checkpoint.epoch} is missing from {store.url}; {VERIFY_FIRST}"
            "restore another checkpoint"
        )
    return manifest


def resolve(state: JournalState, ref: str) -> Checkpoint:
    """Finds a checkpoint by `latest`, its epoch number or a savepoint name. Raises `UserError` if there is none."""
    if ref == "latest":
        if state.head is None:
            raise UserError("there is no checkpoint yet")
        return state.committed[state.head]
    if ref in state.savepoints:
        return state.committed[state.savepoints[ref]]
    if is_number(ref) and int(ref) in state.committed:
        return state.committed[int(ref)]
    kept = ", ".join(str(e) for e in sorted(state.committed)) or "none"
    named = ", ".join(sorted(state.savepoints)) or "none"
    raise UserError(f"there is no checkpoint '{ref}'; retained epochs: {kept}; savepoints: {named}")


def epoch_of(state: JournalState, ref: str) -> int:
    """The epoch that `ref` names; a number may be that of any epoch, kept or not. Raises `UserError` as `resolve`."""
    return int(ref) if is_number(ref) else resolve(state, ref).epoch


def is_number(ref: str) -> bool:
    """Whether a reference is an epoch's number. No epoch has more than 18 digits."""
    return re.fullmatch("[0-9]{1,18}", ref) is not None


def carry_out(
    store: Store, journal: Journal, request: Request, find: Find, history: History | None = None
) -> Reply:
    """Performs a restore, or names or forgets a savepoint, without a running member (`steering.command`)."""
    name = f"command-{uuid.uuid4().hex[:8]}"
    nonces = itertools.count(1)
    procedure = command(journal, name, lambda: f"{name}-{next(nonces)}", request)
    return drive(store, procedure, find, recording.of_command(name, journal), history)
