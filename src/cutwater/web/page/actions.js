// The buttons: each asks first, and says what will happen.

import { ask, Failed, token } from "./api.js";
import { h, show } from "./dom.js";
import { moment, plural } from "./format.js";

const dialog = () => document.getElementById("dialog");

export function openDialog(title, ...body) {
  const place = dialog();
  show(place, h("h2", { id: "dialog-title" }, title), body);
  if (!place.open) place.showModal();
}

export const closeDialog = () => dialog().open && dialog().close();

const field = (label, name, properties = {}, hint = "") => h("label", {}, h("span", {}, label), h("input", { name, autocomplete: "off", ...properties }), hint ? h("span", { class: "quiet" }, hint) : "");
const tick = (label, name) => h("label", { class: "tick" }, h("input", { type: "checkbox", name }), h("span", {}, label));

export function askToken(after, why = "") {
  openDialog("Token", h("form", {
    method: "dialog",
    onsubmit: (event) => {
      event.preventDefault();
      token.set(new FormData(event.target).get("token").trim());
      closeDialog();
      after();
    },
  }, why ? h("p", { class: "callout bad", role: "alert" }, why) : "", h("p", {}, "The token that the server was started with (--http-token). It is kept in this tab only."), field("Token", "token", { type: "password", required: true, autofocus: true }), buttons("Continue")));
}

const buttons = (text, danger = false) => h("div", { class: "bar buttons" }, h("button", { type: "button", onclick: closeDialog }, "Back"), h("button", { type: "submit", class: danger ? "danger" : "primary" }, text));

/** `texts`: what will happen, as paragraphs. `wishOf(form)` makes the request. */
function confirm(title, texts, fields, label, wishOf, done, danger = false) {
  openDialog(title, h("form", {
    method: "dialog",
    onsubmit: (event) => {
      event.preventDefault();
      send(wishOf(new FormData(event.target)), done, () => confirm(title, texts, fields, label, wishOf, done, danger));
    },
  }, texts.map((text) => h("p", {}, text)), fields, h("p", { class: "refusal", id: "refusal", role: "alert" }), buttons(label, danger)));
}

async function send(wish, done, again) {
  try {
    const asked = await ask(wish);
    closeDialog();
    done(asked);
  } catch (error) {
    if (error instanceof Failed && error.status === 401) {
      const wrong = Boolean(token.get());
      token.set("");
      askToken(() => send(wish, done, again), wrong ? "That token is wrong." : "");
      return;
    }
    const place = document.getElementById("refusal");
    if (place) place.textContent = error.message;
    else openDialog("This was refused", h("p", {}, error.message), h("div", { class: "bar buttons" }, h("button", { type: "button", onclick: closeDialog }, "Back")));
  }
}

const tablesOf = (document) => document.graph.flatMap((stage) => stage.sinks.map((sink) => sink.name));

export const actions = {
  checkpoint: (document, done) => confirm("Take a checkpoint now", ["A barrier goes through all stages, and the epoch is committed and published when all of them are cut. The pipeline goes on meanwhile."],
    [tick("Full: copy all state, so that the checkpoint needs nothing else", "full"), tick("Unaligned: do not wait for rows in channels", "unaligned")], "Take it",
    (form) => ({ kind: "checkpoint", full: form.has("full"), unaligned: form.has("unaligned") }), done),
  savepoint: (document, done) => confirm("Take a savepoint", [document.running ? "A full checkpoint gets a name. It is kept until the name is removed, and everything can go back to it." : "Nothing is running, so the newest checkpoint gets the name. It is kept until the name is removed."],
    [field("Name", "name", { required: true, pattern: "[A-Za-z][A-Za-z0-9_.\\-]*", maxlength: 100, placeholder: "before-deploy" }, "a letter, then letters, digits, _ - .")], "Take it",
    (form) => ({ kind: "savepoint", name: form.get("name") }), done),
  cancel: (document, done) => confirm("Cancel the checkpoint in progress", [`Epoch ${document.journal.open.join(", ") || "in progress"} is aborted. Nothing is lost: its batches belong to the next checkpoint.`], [], "Cancel the checkpoint", () => ({ kind: "cancel" }), done),
  drain: (document, done) => confirm("Drain and stop the pipeline", ["All stages finish what they have, a last checkpoint is committed and published everywhere, and then every member ends. Windows that are still open stay open.", "It runs again when somebody starts it; this page cannot do that."], [], "Drain and stop", () => ({ kind: "drain" }), done, true),
  restore: (document, done, epoch = "", about = null) => {
    const tables = tablesOf(document);
    confirm("Restore a checkpoint", [
      `All ${plural(document.graph.length, "stage")} and ${tables.length ? `${plural(tables.length, "table")} (${tables.join(", ")})` : "no tables"} go back to the checkpoint together. What was published after it disappears from the tables; later epochs are abandoned.`,
      about ? `Epoch ${about.epoch} was committed ${moment(about.committed_at)}${about.savepoints.length ? ` as savepoint ${about.savepoints.join(", ")}` : ""}. The newest is epoch ${document.journal.head}.` : "",
      document.running ? "The pipeline is running: it continues from there at once and reads its sources again from that point." : "Nothing is running: the next run starts there and rolls the tables back.",
    ].filter(Boolean), [field("Checkpoint", "ref", { required: true, value: epoch, placeholder: "epoch or savepoint" }, `kept: ${document.journal.kept.slice(-8).join(", ")}${Object.keys(document.journal.savepoints).length ? `; savepoints: ${Object.keys(document.journal.savepoints).join(", ")}` : ""}`), tick("Force: also undo changes that others have made to the tables since then", "force")], "Restore",
    (form) => ({ kind: "restore", ref: String(form.get("ref")).trim(), force: form.has("force") }), done, true);
  },
};
