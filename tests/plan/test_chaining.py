"""Which stages are chained, and why the others are not."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from cutwater.plan.chaining import ChainFacts, Chaining, Wish, decide, make_topology, refuse_impossible
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.records import SinkSpec, StageSpec, Topology

MAY = ChainFacts(Wish.MAY)


class Graph:
    """A graph as written: `a` reads a source, and `b` reads `a`."""

    def __init__(self, **inputs: str) -> None:
        self.specs: dict[str, StageSpec] = {}
        self.facts: dict[str, ChainFacts] = {}
        for name, reads in (inputs or {"a": "", "b": "a"}).items():
            self.specs[name] = StageSpec(name, tuple(reads.split()), "main", (), f"columns of {name}")
            self.facts[name] = ChainFacts(Wish.MAY, is_native=not reads)

    def change(self, stage: str, **facts: object) -> Graph:
        self.facts[stage] = msgspec.structs.replace(self.facts[stage], **facts)
        return self

    def spec(self, stage: str, **changes: object) -> Graph:
        self.specs[stage] = msgspec.structs.replace(self.specs[stage], **changes)
        return self

    def decide(self, recorded: Topology | None = None, rechain: tuple[str, ...] = ()) -> Chaining:
        return decide(self.specs, self.facts, recorded, rechain)

    def topology(self, recorded: Topology | None = None, rechain: tuple[str, ...] = ()) -> Topology:
        return make_topology(self.specs, self.decide(recorded, rechain).readers)


def test_a_stage_that_one_other_reads_is_chained_into_it() -> None:
    assert Graph().decide() == Chaining({"a": "b"}, {})


def test_a_chain_may_have_many_stages_and_may_fan_in() -> None:
    graph = Graph(a="", b="a", c="", d="b c", e="d")
    assert graph.decide() == Chaining({"a": "b", "b": "d", "c": "d", "d": "e"}, {})
    made = graph.topology()
    assert list(made.stages) == ["e"]
    assert made.stages["e"].inputs == ()
    assert made.chain("e") == ("a", "b", "c", "d")
    assert [made.query_of(s) for s in "abcde"] == ["e"] * 5


@pytest.mark.parametrize(
    ("stage", "fact", "why"),
    [
        ("a", {"wish": Wish.NEVER}, "chaining is off for it"),
        ("a", {"stateful": "Distinct"}, r"it keeps state \(Distinct\)"),
        ("a", {"has_watermark": True}, r"it has withWatermark\(\)"),
        ("a", {"has_own_trigger": True}, "it has a trigger of its own"),
        ("a", {"has_max_rows": True}, "it has max_rows"),
        ("a", {"has_commit_group": True}, "it has commit_group"),
        (
            "a",
            {"has_rules": True},
            "it has rules for its rows, which are judged as they are written",
        ),
        ("b", {"has_max_rows": True}, "its reader 'b' has max_rows"),
        ("b", {"reads": {"a": 2}}, "'b' uses it 2 times"),
        ("b", {"is_native": True}, None),
        ("b", {"stateful": "Aggregate", "has_watermark": True, "has_own_trigger": True}, None),
        ("b", {"wish": Wish.NEVER, "has_commit_group": True}, None),
        ("b", {"wish": Wish.NEVER, "has_rules": True}, None),
    ],
)
def test_what_a_plan_decides(stage: str, fact: dict[str, object], why: str | None) -> None:
    made = Graph().change(stage, **fact).decide()
    if why is None:
        assert made == Chaining({"a": "b"}, {})
    else:
        assert made.readers == {}
        with pytest.raises(UserError, match=f"stage 'a' has chain=True and cannot be chained: {why}"):
            refuse_impossible(made, {"a": ChainFacts(Wish.MUST)})


def test_a_stage_with_two_readers_is_not_chained() -> None:
    made = Graph(a="", b="a", c="a").decide()
    assert made == Chaining({}, {"a": "2 stages read it: b, c"})


def test_a_stage_with_a_sink_is_not_chained() -> None:
    made = Graph().spec("a", sinks=(SinkSpec("out"),)).decide()
    assert made == Chaining({}, {"a": "it has a sink"})


def test_a_stage_of_another_member_is_not_chained() -> None:
    assert Graph().spec("b", member="far").decide().why_not == {"a": "its reader 'b' runs on member 'far'"}


def test_all_inputs_of_a_stage_are_chained_or_none() -> None:
    graph = Graph(a="", b="", c="a b").change("b", has_watermark=True)
    assert graph.decide().why_not == {
        "a": "its reader 'c' also reads 'b', which is not chained",
        "b": "it has withWatermark(), which would also act on its reader",
    }


def test_an_input_on_another_member_is_a_channel_too() -> None:
    specs = Graph(a="", c="a far")
    assert specs.decide().why_not == {"a": "its reader 'c' also reads 'far', which is not chained"}


def test_a_query_reads_channels_or_sources_and_not_both() -> None:
    graph = Graph(x="", a="x", other="x", b="", c="a b", d="c")
    assert graph.decide() == Chaining(
        {"c": "d"},
        {
            "x": "2 stages read it: a, other",
            "a": "the query of 'c' would read both channels and sources",
            "b": "the query of 'c' would read both channels and sources",
        },
    )
    alone = Graph(x="", a="x", other="x", b="a").change("b", is_native=True)
    assert alone.decide().why_not["a"] == "the query of 'b' would read both channels and sources"


def test_a_stage_without_a_reader_is_neither_chained_nor_explained_unless_it_must_be_chained() -> None:
    graph = Graph().change("b", wish=Wish.MUST)
    made = graph.decide()
    assert "b" not in {**made.readers, **made.why_not}
    with pytest.raises(UserError, match="'b' has chain=True and cannot be chained: no stage reads it"):
        refuse_impossible(made, graph.facts)
    refuse_impossible(made, {"a": ChainFacts(Wish.MUST)})


# --- the graph in force ---------------------------------------------------------------------------------


def test_a_stage_recorded_as_a_query_stays_one_until_a_rechain_is_requested() -> None:
    graph = Graph()
    recorded = make_topology(graph.specs)
    assert "--rechain" in graph.decide(recorded).why_not["a"]
    assert graph.decide(recorded, ("a",)).readers == {"a": "b"}


def test_what_is_recorded_as_chained_stays_so() -> None:
    graph = Graph()
    recorded = graph.topology()
    assert graph.topology(recorded) == recorded


def test_what_is_recorded_as_chained_is_split_when_the_code_forces_it() -> None:
    recorded = Graph().topology()
    assert Graph().spec("a", sinks=(SinkSpec("out"),)).decide(recorded).why_not == {"a": "it has a sink"}
    assert Graph(a="", b="a", c="a").decide(recorded).readers == {}


def test_a_new_reader_does_not_take_a_chained_stage_over() -> None:
    recorded = Graph().topology()
    assert "--rechain" in Graph(a="", c="a").decide(recorded).why_not["a"]


def test_stages_that_are_both_new_begin_as_the_code_says() -> None:
    recorded = make_topology(Graph().specs)
    assert Graph(a="", b="a", c="", d="c").decide(recorded).readers == {"c": "d"}
    assert "--rechain" in Graph(a="", b="a n", n="").decide(recorded).why_not["n"], "`b` has run without it"


# --- graphs ----------------------------------------------------------------------------------------------


def test_a_graph_has_queries_with_the_channels_that_they_read() -> None:
    graph = Graph(x="", y="x", a="x", b="a", c="y b", d="c")
    made = graph.topology()
    assert {n: s.inputs for n, s in made.stages.items()} == {"d": ("x",), "x": ()}
    assert made.readers("x") == ("d",)
    assert made.stages["x"].schema == "columns of x"
    assert made.chained["b"].schema == "columns of b"
    assert made.stages["d"].schema is None


def test_a_graph_says_how_its_stages_were_written() -> None:
    graph = Graph(x="", y="x", a="x", b="a", c="y b", d="c", e="d", f="d")
    graph.spec("e", sinks=(SinkSpec("out"),)).spec("f", sinks=(SinkSpec("other"),))
    made = graph.topology()
    written = made.written()
    assert {n: set(s.inputs) for n, s in written.items()} == {
        n: set(s.inputs) for n, s in graph.specs.items()
    }
    assert {n: s.sinks for n, s in written.items()} == {n: s.sinks for n, s in graph.specs.items()}
    assert make_topology(written, graph.decide().readers) == made


def test_a_graph_without_chains_has_the_encoding_of_older_versions() -> None:
    made = make_topology(Graph().specs)
    assert msgspec.json.encode(made).startswith(b'{"stages":{"a":{"name":"a","inputs":[],"member":"main"')
    assert b"chained" not in msgspec.json.encode(made)
    assert msgspec.json.decode(msgspec.json.encode(made), type=Topology).chained == {}


# --- random graphs ---------------------------------------------------------------------------------------


def some_graph(random: Random) -> Graph:
    names = [f"s{number}" for number in range(random.randint(2, 9))]
    graph = Graph(
        **{
            n: " ".join(random.sample(names[:at], random.randint(0, min(at, 2))))
            for at, n in enumerate(names)
        }
    )
    for name in names:
        odd = random.random() < 0.15
        graph.change(name, stateful="Aggregate" if random.random() < 0.15 else "", has_max_rows=odd)
        if random.random() < 0.1:
            graph.change(name, is_native=True)
        if random.random() < 0.15:
            graph.spec(name, member="far")
        if random.random() < 0.1:
            graph.spec(name, sinks=(SinkSpec(f"out of {name}"),))
    return graph


@pytest.mark.parametrize("seed", range(300))
def test_a_random_graph_keeps_the_rules_of_chains(seed: int) -> None:
    random = Random(seed)
    graph = some_graph(random)
    made = graph.decide()
    topology = graph.topology()
    assert made.readers.keys() | made.why_not.keys() == {i for s in graph.specs.values() for i in s.inputs}
    for name, reader in made.readers.items():
        assert [n for n, s in graph.specs.items() if name in s.inputs] == [reader]
        assert graph.specs[name].member == graph.specs[reader].member
        assert {i in made.readers for i in graph.specs[reader].inputs} == {True}
        assert not graph.facts[name].stateful
    for query, spec in topology.stages.items():
        inside = topology.chain(query)
        is_native = any(graph.facts[s].is_native for s in (query, *inside))
        assert not (inside and is_native and spec.inputs), "a query reads channels or sources"
        assert all(producer in topology.stages for producer in spec.inputs)
    assert topology.stages.keys() | topology.chained.keys() == graph.specs.keys()
    written = topology.written()
    assert {n: {*s.inputs} for n, s in written.items()} == {n: {*s.inputs} for n, s in graph.specs.items()}
    assert make_topology(written, made.readers) == topology

    assert graph.topology(topology) == topology, "a start keeps what is chained"
    assert graph.topology(make_topology(graph.specs)).chained == {}, "and what is not"
    assert graph.topology(make_topology(graph.specs), tuple(graph.specs)) == topology, "until it is asked for"
    changed = random.choice(list(graph.specs))
    graph.change(changed, wish=Wish.NEVER)
    assert graph.decide(topology).readers.items() <= made.readers.items(), "a change of the code only splits"


def test_the_reason_tells_a_new_stage_from_one_that_is_chained_elsewhere() -> None:
    """Only a stage that has a query of its own can be moved with --rechain."""
    recorded = Graph(a="", c="a").topology()
    between = Graph(a="", m="a", c="m").decide(recorded)
    assert between.why_not["m"].startswith(
        "it is new, and its reader 'c' is not: start once with --restore latest"
    )
    assert between.why_not["a"].startswith("the pipeline in the store has it chained into 'c': start once")
    apart = Graph(a="", c="a").change("a", wish=Wish.NEVER).topology()
    assert "--rechain moves it" in Graph(a="", c="a").decide(apart).why_not["a"]
