// Generations as branches, with what happened on them.

import { h, s } from "./dom.js";
import { moment, plural } from "./format.js";
import { epochLink, table } from "./shared.js";

const STEP = 34, LANE = 58, LEFT = 58, NAME = 110, TOP = 34;

export function timelineView({ found }) {
  if (!found.epochs.length) return h("p", { class: "quiet" }, "No checkpoint has been taken yet.");
  const lanes = new Map(found.generations.map((one, place) => [one.generation, place]));
  for (const one of found.epochs) if (!lanes.has(one.generation)) lanes.set(one.generation, lanes.size);
  const x = new Map(found.epochs.map((one, place) => [one.epoch, LEFT + place * STEP]));
  const y = (generation) => TOP + (lanes.get(generation) ?? 0) * LANE;
  const width = LEFT + found.epochs.length * STEP + NAME, height = TOP + lanes.size * LANE;
  const drawn = [];
  for (const [generation] of lanes) {
    const own = found.epochs.filter((one) => one.generation === generation);
    const of = found.generations.find((one) => one.generation === generation);
    const fork = of?.epoch !== null && of?.epoch !== undefined ? found.epochs.find((one) => one.epoch === of.epoch) : null;
    if (own.length > 1) drawn.push(s("line", { x1: x.get(own[0].epoch), x2: x.get(own.at(-1).epoch), y1: y(generation), y2: y(generation), class: "lane" }));
    const begin = own.length ? x.get(own[0].epoch) : fork ? x.get(fork.epoch) + STEP : LEFT; // without an epoch yet, a stub
    drawn.push(s("text", { x: (own.length ? x.get(own.at(-1).epoch) : begin) + 16, y: y(generation) + 4, class: "label" }, `generation ${generation}`));
    if (fork) {
      const [x0, y0, x1, y1] = [x.get(fork.epoch), y(fork.generation), begin, y(generation)];
      drawn.push(s("path", { class: "lane fork", d: `M${x0} ${y0}C${x0} ${y1} ${x0} ${y1} ${Math.min(x1, x0 + STEP)} ${y1}L${x1} ${y1}` }));
    }
  }
  const forks = new Set(found.generations.map((one) => one.epoch));
  for (const one of found.epochs) {
    const at = `translate(${x.get(one.epoch)} ${y(one.generation)})`;
    const isSavepoint = one.savepoints.length > 0;
    const text = describe(one, forks.has(one.epoch), found.head);
    drawn.push(s("a", { href: `#/checkpoints/${one.epoch}`, class: `point${one.kept ? "" : " expired"}${one.abandoned ? " past" : ""}${one.epoch === found.head ? " head" : ""}`, transform: at, "aria-label": text },
      s("title", {}, text),
      forks.has(one.epoch) ? s("circle", { r: 11, class: "ring" }) : "",
      isSavepoint ? s("path", { d: "M0 -7.500L7.500 0L0 7.500L-7.500 0Z" }) : one.flags.includes("drain") ? s("rect", { x: -6, y: -6, width: 12, height: 12 }) : s("circle", { r: one.flags.includes("full") ? 7 : 5 }),
      one.kept || one.epoch % 5 === 0 ? s("text", forks.has(one.epoch) ? { x: -9, y: 24, class: "label end" } : { y: 22, class: "label mid" }, one.epoch) : "",
      isSavepoint ? s("text", { y: -14, class: "label mid strong" }, one.savepoints.join(", ")) : ""));
  }
  const restores = found.generations.filter((one) => one.epoch !== null);
  return [
    h("h2", {}, "Timeline"),
    h("p", { class: "legend quiet" },
      key(s("circle", { cx: 8, cy: 8, r: 4.5 }), "checkpoint"), key(s("path", { d: "M8 1L15 8L8 15L1 8Z" }), "savepoint"), key(s("rect", { x: 3, y: 3, width: 10, height: 10 }), "drain"),
      key(s("circle", { cx: 8, cy: 8, r: 6.5, class: "ring" }), "restored from here"), key(s("circle", { cx: 8, cy: 8, r: 3, class: "hollow" }), "expired: no longer kept"), h("span", {}, "dashed: abandoned by a restore")),
    h("div", { class: "scroll timeline", tabindex: "0", role: "region", "aria-label": "Branches of the timeline; the tables below have the same" },
      s("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, drawn)),
    found.left_out ? h("p", { class: "quiet" }, `${plural(found.left_out, "older checkpoint")} ${found.left_out === 1 ? "is" : "are"} left out; the page Checkpoints lists all.`) : "",
    h("h3", {}, "Restores"),
    table("Restores", [["generation", false], ["went back to", false], ["of generation", false], ["remarks", false]],
      restores.map((one) => [String(one.generation), epochLink(one.epoch), String(one.parent ?? "–"), [one.forced ? "forced: changes of others to the tables were undone. " : "", one.reset.length ? `without the state of ${one.reset.join(", ")}` : ""]]), "nothing has been restored"),
    h("h3", {}, "Kept checkpoints"),
    table("Kept checkpoints, newest first", [["epoch", false], ["generation", false], ["committed", false], ["what", false]],
      [...found.epochs].filter((one) => one.kept).reverse().map((one) => ({ key: one.epoch, tone: one.abandoned ? "past" : "", cells: [epochLink(one.epoch, String(one.epoch)), String(one.generation), moment(one.committed_at), describe(one, forks.has(one.epoch), found.head).split(": ")[1]] }))),
  ];
}

const key = (shape, text) => h("span", {}, s("svg", { width: 16, height: 16, class: "key", "aria-hidden": "true" }, shape), text);

function describe(one, isFork, head) {
  const what = [one.savepoints.length ? `savepoint ${one.savepoints.join(", ")}` : one.flags.includes("drain") ? "drain" : one.flags.includes("full") ? "full checkpoint" : "checkpoint"];
  if (isFork) what.push("restored from here");
  if (!one.kept) what.push("expired");
  if (one.abandoned) what.push("abandoned");
  if (one.epoch === head) what.push("newest");
  return `epoch ${one.epoch}: ${what.join(", ")}`;
}
