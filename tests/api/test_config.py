"""The options of a run: defaults, documentation, flags, and values that are refused."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest
import typer.main
from typer.testing import CliRunner

import cutwater as cw
from cutwater.api.config import LEADER_ALONE_MS, RunConfig, RunOptions, options_of
from cutwater.cli.main import app
from cutwater.cli.run import run
from cutwater.cluster.config import ClusterConfig
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.leader.coordinator_actions import CoordinatorConfig
from cutwater.protocol.leader.leader import LeaderConfig
from cutwater.protocol.member.config import MemberConfig
from cutwater.store.opening import open_store
from tests.support import configuration

PAGE = Path(__file__).parents[2] / "docs/configuration.md"
NOT_FLAGS = {"cluster"}
"""Options that have no single flag; their fields have flags of their own."""


def flags() -> dict[str, Any]:
    command: Any = typer.main.get_command(app)
    return {parameter.name: parameter for parameter in command.commands["run"].params}


def test_the_page_in_the_repository_is_current(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert configuration.main(["--check", str(PAGE)]) == 0, capsys.readouterr().err
    stale = tmp_path / "configuration.md"
    stale.write_text(PAGE.read_text("utf-8").replace("`10s`", "`11s`"), "utf-8")
    assert configuration.main(["--check", str(stale)]) == 1
    assert "run `make docs`" in capsys.readouterr().err
    assert configuration.main(["--write", str(stale)]) == 0
    assert stale.read_text("utf-8") == PAGE.read_text("utf-8")


@pytest.mark.parametrize("kind", [RunConfig, ClusterConfig])
def test_every_option_is_described_in_sentences(kind: type[msgspec.Struct]) -> None:
    for option in options_of(kind).values():
        assert re.match(r"[A-Z].*[.]$", option.description), option
        assert len(option.summary) < 80, option


def test_keyword_arguments_are_the_options() -> None:
    """`RunOptions` exists only for type checkers, which cannot derive it."""
    assert get_type_hints(RunOptions) == get_type_hints(RunConfig)


def test_every_option_has_a_flag_with_its_default_and_help_text() -> None:
    found = flags()
    for name, option in options_of(RunConfig).items():
        if name in NOT_FLAGS:
            continue
        flag = found[name]
        assert option.flag in flag.opts
        assert flag.help == option.summary
        assert (flag.default or None) == (option.default or None), name


def test_flags_arrive_as_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each flag with a value other than its default ends up in the option of its name."""
    given: list[RunConfig] = []

    def start(self: cw.Pipeline, store: str, config: RunConfig) -> None:
        given.append(config)
        raise UserError("that is all")

    monkeypatch.setattr(cw.Pipeline, "start", start)
    (tmp_path / "p.py").write_text('import cutwater\npipeline = cutwater.Pipeline("p")\n')
    values: dict[str, Any] = {
        "every": "7s", "timeout": "8m", "alignment_timeout": "9s", "idle_after": "11s", "leader_timeout": "12s",
        "once": True, "unaligned": True, "force": True, "rechain": True, "takeover": True, "retained": 4,
        "tolerated_failures": 5, "restarts": 6, "restore": "ref", "drop": ("a", "b"), "reset": ("c",), "wait_for": ("d",),
        "member": "m",
        "master": "local[3]", "conf": {"k": "v=w"}, "min_pause": "13s", "max_concurrent": 2, "full_every": 14,
    }  # fmt: skip
    words = ["run", str(tmp_path / "p.py"), "--listen", "tcp/127.0.0.1:1", "--peer", "tcp/127.0.0.1:2"]
    for name, value in values.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, dict):
            words += [flag, "k=v=w"]
        elif isinstance(value, tuple):
            words += [word for one in value for word in (flag, one)]
        else:
            words += [flag] if value is True else [flag, str(value)]
    result = CliRunner().invoke(app, words)
    assert "that is all" in result.output + result.stderr
    cluster = ClusterConfig(listen=("tcp/127.0.0.1:1",), peers=("tcp/127.0.0.1:2",))
    assert given == [RunConfig(**values, cluster=cluster)]
    assert values.keys() | NOT_FLAGS == options_of(RunConfig).keys()


