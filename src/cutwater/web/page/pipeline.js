// The graph with live figures.

import { h, s } from "./dom.js";
import { count, duration, moment, plural, shortMoment, whole } from "./format.js";
import { layout } from "./graph.js";
import { badge, behind, callout, facts, shapeOf, stateText, table, toneOf, wayOut } from "./shared.js";

const STAGE = { width: 216, height: 92 }, SMALL = { width: 164, height: 48 };
const LEAST_SCALE = 0.75;
const BESIDE = 17; // a backlog is below the barrier that travels on its edge
let zoom = "fit";
let known = { text: "", made: null };

export const statusOf = (document) => {
  const found = new Map();
  for (const member of document.members) for (const stage of member.stages) found.set(stage.name, { ...stage, member, alive: member.alive });
  return found;
};

export function pipelineView({ document, versions, open, refresh }) {
  if (!document.graph.length) return callout("plain", "No pipeline has run on this store yet.", `Start one: cutwater run FILE --store ${document.store}`, "One that was just started appears here as soon as Spark has started.");
  const status = statusOf(document);
  const epoch = document.journal.open.length ? Math.max(...document.journal.open) : null;
  const failed = document.graph.filter((stage) => status.get(stage.name)?.error);
  const narrow = window.matchMedia("(max-width: 760px)").matches;
  return [
    document.members.filter((member) => member.trouble).map((member) => callout("bad", `Trouble on member ${member.member}`, member.trouble)),
    failed.map((stage) => {
      const found = status.get(stage.name);
      return callout("bad", `Stage ${stage.name} ${found.state === "failed" ? "has failed" : "is failing"}`, h("pre", {}, found.error), ...wayOut(stage.name, found));
    }),
    h("section", { "aria-labelledby": "graph-title" },
      h("div", { class: "bar" },
        h("h2", { id: "graph-title" }, "Pipeline"),
        h("p", { class: "quiet", id: "barrier-note" }, barrierNote(document, status, epoch)),
        narrow ? "" : h("div", { class: "switch", role: "group", "aria-label": "Size of the graph" },
          ["fit", "full"].map((kind) => h("button", { type: "button", "aria-pressed": String(zoom === kind), onclick: () => { zoom = kind; refresh(); } }, kind === "fit" ? "Fit" : "100 %")))),
      narrow ? list(document, status, versions, epoch, open) : drawing(document, status, versions, epoch, open)),
    h("section", { "aria-labelledby": "stages-title" },
      h("h2", { id: "stages-title" }, "Stages"),
      table("Figures of all stages",
        [["stage", false], ["state", false], ["batch", true], ["rows/s", true], ["batch time", true], ["behind", true], ["watermark", false], ["member", false]],
        document.graph.map((stage) => {
          const found = status.get(stage.name);
          return { key: stage.name, cells: [
            h("button", { type: "button", class: "link", onclick: () => open(stage.name) }, stage.name),
            found ? badge(found.error ? found.state : found.waits_for ? "waiting" : found.state, stateText(found)) : "–",
            found && found.batch >= 0 ? whole(found.batch) : "–",
            found?.rows_per_s ? count(Math.round(found.rows_per_s)) : "–",
            found?.batch_s ? duration(found.batch_s) : "–",
            behind(found),
            watermark(found),
            stage.member,
          ] };
        }))),
  ];
}

function barrierNote(document, status, epoch) {
  if (!document.running) return "Nothing is running: these are the figures of the last report.";
  if (epoch === null) return "No checkpoint is in progress.";
  const queries = document.graph.filter((stage) => !stage.runs_in);
  const cut = queries.filter((stage) => isCut(stage, status, epoch)).length;
  return `Epoch ${epoch} is in progress: ${cut} of ${queries.length} stages are cut (⚑).`;
}

/** Whether a stage is cut for an epoch; a chained one is cut with the query that it runs in. */
const isCut = (stage, status, epoch) => epoch !== null && (status.get(stage.runs_in || stage.name)?.cut ?? -1) >= epoch;

