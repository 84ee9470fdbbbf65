"""A leader that writes the journal of a local store, entry by entry, under the control of a test."""

from __future__ import annotations

from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.log import AppendPhase, append, follow
from cutwater.protocol.base.watermark import NONE
from cutwater.protocol.member.journal import Journal
from cutwater.store.at_rest import drive
from cutwater.store.contract import Store


class LiveLeader:
    """The current leader of a pipeline in this store; creates the pipeline if there is none."""

    def __init__(self, store: Store, topology: r.Topology) -> None:
        self.store, self.topology, self.journal, self.term, self._nonces = store, topology, Journal(), 0, 0
        self.campaign()
        if self.state.topology is None:
            self.write(r.TopologySet(self.term, 1, digest(r.encode(topology)), topology))

    @property
    def state(self) -> r.JournalState:
        return self.journal.state

    def campaign(self) -> None:
        drive(self.store, follow(self.journal.view))
        self.term = self.state.term + 1
        self.write(r.Leader(self.term, "m"))

    def write(self, body: r.JournalBody) -> int:
        """Appends an entry, and returns its index."""
        self._nonces += 1
        sealed = self.journal.view.seal(body, f"live-{id(self)}-{self._nonces}")
        assert drive(self.store, append(self.journal.view, sealed)) is AppendPhase.MINE
        return sealed.entry.index

    def commit(
        self,
        batch: int,
        release: dict[str, tuple[str, ...]] | None = None,
        savepoint: str | None = None,
        held: dict[str, tuple[r.StagedFile, ...]] | None = None,
        in_flight: tuple[r.InFlight, ...] = (),
    ) -> int:
        """Commits an epoch that cuts every stage after `batch`, and returns its number."""
        epoch, generation, place = self.state.next_epoch, self.state.generation, self.journal.index + 1
        graph = self.state.topology_hash
        self.write(r.Begun(self.term, generation, epoch, place, 0, graph, savepoint))
        reports = {
            n: r.StageReport(
                n,
                1,
                batch,
                False,
                consumed=dict.fromkeys(s.inputs, batch),
                offsets={},
                watermark=NONE,
                state={},
            )
            for n, s in self.topology.stages.items()
        }
        published = {sink: (release or {}).get(sink, ()) for sink in self.topology.sinks()}
        manifest = r.Manifest(
            epoch, place, generation, self.term, 0, savepoint, graph, reports, in_flight, published, held or {}, None,
            self.topology.chained,
        )  # fmt: skip
        data = r.encode(manifest)
        self.store.create(paths.manifest_name(epoch, place), data)
        cuts = dict.fromkeys(reports, batch)
        self.write(r.Committed(self.term, generation, epoch, place, digest(data), None, cuts))
        return epoch

    def restore(self, epoch: int) -> None:
        cuts = self.state.committed[epoch].cuts
        self.write(r.Restored(self.term, self.state.generation + 1, epoch, cuts))

    def expire(self, *epochs: int) -> None:
        self.write(r.Expired(self.term, self.state.generation, epochs, (), {}, ()))