def test_the_store_has_no_default_in_python() -> None:
    for function in (cw.Pipeline.start, cw.Pipeline.run):
        assert inspect.signature(function).parameters["store"].default is inspect.Parameter.empty
    assert inspect.signature(run).parameters["store"].default == "./state"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"every": "5x"}, "every '5x'"),
        ({"idle_after": "soon"}, "idle_after 'soon'"),
        ({"retained": 0}, "retained is 0; give 1 or more"),
        ({"max_concurrent": 0}, "max_concurrent is 0; give 1 or more"),
        ({"full_every": 0}, "full_every is 0; give 1 or more"),
        ({"every": float("nan")}, "every is nan, which is not a duration"),
        ({"every": float("inf")}, "every is inf, which is not a duration"),
        ({"every": None}, "every is None, which is not a duration"),
        ({"every": True}, "every is True, which is not a duration"),
        ({"timeout": None}, "timeout is None, which is not a duration"),
        ({"retained": 2.5}, "retained is 2.5; give 1 or more, as a whole number"),
        ({"retained": True}, "retained is True; give 1 or more"),
        ({"restarts": None}, "restarts is None; give 0 or more"),
        ({"max_concurrent": "2"}, "max_concurrent is '2'; give 1 or more"),
        ({"once": "no"}, "once is 'no'; give True or False"),
        ({"takeover": None}, "takeover is None; give True or False"),
        ({"min_pause": "short"}, "min_pause 'short'"),
        ({"restarts": -1}, "restarts is -1; give 0 or more"),
        ({"tolerated_failures": -1}, "tolerated_failures is -1; give 0 or more"),
        ({"drop": ["a"]}, r"give restore= \(--restore\) too"),
        ({"reset": ["a"]}, r"give restore= \(--restore\) too"),
        ({"rechain": True}, r"give restore= \(--restore\) too"),
        ({"restore": "latest", "drop": "a"}, r"drop is a list of names: write drop=\['a'\]"),
        ({"alignment_timeout": "10m"}, "give an alignment_timeout of less than timeout"),
    ],
)
def test_invalid_options_are_refused_before_anything_starts(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        RunConfig(**options)
    with pytest.raises(UserError, match=says):
        cw.Pipeline("p").start("nowhere/at/all", **options)
    assert not Path("nowhere").exists()


def test_keyword_arguments_override_a_config_and_unknown_ones_are_refused() -> None:
    pipeline = cw.Pipeline("p")
    with pytest.raises(UserError, match="every 'wrong'"):
        pipeline.start("s", RunConfig(every="5s"), every="wrong")
    with pytest.raises(UserError, match=r"start\(\) has no option 'evry'; did you mean 'every'\?"):
        pipeline.start("s", evry="5s")  # type: ignore[call-arg]
    with pytest.raises(UserError, match="RunConfig has no option 'restart'; did you mean 'restarts'"):
        RunConfig(restart=1)  # type: ignore[call-arg]
    assert not Path("s").exists()


def test_a_restart_in_a_changed_graph_keeps_the_options_and_restores_nothing() -> None:
    before = RunConfig(every="5s", restore="latest", drop=("a",), reset=("b",), member="m", retained=9)
    after = before.for_changed_graph()
    assert (after.restore, after.drop, after.reset, after.takeover) == (None, (), (), True)
    assert (after.every, after.member, after.retained) == ("5s", "m", 9)


def test_options_are_passed_to_the_protocol() -> None:
    config = RunConfig(
        every="2s", timeout="1m", alignment_timeout="500ms", retained=7, leader_timeout="600ms",
        min_pause="250ms", max_concurrent=2, full_every=5,
    )  # fmt: skip
    leader = config.leader(is_alone=False)
    assert (leader.timeout_ms, leader.heartbeat_ms) == (600, 200)
    assert config.leader(is_alone=True).timeout_ms == LEADER_ALONE_MS
    found = leader.coordinator
    assert (found.interval_ms, found.timeout_ms, found.alignment_timeout_ms, found.retained) == (
        2_000, 60_000, 500, 7,
    )  # fmt: skip
    assert (found.min_pause_ms, found.max_concurrent, found.full_every) == (250, 2, 5)
    options = RunConfig(restarts=3, tolerated_failures=5, idle_after="4s", once=True)
    member = options.for_member(open_store("memory://", create=True), is_alone=True)
    assert (member.restarts, member.publish_tries, member.tolerated_failures) == (3, 3, 5)
    assert (member.idle_after_ms, member.once) == (4_000, True)
    assert RunConfig(unaligned=True).leader(True).coordinator.alignment_timeout_ms == 0
    assert RunConfig().leader(True).coordinator.alignment_timeout_ms is None


def test_a_member_polls_a_folder_often_and_a_bucket_rarely(tmp_path: Path) -> None:
    bucket, folder = open_store("memory://", create=True), open_store(str(tmp_path), create=True)
    found = [
        RunConfig().for_member(s, is_alone).poll_ms for s in (folder, bucket) for is_alone in (True, False)
    ]
    assert found == [200, 1_000, 2_000, 2_000]


@pytest.mark.parametrize("kind", [CoordinatorConfig, LeaderConfig])
def test_an_option_has_one_default(kind: type[msgspec.Struct]) -> None:
    assert all(field.required for field in msgspec.structs.fields(kind))


def test_an_option_of_a_member_has_one_default() -> None:
    with_default = {field.name for field in msgspec.structs.fields(MemberConfig) if not field.required}
    options = {name.removesuffix("_ms") for name in MemberConfig.__struct_fields__} & options_of(
        RunConfig
    ).keys()
    assert options == {"restarts", "tolerated_failures", "idle_after", "once"}
    assert not {name.removesuffix("_ms") for name in with_default} & options_of(RunConfig).keys()


@pytest.mark.parametrize(
    ("name", "least"),
    [("retained", 1), ("max_concurrent", 1), ("full_every", 1), ("restarts", 0), ("tolerated_failures", 0)],
)
def test_the_least_values_are_accepted(name: str, least: int) -> None:
    accepted: Any = {name: least}
    assert getattr(RunConfig(**accepted), name) == least
    refused: Any = {name: least - 1}
    with pytest.raises(UserError, match=f"give {least} or more"):
        RunConfig(**refused)
