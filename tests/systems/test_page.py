"""The page in a real browser: every view at the size of a desktop and of a phone, live changes, buttons."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from cutwater.protocol.base import records as r
from cutwater.protocol.base.chain import with_checksum
from cutwater.protocol.base.log import append, follow
from cutwater.protocol.base.paths import REQUEST_PREFIX, reply_name, request_of
from cutwater.protocol.base.wire import Reply, encode_message
from cutwater.protocol.member.journal import Journal
from cutwater.store.at_rest import drive, read_journal
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from cutwater.web.server import WebServer
from tests.support.browser import DESKTOP, PHONE, Browser, chromium
from tests.support.wide_pipeline import put_wide_status, wide_store, wide_topology
from tests.support.written import put_status

pytestmark = [pytest.mark.browser, pytest.mark.slow]

TOKEN = "correct-horse-battery-staple"
VIEWS = {
    "pipeline": "by_country",
    "checkpoints": "before-deploy",
    "checkpoints/3": "Where the time went",
    "checkpoints/4": "Why it failed",
    "timeline": "month-end",
    "tables": "stock_levels",
    "members": "host-ingest",
}
MALICE = "<img src=x onerror=document.title='owned'>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


class Beating:
    """The members of the wide pipeline, as long as they are not killed."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.cut: int | None = None
        self._over = Event()
        self._thread = Thread(target=self._beat)

    def start(self) -> None:
        self._over.clear()
        self._thread = Thread(target=self._beat)
        self._thread.start()

    def kill(self) -> None:
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        beat = int(time.time() * 10)
        while not self._over.wait(0.2):
            beat += 1
            put_wide_status(self.store, beat, cut=self.cut)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store, written once: every write is synced."""
    folder = tmp_path_factory.mktemp("wide") / "state"
    wide_store(folder)
    return folder


@pytest.fixture
def members(tmp_path: Path, written: Path) -> Iterator[Beating]:
    shutil.copytree(written, tmp_path / "state")
    running = Beating(open_store(str(tmp_path / "state")))
    running.start()
    yield running
    running.kill()


@pytest.fixture
def server(members: Beating) -> Iterator[WebServer]:
    made = WebServer(members.store, "127.0.0.1:0", TOKEN)
    made.start()
    yield made
    made.stop()


def entry(store: Store, body: r.JournalBody) -> None:
    """Appends to the journal, as the leader does."""
    journal = Journal()
    drive(store, follow(journal.view))
    drive(store, append(journal.view, journal.view.seal(body, f"n{time.time_ns()}")))


@pytest.mark.parametrize(("size", "dark"), [(DESKTOP, False), (PHONE, False), (DESKTOP, True)])
def test_every_view_is_shown_fits_and_makes_no_error(
    browser: Browser, server: WebServer, size: tuple[int, int], dark: bool
) -> None:
    browser.resize(size, dark)
    browser.errors()
    for view, said in VIEWS.items():
        browser.open(f"{server.url}/#/{view}")
        browser.wait_for_text(said, "#view")
        browser.wait_for_text("live", "#fresh")
        wide, room = browser.run("return [document.documentElement.scrollWidth, window.innerWidth]")
        assert wide <= room, f"{view} is wider than the screen"
        unnamed = browser.run(
            "return [...document.querySelectorAll('button, a, input, [role=img], [role=region]')].filter((one) => !("
            "one.textContent.trim() || one.getAttribute('aria-label') || one.labels?.length)).map((one) => one.outerHTML)"
        )
        assert unnamed == []
        assert browser.run("return document.querySelectorAll('h1').length") == 1
    assert browser.errors() == []


def test_all_thirty_stages_are_drawn_without_overlap(browser: Browser, server: WebServer) -> None:
    browser.resize(DESKTOP)
    browser.open(f"{server.url}/#/pipeline")
    browser.wait_for_text("alerts_out", "#view")
    boxes = browser.run(
        "return [...document.querySelectorAll('.graph .card')].map((one) => { const box = one.getBoundingClientRect(); "
        "return [one.dataset.key, box.left, box.top, box.right, box.bottom]; })"
    )
    assert sum(key.startswith("stage ") for key, *_ in boxes) == len(wide_topology().stages) == 30
    for number, (one, left, top, right, bottom) in enumerate(boxes):
        for other, left2, top2, right2, bottom2 in boxes[number + 1 :]:
            apart = right <= left2 or right2 <= left or bottom <= top2 or bottom2 <= top
            assert apart, f"{one} lies on {other}"
    assert (
        float(
            browser.run(
                "return getComputedStyle(document.querySelector('.graph')).transform.match(/[\\d.]+/)[0]"
            )
        )
        >= 0.7
    )


def test_what_a_card_says_stays_within_it(browser: Browser, server: WebServer, members: Beating) -> None:
    state = read_journal(members.store).state
    begun = read_journal(members.store).index + 1
    entry(members.store, r.Begun(1, 2, state.next_epoch, begun, 0, state.topology_hash))
    members.cut = state.next_epoch
    for size in (DESKTOP, PHONE):
        browser.resize(size)
        browser.open(f"{server.url}/#/pipeline")
        browser.wait(lambda: browser.all(".card .cut"), "a stage that is cut")
        outside = browser.run(
            "const edge = (one) => one.getBoundingClientRect().right; "
            "return [...document.querySelectorAll('.card')].flatMap((card) => "
            "[...card.querySelectorAll('*')].filter((one) => edge(one) > edge(card)).map((one) => one.outerHTML))"
        )
        assert outside == []


def test_a_restore_is_a_branch_even_before_its_first_epoch(browser: Browser, server: WebServer) -> None:
    browser.resize(PHONE)
    browser.open(f"{server.url}/#/timeline")
    browser.wait(lambda: browser.all(".timeline .fork"), "the branch")
    browser.wait(
        lambda: browser.run("return document.querySelector('.timeline').scrollLeft > 0"), "the newest"
    )
    named = browser.run(
        "const room = document.querySelector('.timeline').getBoundingClientRect(); "
        "return [...document.querySelectorAll('.timeline text')].filter((one) => one.textContent === 'generation 2')"
        ".map((one) => one.getBoundingClientRect()).map((box) => box.left >= room.left && box.right <= room.right)"
    )
    assert named == [True]


def test_a_stage_is_explained_with_the_keyboard_alone(browser: Browser, server: WebServer) -> None:
    browser.resize(DESKTOP)
    browser.open(f"{server.url}/#/pipeline")
    browser.wait_for_text("by_country", "#view")
    browser.run(
        "document.querySelector('.graph [data-key=\"stage by_country\"]').focus(); document.activeElement.click()"
    )
    browser.wait_for_text("CAST_INVALID_INPUT", "#dialog")
    assert "nothing is lost" in browser.text("#dialog")
    assert browser.run("return document.getElementById('dialog').contains(document.activeElement)")
    browser.click("#dialog button", "Close")
    browser.wait(lambda: not browser.all("dialog[open]"), "the dialog is closed")


def test_a_pipeline_that_is_killed_and_restored_is_followed(
    browser: Browser, server: WebServer, members: Beating
) -> None:
    browser.resize(DESKTOP)
    browser.errors()
    browser.open(f"{server.url}/#/pipeline")
    browser.wait_for_text("a stage restarts", "#top")
    state = read_journal(members.store).state
    begun = read_journal(members.store).index + 1
    entry(members.store, r.Begun(1, 2, state.next_epoch, begun, 0, state.topology_hash))
    members.cut = state.next_epoch
    browser.wait_for_text(f"epoch {state.next_epoch} in progress", "#top")
    browser.wait(lambda: browser.all(".edge.barrier"), "a barrier that travels")
    members.kill()
    browser.wait_for_text("not running", "#top", 60)
    entry(members.store, r.Restored(1, 3, 3, state.committed[3].cuts))
    browser.wait_for_text("generation 3, from epoch 3", "#top")
    members.cut = None
    members.start()
    browser.wait_for_text("a stage restarts", "#top", 60)
    assert browser.errors() == []


def test_a_page_whose_server_goes_away_says_so_and_comes_back(browser: Browser, members: Beating) -> None:
    browser.resize(DESKTOP)
    server = WebServer(members.store, "127.0.0.1:0")
    server.start()
    address = server.url.removeprefix("http://")
    try:
        browser.open(f"{server.url}/#/members")
        browser.wait_for_text("live", "#fresh")
        server.stop()
        browser.wait_for_text("stale for", "#fresh", 60)
        server = WebServer(members.store, address)
        server.start()
        browser.wait_for_text("live", "#fresh", 60)
    finally:
        server.stop()


def test_a_page_that_is_opened_before_there_is_a_store_says_so_and_then_shows_it(
    browser: Browser, members: Beating
) -> None:
    browser.resize(DESKTOP)
    server = WebServer(None, "127.0.0.1:0")
    server.start()
    try:
        browser.open(f"{server.url}/#/")
        browser.wait_for_text("the pipeline is starting")
        server.show(members.store)
        browser.wait_for_text("by_country")
        browser.wait_for_text("live", "#fresh")
    finally:
        server.stop()
        browser.open("about:blank")
        browser.errors()  # of the answers from before


def test_without_a_token_there_are_no_buttons(browser: Browser, members: Beating) -> None:
    server = WebServer(members.store, "127.0.0.1:0")
    server.start()
    try:
        browser.resize(DESKTOP)
        browser.open(f"{server.url}/#/checkpoints/3")
        browser.wait_for_text("Where the time went", "#view")
        assert browser.all(".actions") == []
        assert "Restore" not in browser.text("#view")
    finally:
        server.stop()


def test_a_button_asks_first_demands_the_token_and_shows_the_answer(
    browser: Browser, server: WebServer, members: Beating
) -> None:
    browser.resize(PHONE)
    browser.open(f"{server.url}/#/pipeline")
    browser.wait_for_text("a stage restarts", "#top")
    browser.run("sessionStorage.clear()")
    browser.click(".actions button", "Savepoint")
    browser.wait_for_text("everything can go back to it", "#dialog")
    browser.fill("#dialog input[name=name]", "from-the-page")
    assert members.store.list(REQUEST_PREFIX) == []
    browser.click("#dialog button", "Take it")
    browser.fill("#dialog input[name=token]", "this is not the token")
    browser.click("#dialog button", "Continue")
    browser.wait_for_text("That token is wrong", "#dialog")
    browser.fill("#dialog input[name=token]", TOKEN)
    browser.click("#dialog button", "Continue")
    browser.wait_for_text("savepoint: waiting", "#notices")
    browser.wait(lambda: members.store.list(REQUEST_PREFIX), "the request")
    request_id = str(request_of(members.store.list(REQUEST_PREFIX)[0]))
    members.store.create(reply_name(request_id), with_checksum(encode_message(Reply(request_id, True, 42))))
    browser.wait_for_text("savepoint 'from-the-page' is epoch 42", "#notices")
    browser.errors()


def test_a_restore_says_what_will_happen(browser: Browser, server: WebServer) -> None:
    browser.resize(DESKTOP)
    browser.open(f"{server.url}/#/checkpoints/3")
    browser.click("#view button", "Restore")
    browser.wait_for_text("All 30 stages and 10 tables", "#dialog")
    said = browser.text("#dialog")
    assert "disappears from the tables" in said
    assert "as savepoint before-deploy" in said
    browser.click("#dialog button", "Back")


def test_outside_the_loopback_nothing_is_shown_without_the_token(browser: Browser, members: Beating) -> None:
    server = WebServer(members.store, "0.0.0.0:0", TOKEN)
    server.start()
    try:
        browser.resize(DESKTOP)
        browser.open(server.url.replace("0.0.0.0", "127.0.0.1"))
        browser.run("sessionStorage.clear(); location.reload()")
        browser.wait_for_text("The token that the server was started with", "#dialog")
        assert "orders" not in browser.text()
        browser.fill("#dialog input[name=token]", TOKEN)
        browser.click("#dialog button", "Continue")
        browser.wait_for_text("clean_orders", "#view")
        browser.wait_for_text("live", "#fresh")
    finally:
        browser.run("sessionStorage.clear()")
        server.stop()


def test_names_and_errors_are_never_markup(browser: Browser, server: WebServer, members: Beating) -> None:
    members.kill()
    put_status(
        members.store,
        member="core",
        pipeline=MALICE,
        trouble=MALICE,
        host=MALICE,
        spark_ui="javascript:alert(1)",
    )
    browser.resize(DESKTOP)
    browser.open(f"{server.url}/#/members")
    browser.wait_for_text("<img src=x", "#view")
    browser.open(f"{server.url}/#/pipeline")
    browser.wait_for_text("<img src=x", "#view")
    assert browser.all("#view img") == []
    assert browser.all("a[href^=javascript]") == []
    assert browser.run("return document.title") != "owned"


def test_a_page_uses_the_same_memory_after_many_changes(browser: Browser, server: WebServer) -> None:
    browser.resize(DESKTOP)
    browser.open(f"{server.url}/#/pipeline")
    browser.wait_for_text("alerts_out", "#view")
    browser.driver.execute_cdp_cmd("HeapProfiler.enable", {})

    def heap() -> tuple[int, int]:
        """The least of several looks: while the page draws, it has everything twice."""
        looks = [look() for _ in range(5)]
        return min(size for size, _ in looks), min(nodes for _, nodes in looks)

    def look() -> tuple[int, int]:
        browser.driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
        found: Any = browser.driver.execute_cdp_cmd("Runtime.getHeapUsage", {})
        nodes: Any = browser.driver.execute_cdp_cmd("Memory.getDOMCounters", {})
        return int(found["usedSize"]), int(nodes["nodes"])

    def visit() -> None:
        for view in ("checkpoints", "timeline", "tables", "members", "pipeline"):
            browser.run(f"location.hash = '#/{view}'")
            browser.wait_for_text(view.capitalize(), "#view")

    for _ in range(3):
        visit()
    size, nodes = heap()
    for _ in range(10):
        visit()
    later, more = heap()
    assert later < 1.5 * size + 1_000_000
    assert more < 1.5 * nodes + 1_000
