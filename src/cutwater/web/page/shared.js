// Parts that several pages show.

import { h } from "./dom.js";
import { duration } from "./format.js";

// A state is a word and a shape; its colour only repeats them.
const SHAPES = {
  running: "●", idle: "○", waiting: "◌", opening: "◌", starting: "◐", resting: "◑", draining: "◑", drained: "■",
  stopped: "■", chained: "∞", restarting: "↻", failed: "✕", silent: "?", ended: "■", committed: "✓", aborted: "✕", "in progress": "◐",
  expired: "✓", over: "–", done: "✓",
};
const TONES = {
  running: "good", committed: "good", done: "good", restarting: "bad", failed: "bad", aborted: "bad", silent: "warn",
  starting: "warn", draining: "warn", resting: "warn", "in progress": "busy", waiting: "quiet", idle: "quiet", opening: "quiet", expired: "quiet", over: "quiet",
};

export const toneOf = (state) => TONES[state] ?? "plain";
export const shapeOf = (state) => SHAPES[state] ?? "·";
export const badge = (state, text = state) => h("span", { class: `badge ${toneOf(state)}` }, h("span", { "aria-hidden": "true", class: "shape" }, shapeOf(state)), text);

export const facts = (pairs) =>
  h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));

/** A table; `columns` are [title, isNumber]. Each row is a list of cells, or {cells, key, tone}. */
export function table(caption, columns, rows, empty = "nothing yet") {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {},
      h("caption", { class: "hidden-text" }, caption),
      h("thead", {}, h("tr", {}, columns.map(([title, isNumber]) => h("th", { scope: "col", class: isNumber ? "number" : "" }, title)))),
      h("tbody", {}, rows.length ? rows.map((row) => {
        const cells = row.cells ?? row;
        return h("tr", { class: row.tone ?? "", "data-key": row.key },
          cells.map((cell, place) => h(place ? "td" : "th", { scope: place ? null : "row", class: columns[place][1] ? "number" : "" }, cell)));
      }) : h("tr", {}, h("td", { colspan: columns.length, class: "quiet" }, empty)))));
}

export const callout = (tone, title, ...body) => h("div", { class: `callout ${tone}`, role: tone === "bad" ? "alert" : "note" }, h("strong", {}, title), body.map((part) => (part instanceof Node ? part : h("p", {}, part))));

export const epochLink = (epoch, text = `epoch ${epoch}`) => h("a", { href: `#/checkpoints/${encodeURIComponent(epoch)}` }, text);

/** What a stage is behind, in the unit that says most. */
export function behind(status) {
  if (!status) return "–";
  const sum = (name) => status.sources.reduce((total, source) => total + (source[name] ?? 0), 0);
  const rows = status.lag_rows + sum("rows");
  if (rows) return `${rows.toLocaleString("en-US")} row${rows === 1 ? "" : "s"}`;
  const files = sum("files");
  if (files) return `${files.toLocaleString("en-US")} file${files === 1 ? "" : "s"}`;
  const longest = Math.max(0, ...status.sources.map((source) => source.seconds ?? 0));
  if (longest) return duration(longest);
  return status.lag_batches ? `${status.lag_batches} batch${status.lag_batches === 1 ? "" : "es"}` : "–";
}

export function stateText(status) {
  if (!status) return "not reported";
  if (status.runs_in) return `in ${status.runs_in}`;
  if (status.waits_for) return `holds ${status.waits_for}`;
  if (status.first_batch_s !== null && status.first_batch_s !== undefined) return `first batch for ${duration(status.first_batch_s)}`;
  return status.restarts ? `${status.state} (${status.restarts})` : status.state;
}

export function wayOut(name, status) {
  if (status.state === "failed") return ["Its query is not restarted any more in this run. What is committed is kept.", `Correct the cause and start the pipeline again. To start this stage without its state: cutwater run FILE --restore latest --reset ${name}. To go back further, restore an older checkpoint.`];
  return [`It is being restarted (attempt ${status.restarts}); nothing is lost: a restart repeats what is not committed.`, "If it fails each time, correct the cause in the code or in the data and start again."];
}
