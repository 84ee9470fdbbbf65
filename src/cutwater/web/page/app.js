// Puts the pages together: where one is, what the server says, and whether that is fresh.

import { actions, askToken, closeDialog, openDialog } from "./actions.js";
import { Failed, follow, get, token } from "./api.js";
import { checkpointView } from "./checkpoint.js";
import { checkpointsView } from "./checkpoints.js";
import { announce, h, show } from "./dom.js";
import { duration, moment, secondsBetween } from "./format.js";
import { membersView } from "./members.js";
import { pipelineView, stageDetails } from "./pipeline.js";
import { badge, callout } from "./shared.js";
import { tablesView } from "./tables.js";
import { timelineView } from "./timeline.js";

const TABS = [["pipeline", "Pipeline"], ["checkpoints", "Checkpoints"], ["timeline", "Timeline"], ["tables", "Tables"], ["members", "Members"]];
const STALE_S = 12;
const places = { top: document.getElementById("top"), tabs: document.getElementById("tabs"), notices: document.getElementById("notices"), view: document.getElementById("view") };

const now = {
  document: null, heardAt: 0, receivedAt: 0, link: "lost", storeProblem: null, versions: {}, failure: null,
  found: {}, only: "", before: { checkpoints: [], tables: [] }, asked: new Map(), stage: null,
};

