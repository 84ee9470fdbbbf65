// Which versions of the tables belong together.

import { h } from "./dom.js";
import { moment, plural, size, whole } from "./format.js";
import { callout, epochLink, table } from "./shared.js";

export function tablesView({ found, older, newer, isOlder }) {
  if (!found.sinks.length) return [h("h2", {}, "Tables"), h("p", { class: "quiet" }, "The pipeline has no tables.")];
  return [
    h("h2", {}, "Tables"),
    found.epoch === null
      ? callout("plain", "No epoch is published in every table yet.")
      : callout("plain", `Epoch ${found.epoch} is the newest that every table shows`, h("p", {}, Object.entries(found.tables).map(([sink, version]) => h("span", { class: "tag" }, `${sink} ${version < 0 ? "no rows yet" : `version ${version}`}`)))),
    h("p", { class: "quiet" }, "Each row is one cut through the whole pipeline: these versions belong together. Below each version is what the epoch added."),
    table("Versions of the tables by epoch", [["epoch", false], ["committed", false], ...found.sinks.map((sink) => [sink, false])],
      found.epochs.map((one) => ({ key: one.epoch, tone: one.abandoned ? "past" : "", cells: [
        [epochLink(one.epoch, String(one.epoch)), one.savepoints.map((name) => h("span", { class: "tag" }, name)), one.abandoned ? h("span", { class: "tag" }, "abandoned") : ""],
        moment(one.committed_at),
        ...found.sinks.map((sink) => cell(one.tables[sink])),
      ] })), "no checkpoint is kept yet"),
    h("div", { class: "bar pages" },
      h("button", { type: "button", disabled: !isOlder, onclick: newer }, "← Newer"),
      h("button", { type: "button", disabled: found.next === null, onclick: older }, "Older →")),
  ];
}

function cell(version) {
  if (!version) return h("span", { class: "quiet" }, "not published");
  const added = [version.rows === null ? (version.files === null ? null : plural(version.files, "file")) : plural(version.rows, "row"), version.bytes ? size(version.bytes) : null].filter(Boolean);
  const text = version.files === 0 ? "nothing new" : added.length ? `+ ${added.join(", ")}` : "size not recorded";
  return [h("span", { class: "version" }, version.version < 0 ? "no rows yet" : `version ${whole(version.version)}`), h("span", { class: "quiet block" }, text)];
}
