// The processes that run the pipeline.

import { h } from "./dom.js";
import { duration, moment, plural, secondsBetween, whole } from "./format.js";
import { badge, callout, facts } from "./shared.js";

const WORDS = { running: "running", silent: "silent", ended: "ended", unknown: "being watched" };

export function membersView({ document }) {
  if (!document.members.length) return [h("h2", {}, "Members"), h("p", { class: "quiet" }, "No member has reported a status on this store yet.")];
  const missing = [...new Set(document.graph.map((stage) => stage.member))].filter((name) => !document.members.some((member) => member.member === name));
  return [
    h("h2", {}, "Members"),
    h("p", { class: "quiet" }, document.journal.leader ? `${document.journal.leader} ${document.running ? "leads" : "led"} in term ${document.journal.term}.` : "Nobody has led yet."),
    missing.map((name) => callout("warn", `Member ${name} has never reported`, "The graph names it; start it, or look whether it can reach the store.")),
    h("div", { class: "member-cards" }, document.members.map((member) => card(member, document))),
  ];
}

function card(member, document) {
  const leads = member.leads && member.alive;
  const state = member.alive ? member.state : member.presence === "ended" && ["drained", "stopped", "failed"].includes(member.state) ? member.state : member.presence;
  return h("article", { class: "panel", "data-key": member.member },
    h("div", { class: "bar" }, h("h3", {}, member.member), badge(state, WORDS[state] ?? state), leads ? h("span", { class: "tag strong" }, "leads") : ""),
    member.presence === "silent" ? callout("warn", "It no longer reports", `Its process ${member.pid} on ${member.host} is paused, stuck or gone. Resume it, or end it and start it again: it continues where it stopped.`) : "",
    member.trouble ? callout("bad", "Trouble", member.trouble) : "",
    member.ignored ? callout("warn", `${plural(member.ignored, "message")} ignored`, "They had no valid seal, or could not be read; the log says whose they were.") : "",
    facts([
      ["process", `${member.pid} on ${member.host}`],
      ["since", moment(member.started_at)],
      ["last report", moment(member.updated_at)],
      member.alive && ["running for", duration(secondsBetween(member.started_at, member.updated_at))],
      ["term", whole(member.term)],
      ["generation", whole(member.generation)],
      ["knows epoch", member.epoch === null ? "none" : whole(member.epoch)],
      ["journal", member.catching_up ? `catching up: ${whole(member.catching_up[0])} of ${whole(member.catching_up[1])} entries` : "up to date"],
      ["version", [member.version || "unknown", member.spark ? `, Spark ${member.spark}` : ""]],
      ["Spark UI", link(member.spark_ui)],
    ]),
    h("p", {}, h("span", { class: "quiet" }, "stages: "), member.stages.map((stage) => stage.name).join(", ") || "none"));
}

/** Only addresses of web pages become links. */
function link(address) {
  if (!address) return "not started";
  return /^https?:\/\//.test(address) ? h("a", { href: address, rel: "noreferrer noopener", target: "_blank" }, address) : address;
}
