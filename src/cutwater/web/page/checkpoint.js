// One epoch: what it consists of, and where its time went.

import { h } from "./dom.js";
import { duration, moment, plural, size, whole } from "./format.js";
import { badge, callout, facts, table } from "./shared.js";

export function checkpointView({ ref, kept, explained, graph, mayRestore, restore }) {
  const epoch = explained?.epoch ?? kept?.epoch ?? ref;
  const fate = explained?.fate ?? "committed";
  const flags = kept?.flags ?? explained?.flags ?? [];
  return [
    h("p", {}, h("a", { href: "#/checkpoints" }, "← Checkpoints")),
    h("div", { class: "bar" },
      h("h2", {}, `Epoch ${epoch}`), badge(fate.split(",")[0]), fate.includes(",") ? h("span", { class: "quiet" }, fate.split(", ").slice(1).join(", ")) : "",
      (kept?.savepoints ?? []).map((name) => h("span", { class: "tag" }, `savepoint ${name}`)), flags.map((flag) => h("span", { class: "tag" }, flag)),
      kept && mayRestore ? h("button", { type: "button", class: "end", onclick: restore }, "Restore …") : ""),
    kept?.problem ? callout("bad", "This checkpoint is damaged", kept.problem) : "",
    explained?.reason ? callout("bad", `Why it failed: ${explained.reason.replaceAll("_", " ")}`, explained.detail, explained.advice) : "",
    flags.includes("abandoned") ? callout("plain", "Abandoned", "A restore went back to an earlier epoch, so this one is no longer on the pipeline's timeline.") : "",
    explained?.hints?.length ? callout("plain", explained.hints.length > 1 ? "Hints" : "Hint", ...explained.hints) : "",
    facts([
      explained?.begun_at && ["begun", moment(explained.begun_at)],
      kept && ["committed", moment(kept.committed_at)],
      kept && ["took", duration(kept.took_s)],
      kept && ["generation", kept.generation],
      kept && ["checkpoint id", kept.checkpoint_id],
      kept && ["watermark", moment(kept.watermark)],
      kept && ["full size", `${size(kept.state_bytes)} in ${plural(kept.state_files, "file")}`],
      kept && ["in flight", inFlight(kept)],
    ]),
    explained?.steps ? waterfall(explained.steps) : h("p", { class: "quiet" }, "No timings: they were not recorded, or are gone."),
    kept?.stages ? stages(kept, explained, graph) : "",
    kept?.stages ? sinks(kept, explained) : "",
    !kept && !explained?.reason ? h("p", { class: "quiet" }, "This epoch is not kept any more: retention has deleted what it consists of. Its timings remain for a while.") : "",
  ];
}

const inFlight = (kept) => {
  const files = (kept.in_flight ?? []).reduce((sum, flight) => sum + flight.files.length, 0);
  return files ? `${plural(files, "file")} in ${plural(kept.in_flight.filter((flight) => flight.files.length).length, "channel")}` : "nothing";
};

function waterfall(steps) {
  const total = Math.max(...steps.map((step) => step.to_s), 0.001);
  const percent = (value) => `${((value / total) * 100).toFixed(2)}%`;
  const kind = (step) => (step.step.startsWith("in ") && step.note === "published" ? "publish" : ["captured", "manifest", "committed"].includes(step.step) ? "decide" : step.step === "aborted" ? "abort" : "cut");
  const words = { cut: "stage, until it is cut", decide: "leader", publish: "publishing", abort: "aborted" };
  const used = [...new Set(steps.map(kind))];
  return h("section", { "aria-labelledby": "waterfall-title" },
    h("h3", { id: "waterfall-title" }, "Where the time went"),
    h("p", { class: "legend quiet" }, used.map((one) => h("span", {}, h("i", { class: `swatch ${one}`, "aria-hidden": "true" }), words[one]))),
    h("ol", { class: "waterfall" }, steps.map((step) => h("li", { "data-key": step.step },
      h("span", { class: "name", title: step.step }, step.step),
      h("span", { class: "track", "aria-hidden": "true" }, h("span", { class: `bar-of ${kind(step)}`, style: { left: percent(step.from_s), width: `max(3px, ${percent(step.to_s - step.from_s)})` } })),
      h("span", { class: "at" }, h("span", { class: "hidden-text" }, `from ${duration(step.from_s)} to `), duration(step.to_s)),
      h("span", { class: "what quiet" }, step.note)))));
}

function stages(kept, explained, graph) {
  const steps = new Map((explained?.steps ?? []).map((step) => [step.step, step]));
  const order = graph.map((stage) => stage.name).filter((name) => kept.stages[name]);
  const names = [...order, ...Object.keys(kept.stages).filter((name) => !order.includes(name))];
  return h("section", {}, h("h3", {}, "Stages"),
    table("What the checkpoint has of each stage",
      [["stage", false], ["start delay", true], ["alignment", true], ["batch", true], ["cut", false], ["reads up to", false], ["watermark", false], ["state", true], ["files", true]],
      names.map((name) => {
        const stage = kept.stages[name], step = steps.get(name);
        return { key: name, cells: [name, step ? duration(step.from_s) : "–", step ? duration(step.to_s - step.from_s) : "–", whole(stage.batch), stage.unaligned ? "unaligned" : "aligned", positions(stage), mark(stage.watermark), stage.state_files ? size(stage.state_bytes) : "–", whole(stage.state_files)] };
      })));
}

function positions(stage) {
  const inputs = Object.entries(stage.consumed).map(([name, batch]) => `${name} ${batch}`);
  const sources = Object.entries(stage.offsets).flatMap(([leaf, text]) => (stage.topics[leaf]
    ? Object.entries(stage.topics[leaf]).map(([topic, partitions]) => `${topic} at ${Object.entries(partitions).map(([partition, offset]) => `${partition}:${offset}`).join(", ")}`)
    : [`source at ${String(text).length > 60 ? `${String(text).slice(0, 57)}…` : text}`]));
  return [...inputs, ...sources].join("; ") || "–";
}

const mark = (watermark) => (watermark.kind === "none" ? "none" : watermark.kind === "unknown" ? "no event yet" : `${moment(watermark.at)}${watermark.kind === "idle" ? " (idle)" : ""}`);

function sinks(kept, explained) {
  const names = Object.keys(kept.published);
  if (!names.length) return "";
  const steps = new Map((explained?.steps ?? []).map((step) => [step.step, step]));
  return h("section", {}, h("h3", {}, "Tables"),
    table("Where the epoch is published", [["table", false], ["version", true], ["published after", true], ["held back", true]],
      names.map((name) => {
        const version = kept.published[name], step = steps.get(`in ${name}`);
        return { key: name, cells: [name, version === null ? "not published" : version < 0 ? "no rows yet" : whole(version), step ? duration(step.to_s) : "–", kept.held?.[name]?.length ? plural(kept.held[name].length, "file") : "nothing"] };
      })));
}