/** The sources that a stage is drawn with. A query reports those of the stages chained into it as its own. */
function sourcesOf(stage, document, status) {
  const heads = document.graph.filter((one) => one.runs_in === (stage.runs_in || stage.name) && !one.inputs.length);
  const reported = status.get(stage.runs_in || stage.name)?.sources ?? [];
  const mine = heads.length ? heads.length === 1 && heads[0] === stage : !stage.runs_in;
  if (mine && reported.length) return reported;
  return stage.inputs.length ? [] : [{ source: "source" }];
}

export const watermark = (status) => {
  if (!status) return "–";
  if (status.watermark) return moment(status.watermark) + (status.watermark_kind === "idle" ? " (idle)" : "");
  return { unknown: "no event yet", none: "–" }[status.watermark_kind] ?? status.watermark_kind;
};

function parts(document, status) {
  const nodes = [], edges = [];
  for (const stage of document.graph) {
    const found = status.get(stage.name);
    const own = sourcesOf(stage, document, status);
    nodes.push({ id: `stage ${stage.name}`, ...STAGE, least: 1 });
    const reads = stage.inputs.map((input) => ({ from: `stage ${input}`, to: `stage ${stage.name}`, channel: found?.channels?.find((channel) => channel.producer === input) ?? null, chained: document.graph.some((one) => one.name === input && one.runs_in), reader: stage.name, producer: input }));
    edges.push(...reads);
    own.forEach((lag, place) => {
      nodes.push({ id: `source ${stage.name} ${place}`, ...SMALL, source: lag.source, lag });
      edges.push({ from: `source ${stage.name} ${place}`, to: `stage ${stage.name}` });
    });
    for (const sink of stage.sinks) {
      nodes.push({ id: `table ${sink.name}`, ...SMALL, last: true, sink });
      edges.push({ from: `stage ${stage.name}`, to: `table ${sink.name}`, sink: sink.name });
    }
  }
  return { nodes, edges };
}

function placed(document, status) {
  const { nodes, edges } = parts(document, status);
  const text = JSON.stringify([nodes.map((node) => node.id), edges.map((edge) => [edge.from, edge.to])]);
  if (known.text !== text) known = { text, made: layout(nodes, edges) };
  const fresh = new Map(edges.map((edge) => [`${edge.from}>${edge.to}`, edge]));
  return { ...known.made, nodes, paths: known.made.paths.map((path) => ({ ...path, ...fresh.get(`${path.from}>${path.to}`) })) };
}

function drawing(document, status, versions, epoch, open) {
  const found = placed(document, status);
  const view = window.document.getElementById("view");
  const room = Math.max(320, view.clientWidth - 2 * parseFloat(getComputedStyle(view).paddingLeft) - 40);
  const scale = zoom === "fit" ? Math.min(1, Math.max(LEAST_SCALE, room / (found.width + 8))) : 1;
  const by = new Map(document.graph.map((stage) => [stage.name, stage]));
  const cut = (name) => isCut(by.get(name), status, epoch);
  const lines = [], labels = [];
  for (const path of found.paths) {
    const travels = path.producer && cut(path.producer) && !cut(path.reader);
    lines.push(s("path", { d: path.d, class: `edge${travels ? " barrier" : ""}${path.chained ? " chained" : ""}${path.channel?.rows || path.channel?.batches ? " busy" : ""}`, "data-key": `${path.from}>${path.to}` }));
    const [[x0, y0], [x1, y1]] = path.points.slice(-2);
    if (travels) lines.push(s("g", { class: "flag", transform: `translate(${along(x0, (x0 + x1) / 2, x1)} ${along(y0, null, y1)})`, "data-key": `flag ${path.from}>${path.to}` }, s("circle", { r: 7 }), s("path", { d: "M-2 -3.500v7M2 -3.500v7" })));
    if (path.channel && path.channel.batches) {
      labels.push(h("span", { class: "backlog", "data-key": `label ${path.from}>${path.to}`, title: backlogText(path.channel), style: { left: `${(x0 + x1) / 2}px`, top: `${(y0 + y1) / 2 + (travels ? BESIDE : 0)}px` } }, count(path.channel.rows)));
    }
  }
  const cards = found.nodes.map((node) => {
    const at = found.places.get(node.id);
    const style = { left: `${at.x}px`, top: `${at.y}px`, width: `${node.width}px`, height: `${node.height}px` };
    if (node.source !== undefined) return sourceCard(node, style);
    if (node.sink) return tableCard(node.sink, document, versions, style);
    const stage = by.get(node.id.slice("stage ".length));
    return stageCard(stage, status.get(stage.name), cut(stage.name) ? epoch : null, open, style, document);
  });
  return h("div", { class: "scroll graph-room", tabindex: "0", role: "region", "aria-label": "Graph of the pipeline; the table below has the same figures" },
    h("div", { class: "graph-size", style: { width: `${Math.ceil((found.width + 8) * scale)}px`, height: `${Math.ceil((found.height + 8) * scale)}px` } },
      h("div", { class: "graph", style: { width: `${found.width + 8}px`, height: `${found.height + 8}px`, transform: `scale(${scale})` } },
        s("svg", { width: found.width + 8, height: found.height + 8, "aria-hidden": "true" }, lines),
        cards, labels)));
}

