"""The options of a run, with their defaults and documentation.

`Pipeline.start` and `run`, the flags of `cutwater run` and the page `docs/configuration.md` all derive from
`RunConfig`. The first sentence of an option's description is the help text of its flag.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypedDict, get_type_hints

import msgspec
from msgspec import Meta

from cutwater.cluster.config import ClusterConfig
from cutwater.plan.given import check_count, check_duration, check_truth
from cutwater.protocol.base.durations import seconds
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.options import refuse_unknown
from cutwater.protocol.leader.coordinator_actions import CoordinatorConfig
from cutwater.protocol.leader.leader import LeaderConfig
from cutwater.protocol.member.config import MemberConfig
from cutwater.store.contract import Store
from cutwater.store.local import LocalStore

LEADER_ALONE_MS = 200
"""How long a member without peers waits before it leads."""
HEARTBEAT_MS = 1_000
POLL_ALONE_MS, POLL_FOLDER_MS, POLL_BUCKET_MS = 200, 1_000, 2_000
_DURATIONS = ("every", "min_pause", "timeout", "alignment_timeout", "idle_after", "leader_timeout")
_FLOORS = {"retained": 1, "max_concurrent": 1, "full_every": 1, "restarts": 0, "tolerated_failures": 0}
_OPTIONAL = ("alignment_timeout", "full_every", "tolerated_failures")
_TRUTHS = ("once", "unaligned", "rechain", "force", "takeover")
_NAMES = ("drop", "reset", "wait_for")

Duration = str | float
"""`500ms`, `5s`, `2m`, `1h`; a bare number is seconds."""


def _in(group: str, description: str) -> Meta:
    return Meta(description=description, extra={"group": group})


CHECKPOINTS = "Checkpoints"
RESTORING = "Restoring"
FAILURES = "Failures"
SPARK = "Spark"
MEMBERS = "Several members"


class _Named(msgspec.StructMeta):
    """Makes a call with an unknown field raise `UserError`."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        refuse_unknown(cls.__name__, options, cls.__struct_fields__)
        return super().__call__(*args, **options)


