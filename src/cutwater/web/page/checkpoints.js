// The history of epochs.

import { h, s } from "./dom.js";
import { duration, moment, plural, size, whole } from "./format.js";
import { badge, epochLink, facts, table } from "./shared.js";

const WIDEST_BAR = 36;
const FILTERS = [["", "All epochs"], ["kept", "Kept"], ["savepoints", "Savepoints"], ["aborted", "Aborted"]];

export function checkpointsView({ found, only, choose, older, newer, isOlder }) {
  const figures = found.figures;
  return [
    h("h2", {}, "Checkpoints"),
    h("div", { class: "tiles" },
      tile("Committed", whole(figures.committed), `${whole(figures.kept)} kept`),
      tile("Aborted", whole(figures.aborted), Object.entries(figures.aborted_by_reason).map(([reason, number]) => `${reason.replaceAll("_", " ")} ${number}`).join(", ") || "none that is remembered"),
      tile("Restored", whole(figures.restored), figures.restored ? `now generation ${found.generation}` : "never"),
      tile("Duration", figures.took_s ? duration(figures.took_s.median) : "–", figures.took_s ? `median; from ${duration(figures.took_s.min)}, 99 % within ${duration(figures.took_s.p99)}` : "no timings yet")),
    facts([
      ["newest", found.newest.committed === null ? "none" : epochLink(found.newest.committed)],
      ["newest savepoint", found.newest.savepoint === null ? "none" : epochLink(found.newest.savepoint)],
      ["newest full", found.newest.full === null ? "none" : epochLink(found.newest.full)],
      ["newest aborted", found.newest.aborted === null ? "none" : epochLink(found.newest.aborted)],
      ["restored last", found.newest.restored === null ? "never" : epochLink(found.newest.restored)],
    ]),
    found.durations.length > 1 ? chart(found.durations, figures.took_s) : "",
    h("div", { class: "bar" },
      h("div", { class: "switch", role: "group", "aria-label": "Which epochs" },
        FILTERS.map(([value, title]) => h("button", { type: "button", "aria-pressed": String(value === only), onclick: () => choose(value) }, title))),
      h("p", { class: "quiet" }, plural(found.total, "epoch"))),
    table("Epochs, newest first",
      [["epoch", true], ["result", false], ["kind", false], ["begun", false], ["took", true], ["cut", true], ["written", true], ["full size", true], ["in flight", true], ["watermark", false], ["published", false]],
      found.checkpoints.map((row) => ({ key: row.epoch, tone: row.flags.includes("abandoned") ? "past" : "", cells: [
        epochLink(row.epoch, String(row.epoch)),
        [badge(row.result), row.reason && row.result === "aborted" ? h("span", { class: "quiet" }, ` ${row.reason.replaceAll("_", " ")}`) : ""],
        [row.kind, row.savepoints.length ? h("span", { class: "tag" }, row.savepoints.join(", ")) : "", row.flags.filter((flag) => !["drain", "full"].includes(flag)).map((flag) => h("span", { class: "tag" }, flag))],
        moment(row.begun_at),
        duration(row.took_s),
        row.stages_cut === null ? "–" : `${row.stages_cut} of ${row.stages}`,
        size(row.written_bytes),
        size(row.state_bytes),
        row.in_flight === null ? "–" : row.in_flight.batches ? plural(row.in_flight.batches, "batch") : "none",
        moment(row.watermark),
        published(row),
      ] })), "no checkpoint has been taken yet"),
    h("div", { class: "bar pages" },
      h("button", { type: "button", disabled: !isOlder, onclick: newer }, "← Newer"),
      h("button", { type: "button", disabled: found.next === null, onclick: older }, "Older →")),
  ];
}

const tile = (title, figure, note) => h("div", { class: "tile" }, h("span", { class: "quiet" }, title), h("strong", {}, figure), h("span", { class: "quiet note" }, note));

export function published(row) {
  if (row.result !== "committed") return "–";
  const sinks = Object.entries(row.published);
  const missing = sinks.filter(([, version]) => version === null).map(([sink]) => sink);
  if (!sinks.length) return "no tables";
  return missing.length ? `not in ${missing.join(", ")}` : "everywhere";
}

function chart(durations, took) {
  const width = Math.max(280, Math.min(1200, window.innerWidth - 70)), height = 110, left = 46, bottom = 16;
  const highest = Math.max(...durations.map((one) => one.took_s ?? 0), 0.001);
  const step = Math.min(WIDEST_BAR, (width - left) / durations.length);
  const end = left + step * durations.length;
  const y = (value) => height - bottom - (value / highest) * (height - bottom - 8);
  const line = (value, text) => [s("line", { x1: left, x2: width, y1: y(value), y2: y(value), class: "grid" }), s("text", { x: left - 6, y: y(value) + 4, class: "label end" }, text)];
  const clash = took && Math.abs(y(took.median) - y(highest)) < 14;
  const bars = durations.map((one, place) => {
    const tall = Math.max(2, height - bottom - y(one.took_s ?? 0));
    const x = left + place * step;
    const title = s("title", {}, `epoch ${one.epoch}: ${one.result}, ${duration(one.took_s)}`);
    if (one.result === "aborted") return s("g", { class: "failed" }, title, s("rect", { x: x + 0.5, y: height - bottom - tall, width: Math.max(1, step - 2), height: tall }), s("text", { x: x + step / 2, y: height - bottom - tall - 3, class: "label mid" }, "✕"));
    return s("rect", { class: "took", x: x + 0.5, y: height - bottom - tall, width: Math.max(1, step - 2), height: tall, rx: 1 }, title);
  });
  const first = durations[0].epoch, last = durations.at(-1).epoch;
  return h("figure", { class: "chart" },
    s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Durations of the epochs ${first} to ${last}; the table below has them as figures` },
      line(highest, duration(highest)), took && !clash ? line(took.median, duration(took.median)) : "", bars,
      s("text", { x: left, y: height - 3, class: "label" }, `epoch ${first}`), durations.length > 1 && end - left > 110 ? s("text", { x: end, y: height - 3, class: "label end" }, `epoch ${last}`) : ""),
    h("figcaption", { class: "quiet" }, "How long each epoch took, from its begin to its commit", durations.some((one) => one.result === "aborted") ? "; ✕ was aborted." : "."));
}