/** Where a barrier is drawn: a quarter along the curve of an edge, whose ends are horizontal. */
function along(from, middle, to) {
  const t = 0.28, u = 1 - t;
  const [first, second] = middle === null ? [from, to] : [middle, middle];
  return u ** 3 * from + 3 * u * u * t * first + 3 * u * t * t * second + t ** 3 * to;
}

const backlogText = (channel) => `${plural(channel.rows, "row")} in ${plural(channel.batches, "batch")} not read yet`;

function stageCard(stage, status, cutFor, open, style, document) {
  const several = new Set(document.graph.map((one) => one.member)).size > 1;
  const state = status ? (status.waits_for ? "waiting" : status.state) : "unknown";
  const query = stage.runs_in ? statusOf(document).get(stage.runs_in) : status;
  const tone = query?.error ? "bad" : toneOf(query ? (query.waits_for ? "waiting" : query.state) : state);
  const batch = status ? [status.batch >= 0 ? `batch ${status.batch}` : null, status.batch_s ? duration(status.batch_s) : null].filter(Boolean).join(" · ") : "";
  const late = behind(status);
  return h("button", { type: "button", class: `card stage ${tone}${cutFor !== null ? " is-cut" : ""}${status && !status.alive ? " past" : ""}`, "data-key": `stage ${stage.name}`, style, onclick: () => open(stage.name) },
    h("span", { class: "line" }, h("span", { class: "shape", "aria-hidden": "true" }, shapeOf(status?.error ? status.state : state)), h("strong", { title: stage.name }, stage.name), cutFor !== null ? h("span", { class: "end cut", title: `cut for epoch ${cutFor}` }, h("span", { "aria-hidden": "true" }, "⚑"), h("span", { class: "hidden-text" }, ` cut for epoch ${cutFor}`)) : "", several ? h("span", { class: "member" }, stage.member) : ""),
    h("span", { class: "line quiet" }, h("span", { title: stateText(status) }, stateText(status)), batch ? h("span", { class: "end" }, batch) : ""),
    h("span", { class: "line" }, h("span", {}, status?.rows_per_s ? `${count(Math.round(status.rows_per_s))} rows/s` : " "), late !== "–" ? h("span", { class: "end late", title: `${late} behind` }, `−${late}`, h("span", { class: "hidden-text" }, " behind")) : ""),
    h("span", { class: "line quiet" }, h("span", {}, status?.watermark ? `watermark ${shortMoment(status.watermark)}` : " ")));
}

/** The part of a source's description that tells it from others: the end of a path, or the topics. */
function shortSource(text) {
  const path = /^FileStreamSource\[(.*)\]$/.exec(text)?.[1];
  if (path) return path.split("/").filter(Boolean).slice(-2).join("/");
  const topics = /Subscribe\w*\[([^\]]*)\]/.exec(text)?.[1];
  return topics ? `Kafka ${topics}` : text;
}

function sourceCard(node, style) {
  const lag = node.lag;
  const late = lag ? (lag.rows ? plural(lag.rows, "row") : lag.files ? plural(lag.files, "file") : lag.seconds ? duration(lag.seconds) : "") : "";
  return h("div", { class: "card source", "data-key": node.id, style }, h("span", { class: "line" }, h("span", { class: "shape", "aria-hidden": "true" }, "▷"), h("strong", { title: node.source }, shortSource(node.source))), h("span", { class: "line quiet" }, late ? `${late} to read` : "source"));
}