class RunConfig(msgspec.Struct, frozen=True, kw_only=True, metaclass=_Named):
    """Every option of a run. Raises `UserError` for values that cannot work."""

    every: Annotated[
        Duration, _in(CHECKPOINTS, "Time between the starts of two checkpoints. Each one publishes its rows.")
    ] = "10s"
    min_pause: Annotated[
        Duration,
        _in(
            CHECKPOINTS,
            "Shortest time between the end of a checkpoint and the start of the next. Use it when "
            "checkpoints take about as long as `every`.",
        ),
    ] = "0s"
    max_concurrent: Annotated[
        int,
        _in(
            CHECKPOINTS,
            "How many checkpoints may be in progress at the same time. With more than one, a slow checkpoint does "
            "not delay the start of the next; they are committed in order.",
        ),
    ] = 1
    once: Annotated[
        bool,
        _in(
            CHECKPOINTS,
            "Process the input that exists now, publish it, and exit. Windows that it closes are published too.",
        ),
    ] = False
    timeout: Annotated[Duration, _in(CHECKPOINTS, "A checkpoint that takes longer is aborted.")] = "10m"
    alignment_timeout: Annotated[
        Duration | None,
        _in(
            CHECKPOINTS,
            "A checkpoint whose alignment takes longer turns unaligned. Without it, alignment may take until "
            "`timeout`. Must be less than `timeout`.",
        ),
    ] = None
    unaligned: Annotated[
        bool,
        _in(
            CHECKPOINTS,
            "Checkpoints do not wait for rows in channels. The rows in flight become part of the checkpoint; "
            "tables then do not show the same prefix of every source.",
        ),
    ] = False
    retained: Annotated[
        int,
        _in(
            CHECKPOINTS,
            "How many checkpoints to keep. Savepoints are kept in addition, until their names are removed.",
        ),
    ] = 3
    full_every: Annotated[
        int | None,
        _in(
            CHECKPOINTS,
            "Every n-th checkpoint copies all state, as a savepoint does. The others name the state files that Spark "
            "has written. Without it, only savepoints are full.",
        ),
    ] = None
    idle_after: Annotated[
        Duration,
        _in(CHECKPOINTS, "How long a stage may be silent before it stops holding back the watermark."),
    ] = "10s"

    restore: Annotated[
        str | int | None,
        _in(
            RESTORING,
            "Restore a checkpoint before the start. An epoch's number, a savepoint's name, or `latest`. Needed if the "
            "graph has changed.",
        ),
    ] = None
    drop: Annotated[
        Sequence[str],
        _in(RESTORING, "With restore: a stage or a sink that the code no longer has. May name several."),
    ] = ()
    reset: Annotated[
        Sequence[str],
        _in(
            RESTORING,
            "With restore: a stage to start without its state. Its positions in its sources are kept, except where Kafka "
            "has lost the records. May name several.",
        ),
    ] = ()
    rechain: Annotated[
        bool,
        _in(
            RESTORING,
            "With restore: also chain stages that have had a query of their own. The checkpoint must be aligned.",
        ),
    ] = False
    force: Annotated[
        bool,
        _in(
            RESTORING,
            "With restore: also undo changes that others have made to the tables. Rows in flight that no stage of the "
            "code would read are given up.",
        ),
    ] = False
    takeover: Annotated[
        bool,
        _in(
            RESTORING,
            "Start even if another process seems to be running it. Nothing is lost if it is: that process ends.",
        ),
    ] = False

    tolerated_failures: Annotated[
        int | None,
        _in(
            FAILURES,
            "Failed checkpoints in a row that this member may cause. After one more the run ends; `None` (in Python "
            "only) tolerates any number.",
        ),
    ] = 3
    restarts: Annotated[
        int,
        _in(
            FAILURES,
            "How often in a row to restart a failing query. The first restart comes after 1 s, each further one after "
            "twice as long. A sink that fails is retried forever while the pipeline runs, and this often when it is "
            "drained: then the run ends with the sink's error.",
        ),
    ] = 5

    master: Annotated[
        str | None,
        _in(
            SPARK,
            "Spark's master, for example `local[4]`. By default the submitted one, else the environment variable "
            "`SPARK_MASTER`, else that of spark-defaults.conf, else `local` with all cores. Cannot be combined with a "
            "session of your own.",
        ),
    ] = None
    conf: Annotated[
        dict[str, str],
        _in(
            SPARK,
            "Spark settings for the session that Cutwater creates. They override submitted ones, which override the "
            "defaults of Cutwater. Cannot be combined with a session of your own.",
        ),
    ] = {}

    member: Annotated[
        str | None,
        _in(
            MEMBERS,
            "The name of this member, if there are several. It runs the stages that name it, or all stages of its file "
            "if none names a member.",
        ),
    ] = None
    wait_for: Annotated[
        Sequence[str],
        _in(
            MEMBERS,
            "A member to wait for at the first start. It always waits for members whose stages it reads. May name "
            "several.",
        ),
    ] = ()
    leader_timeout: Annotated[
        Duration, _in(MEMBERS, "Silence of the leader after which another member takes over.")
    ] = "3s"
    cluster: Annotated[
        ClusterConfig | None, _in(MEMBERS, "How members reach each other: a `cutwater.ClusterConfig`.")
    ] = None

    def __post_init__(self) -> None:
        for name in _DURATIONS:
            if getattr(self, name) is not None or name not in _OPTIONAL:
                check_duration(getattr(self, name), name)
        for name, floor in _FLOORS.items():
            if getattr(self, name) is not None or name not in _OPTIONAL:
                check_count(getattr(self, name), name, floor)
        for name in _TRUTHS:
            check_truth(getattr(self, name), name)
        for name in _NAMES:
            value = getattr(self, name)
            if isinstance(value, str):
                raise UserError(f"{name} is a list of names: write {name}=[{value!r}]")
        if self.restore is None and (self.drop or self.reset or self.rechain):
            raise UserError(
                "drop, reset and rechain only work together with a restore; give restore= (--restore) too"
            )
        alignment_timeout = None if self.unaligned else self.alignment_timeout
        if alignment_timeout is not None and seconds(alignment_timeout) >= seconds(self.timeout):
            raise UserError(
                f"alignment_timeout is {alignment_timeout} and timeout is {self.timeout}: a checkpoint would be aborted "
                "before it turns unaligned; give an alignment_timeout of less than timeout"
            )

    def for_changed_graph(self) -> RunConfig:
        """The options for restarting this member in a changed graph: in the same session, without another restore."""
        return msgspec.structs.replace(self, restore=None, drop=(), reset=(), rechain=False, takeover=True)

    def leader(self, is_alone: bool) -> LeaderConfig:
        """The options of the leader. A member that `is_alone` need not wait for others before it leads."""
        alignment_timeout_ms = 0 if self.unaligned else None
        if alignment_timeout_ms is None and self.alignment_timeout is not None:
            alignment_timeout_ms = _ms(self.alignment_timeout)
        coordinator = CoordinatorConfig(
            interval_ms=max(1, _ms(self.every)), timeout_ms=max(1, _ms(self.timeout)),
            alignment_timeout_ms=alignment_timeout_ms, retained=self.retained, min_pause_ms=_ms(self.min_pause),
            max_concurrent=self.max_concurrent, full_every=self.full_every,
        )  # fmt: skip
        if is_alone:
            return LeaderConfig(LEADER_ALONE_MS, HEARTBEAT_MS, coordinator)
        timeout_ms = max(100, _ms(self.leader_timeout))
        return LeaderConfig(timeout_ms, min(HEARTBEAT_MS, timeout_ms // 3), coordinator)

    def for_member(self, store: Store, is_alone: bool) -> MemberConfig:
        """The options of a member. Members notify each other, so polling the store is a fallback; polling a local folder
        is nearly free for one member, but not for many."""
        poll_ms = POLL_BUCKET_MS
        if isinstance(store, LocalStore):
            poll_ms = POLL_ALONE_MS if is_alone else POLL_FOLDER_MS
        return MemberConfig(
            poll_ms=poll_ms, restarts=self.restarts, publish_tries=self.restarts,
            tolerated_failures=self.tolerated_failures, idle_after_ms=_ms(self.idle_after), once=self.once,
        )  # fmt: skip


class RunOptions(TypedDict, total=False):
    """The options as keyword arguments, for type checkers. `RunConfig` documents them."""

    every: Duration
    min_pause: Duration
    max_concurrent: int
    once: bool
    timeout: Duration
    alignment_timeout: Duration | None
    unaligned: bool
    retained: int
    full_every: int | None
    idle_after: Duration
    restore: str | int | None
    drop: Sequence[str]
    reset: Sequence[str]
    rechain: bool
    force: bool
    takeover: bool
    tolerated_failures: int | None
    restarts: int
    master: str | None
    conf: dict[str, str]
    member: str | None
    wait_for: Sequence[str]
    leader_timeout: Duration
    cluster: ClusterConfig | None


class Option(msgspec.Struct, frozen=True):
    """One option of a run or of a cluster."""

    name: str
    default: Any
    description: str
    group: str = ""

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def summary(self) -> str:
        """The first sentence of its description."""
        return self.description.partition(". ")[0].rstrip(".") + "."


def options_of(config: type[msgspec.Struct]) -> dict[str, Option]:
    """The options of `RunConfig` or `ClusterConfig`, by name."""
    hints = get_type_hints(config, include_extras=True)
    defaults = config()
    found = {}
    for name in config.__struct_fields__:
        meta: Meta = hints[name].__metadata__[0]
        group = (meta.extra or {}).get("group", "")
        found[name] = Option(name, getattr(defaults, name), meta.description or "", group)
    return found


def _ms(duration: Duration) -> int:
    return int(seconds(duration) * 1000)