const route = () => {
  const [page = "pipeline", ref = ""] = location.hash.replace(/^#\/?/, "").split("/");
  try {
    return { page: TABS.some(([name]) => name === page) ? page : "pipeline", ref: decodeURIComponent(ref) };
  } catch {
    return { page: "pipeline", ref: "" };
  }
};

// --- the top -------------------------------------------------------------------------------------------

const since = (member, iso) => (iso ? Math.max(0, secondsBetween(iso, member.updated_at) + (member.alive ? (Date.now() - now.receivedAt) / 1000 : 0)) : null);

function freshness() {
  const quiet = (Date.now() - now.heardAt) / 1000;
  if (now.link === "live" && quiet < STALE_S && !now.storeProblem) return h("span", { class: "fresh good", id: "fresh" }, h("span", { "aria-hidden": "true" }, "● "), "live");
  const text = now.heardAt ? `stale for ${duration(Math.round(quiet))}, reconnecting` : "connecting";
  return h("span", { class: "fresh warn", id: "fresh" }, h("span", { "aria-hidden": "true" }, "○ "), now.storeProblem && now.link === "live" ? "stale: the store does not answer" : text);
}

function pipelineState(doc) {
  const alive = doc.members.filter((member) => member.alive);
  if (alive.some((member) => member.stages.some((stage) => stage.state === "failed"))) return ["failed", "a stage has failed"];
  if (alive.some((member) => member.stages.some((stage) => stage.state === "restarting"))) return ["restarting", "a stage restarts"];
  if (alive.length) {
    const state = alive.every((member) => member.state === "running") ? "running" : alive.find((member) => member.state !== "running").state;
    const missing = doc.members.length - alive.length;
    return [state, missing ? `${state}, ${missing} of ${doc.members.length} members missing` : state];
  }
  if (doc.members.some((member) => member.presence === "unknown")) return ["unknown", "looking whether it runs"];
  if (doc.journal.drained) return ["drained", "drained, not running"];
  return doc.members.length ? ["ended", "not running"] : ["unknown", "never run"];
}

function top() {
  const doc = now.document;
  const member = doc?.members.find((one) => one.leads && one.alive) ?? doc?.members.find((one) => one.alive) ?? doc?.members[0];
  const facts = [];
  if (doc && member) {
    const [state, text] = pipelineState(doc);
    announce(`The pipeline: ${text}.`);
    facts.push(badge(state, text));
    if (doc.journal.head !== null) {
      const age = member.epoch === doc.journal.head ? since(member, member.epoch_at) : null;
      facts.push(h("span", {}, h("a", { href: `#/checkpoints/${doc.journal.head}` }, `epoch ${doc.journal.head}`), age !== null && member.alive ? ` ${duration(Math.round(age))} ago` : "", member.epoch_s ? `, took ${duration(member.epoch_s)}` : ""));
    }
    if (doc.journal.open.length) facts.push(h("span", { class: "busy" }, h("span", { "aria-hidden": "true" }, "◐ "), `epoch ${Math.max(...doc.journal.open)} in progress`));
    if (doc.journal.unpublished.length) facts.push(h("span", { class: "warn" }, `not yet in ${doc.journal.unpublished.join(", ")}`));
    facts.push(h("span", { class: "quiet" }, `generation ${doc.journal.generation}${doc.journal.restored_to !== null ? `, from epoch ${doc.journal.restored_to}` : ""}`));
    if (doc.journal.watermark) facts.push(h("span", { class: "quiet" }, `watermark ${moment(doc.journal.watermark)}`));
  }
  const button = (kind, label, enabled = true) => h("button", { type: "button", disabled: !enabled, onclick: () => actions[kind](now.document, onAsked) }, label);
  show(places.top,
    h("div", { class: "brand" }, h("img", { src: "/icon.svg", alt: "", width: 26, height: 26 }), h("h1", {}, member?.pipeline ?? "Cutwater"), freshness()),
    h("div", { class: "now" }, facts),
    doc?.may_steer ? h("div", { class: "actions", role: "group", "aria-label": "Control the pipeline" },
      button("checkpoint", "Checkpoint", doc.running), button("savepoint", "Savepoint", doc.journal.head !== null || doc.running), button("cancel", "Cancel", doc.running && doc.journal.open.length > 0),
      button("restore", "Restore", doc.journal.kept.length > 0), button("drain", "Drain", doc.running)) : "");
  const { page } = route();
  show(places.tabs, h("ul", {}, TABS.map(([name, title]) => h("li", {}, h("a", { href: `#/${name}`, "aria-current": name === page ? "page" : null }, title)))));
  show(places.notices, now.storeProblem ? callout("bad", "The store does not answer", now.storeProblem) : "", [...now.asked.values()].map(notice));
}

function notice(asked) {
  const tone = { waiting: "plain", done: "good", failed: "bad" }[asked.state];
  const text = asked.state === "waiting" ? "asked; waiting for the answer …" : asked.text;
  return h("div", { class: `callout ${tone} notice`, role: "status", "data-key": asked.id }, h("strong", {}, `${asked.kind}: ${asked.state}`), h("p", {}, text),
    asked.state === "waiting" ? "" : h("button", { type: "button", "aria-label": `Dismiss: ${asked.kind}`, onclick: () => { now.asked.delete(asked.id); top(); } }, "Dismiss"));
}

function onAsked(asked) {
  if (!now.asked.has(asked.id) || asked.state !== "waiting") now.asked.set(asked.id, asked);
  top();
}

// --- the pages -----------------------------------------------------------------------------------------

function draw() {
  top();
  const { page, ref } = route();
  const doc = now.document;
  document.title = `${doc?.members[0]?.pipeline ?? "Cutwater"} · ${ref ? `epoch ${ref}` : TABS.find(([name]) => name === page)[1]}`;
  if (now.failure && !(page === "pipeline" && doc)) {
    show(places.view, callout("bad", now.failure.status === 404 ? "Not found" : "This cannot be shown", now.failure.message));
    return;
  }
  if (!doc) return;
  const paging = (name) => ({
    isOlder: now.before[name].length > 0,
    older: () => { now.before[name].push(now.found[name].next); load(); },
    newer: () => { now.before[name].pop(); load(); },
  });
  const views = {
    pipeline: () => pipelineView({ document: doc, versions: now.versions, open: openStage, refresh: draw }),
    checkpoints: () => ref
      ? now.found.checkpoint?.ref === ref && checkpointView({ ...now.found.checkpoint, graph: doc.graph, mayRestore: doc.may_steer, restore: () => actions.restore(doc, onAsked, String(now.found.checkpoint.kept.epoch), now.found.checkpoint.kept) })
      : now.found.checkpoints && checkpointsView({ found: now.found.checkpoints, only: now.only, choose: (only) => { now.only = only; now.before.checkpoints = []; load(); }, ...paging("checkpoints") }),
    timeline: () => now.found.timeline && timelineView({ found: now.found.timeline }),
    tables: () => now.found.tables && tablesView({ found: now.found.tables, ...paging("tables") }),
    members: () => membersView({ document: doc }),
  };
  show(places.view, views[page]() || h("p", { class: "quiet" }, "Loading …"));
  const room = places.view.querySelector(".timeline");
  if (room && !scrolled.has(room)) {
    scrolled.add(room);
    room.scrollLeft = room.scrollWidth; // the newest is on the right
  }
  if (now.stage) openStage(now.stage);
}

const scrolled = new WeakSet();

function openStage(name) {
  const place = document.getElementById("dialog");
  if (now.stage === name && !place.open) now.stage = null;
  now.stage = name;
  openDialog(name, stageDetails(name, now.document), h("div", { class: "bar buttons" }, h("button", { type: "button", onclick: () => { now.stage = null; closeDialog(); } }, "Close")));
  place.onclose = () => { now.stage = null; };
}

let loading = 0;
async function load() {
  const turn = ++loading;
  const { page, ref } = route();
  try {
    if (!now.document) now.document = await get("pipeline"), (now.receivedAt = Date.now());
    const newest = (name) => now.before[name].at(-1) ?? null;
    const found = {};
    if (page === "pipeline") found.versions = await get("tables", { limit: 1 });
    else if (page === "checkpoints" && ref) {
      const or404 = (promise) => promise.catch((error) => { if (error.status === 404) return null; throw error; });
      const explained = await or404(get(`checkpoints/${encodeURIComponent(ref)}/explain`));
      if (!explained) throw new Failed(404, `Nothing is known about epoch ${ref}: it has not begun yet, or what was recorded about it is gone.`);
      // What is not kept is not asked for: the console would note the answer as an error.
      const kept = now.document.journal.kept.includes(explained.epoch) ? await or404(get(`checkpoints/${explained.epoch}`)) : null;
      found.checkpoint = { ref, kept, explained };
    } else if (page === "checkpoints") found.checkpoints = await get("checkpoints", { only: now.only, before: newest("checkpoints") });
    else if (page === "timeline") found.timeline = await get("timeline");
    else if (page === "tables") found.tables = await get("tables", { before: newest("tables") });
    if (turn !== loading) return;
    now.failure = null;
    if (found.versions) now.versions = found.versions;
    Object.assign(now.found, found);
  } catch (error) {
    if (turn !== loading) return;
    if (error instanceof Failed && error.status === 401) {
      const wrong = Boolean(token.get());
      token.set("");
      show(places.view, h("p", { class: "quiet" }, "This server shows nothing without its token."));
      askToken(start, wrong ? "That token is wrong." : "");
      return;
    }
    if (error instanceof Failed) now.failure = error;
    if (!(error instanceof Failed) || error.status === 503) // the server is away, or there is no store yet; it is tried again
      setTimeout(() => turn === loading && (isFollowing ? load() : start()), 2_000);
  }
  draw();
}

window.addEventListener("hashchange", () => {
  now.failure = null;
  now.before = { checkpoints: [], tables: [] };
  now.stage = null;
  closeDialog();
  load();
  draw();
  places.view.focus({ preventScroll: true });
  window.scrollTo(0, 0);
});
let resized = 0;
window.addEventListener("resize", () => { cancelAnimationFrame(resized); resized = requestAnimationFrame(draw); });
setInterval(top, 1_000);

let reloading = 0;
function on(event, data) {
  now.heardAt = Date.now();
  if (event === "pipeline") {
    now.document = { may_steer: now.document?.may_steer ?? false, ...data };
    now.receivedAt = Date.now();
    draw();
  } else if (event === "journal") {
    clearTimeout(reloading);
    reloading = setTimeout(load, 150);
  } else if (event === "store") {
    now.storeProblem = data.problem;
    top();
  } else if (event === "request") onAsked(data);
}

let isFollowing = false;
async function start() {
  await load();
  if (isFollowing || !now.document) return;
  isFollowing = true;
  await follow(on, (state) => {
    now.link = state;
    if (state === "live") {
      now.heardAt = Date.now();
      get("pipeline").then((found) => { now.document = found; now.receivedAt = Date.now(); load(); }, () => {});
    }
    top();
  });
  isFollowing = false;
  askToken(start);
}
start();