function tableCard(sink, document, versions, style) {
  const late = document.journal.unpublished.includes(sink.name);
  const version = versions.tables?.[sink.name];
  const shows = version === undefined ? "nothing published" : `${version < 0 ? "no rows yet" : `version ${version}`}, epoch ${versions.epoch}`;
  return h("a", { class: `card table-node${late ? " warn" : ""}`, href: "#/tables", "data-key": `table ${sink.name}`, style },
    h("span", { class: "line" }, h("span", { class: "shape", "aria-hidden": "true" }, "▤"), h("strong", { title: sink.name }, sink.name)),
    h("span", { class: "line quiet" }, late ? "publishing …" : shows));
}

/** The graph for narrow screens: one card below the other, in the order of the data. */
function list(document, status, versions, epoch, open) {
  return h("ol", { class: "cards" }, document.graph.map((stage) => {
    const found = status.get(stage.name);
    const cutFor = isCut(stage, status, epoch) ? epoch : null;
    return h("li", { "data-key": stage.name },
      stage.inputs.length ? h("p", { class: "reads quiet" }, h("span", { "aria-hidden": "true" }, "↓ "), "reads ", stage.inputs.map((input, place) => {
        const channel = found?.channels?.find((one) => one.producer === input);
        return [place ? ", " : "", input, channel?.batches ? ` (${whole(channel.rows)} rows waiting)` : ""];
      })) : "",
      stageCard(stage, found, cutFor, open, {}, document),
      stage.sinks.map((sink) => tableCard(sink, document, versions, {})));
  }));
}

/** What happens to rows that violate a rule. */
const violationText = (what) => (what === "fail" ? "the run would end" : what === "drop" ? "dropped" : `in quarantine ${what}`);

export function stageDetails(name, document) {
  const stage = document.graph.find((one) => one.name === name);
  if (!stage) return [h("p", {}, "This stage is no longer in the pipeline.")];
  const status = statusOf(document).get(name);
  return [
    status ? badge(status.waits_for ? "waiting" : status.state, stateText(status)) : badge("unknown", "no member has reported it"),
    status?.error ? [h("h3", {}, "Its error"), h("pre", {}, status.error), wayOut(name, status).map((text) => h("p", {}, text))] : "",
    facts([
      ["member", stage.member],
      ["reads", stage.inputs.join(", ") || "its own sources"],
      ["writes", stage.sinks.map((sink) => sink.name + (sink.final ? " (when windows are closed)" : "")).join(", ") || (stage.runs_in ? `nothing: its rows go on in the query of ${stage.runs_in}` : "a channel only")],
      status && ["last batch", status.batch >= 0 ? whole(status.batch) : "none yet"],
      status && ["batch time", status.batch_s ? duration(status.batch_s) : "–"],
      status && ["input", `${whole(Math.round(status.rows_per_s))} rows/s`],
      status && ["behind", behind(status)],
      status && ["watermark", watermark(status)],
      status && status.cut !== null && ["newest cut", `epoch ${status.cut}`],
      status && ["restarts", status.restarts],
      status?.rules?.length && ["bad rows", violationText(status.on_violation)],
    ]),
    status?.rules?.length ? table("Rows that violate its rules", [["violated rule", false], ["rows of the newest epoch", true], ["in all", true]], status.rules.map((rule) => [rule.name, whole(rule.rows), whole(rule.total)])) : "",
    status?.channels?.length ? table("Backlog of its channels", [["channel", false], ["batches", true], ["rows", true]], status.channels.map((channel) => [channel.producer, whole(channel.batches), whole(channel.rows)])) : "",
    status?.sources?.length ? table("Lag of its sources", [["source", false], ["rows", true], ["files", true], ["bytes", true], ["time", true]],
      status.sources.map((source) => [source.source, source.rows === null ? "–" : whole(source.rows), source.files === null ? "–" : whole(source.files), source.bytes === null ? "–" : whole(source.bytes), source.seconds === null ? "–" : duration(source.seconds)])) : "",
  ];
}
