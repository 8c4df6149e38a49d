// One client: its history, its path on the map, and what an operator may do about it.

import { h, find, number, score, signed, moment, ago, mixtureText, tableOf } from "./dom.js";
import { lineChart } from "./charts.js";
import { clustersOf, gainOf } from "./facts.js";

const ACTS = {
  quarantine: "Its uploads are answered and recorded, and not folded.",
  release: "Its quarantine ends.",
  revoke: "Its secret becomes invalid, and it cannot join again.",
  reset: "Its next join brings a new secret. A revocation ends.",
  forget: "All it uploaded is taken out of the models, and its record is dropped. This may take long, and cannot be undone.",
};

const title = (word) => word[0].toUpperCase() + word.slice(1);

/** Show a client in the dialog; `send` does an act, or is missing where nobody may act. */
export function showClient(source, client, history, send) {
  const dialog = find("client"), row = source.members.get(client) || { client };
  const close = h("button", { type: "button", onclick: () => dialog.close() }, "Close");
  const asked = h("div");
  dialog.replaceChildren(...[
    h("div", { class: "bar" }, h("h2", { id: "client-title" }, client), close),
    about(source, row),
    ...(send ? [acts(row, asked, send), asked] : []),
    scores(source, history),
    shares(source, history),
    h("h3", null, "Last uploads"),
    history.length ? h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Last uploads" }, uploads(source, history)) : h("p", { class: "quiet" }, "No upload since the history began."),
  ].filter(Boolean));
  if (!dialog.open) dialog.showModal();
  for (const draw of dialog.querySelectorAll(".later")) draw.dispatchEvent(new Event("draw"));
}

function about(source, row) {
  const gain = gainOf(row), clock = source.about.clock;
  const told = {
    Standing: row.present === false ? `${row.standing || "member"}, left` : row.standing,
    Mixture: mixtureText(row.mixture),
    Uploads: row.answered === undefined ? null : `${number(row.answered)}${row.set_aside ? `, ${row.set_aside} set aside` : ""}`,
    Samples: row.samples === undefined ? null : number(row.samples),
    "Last upload": row.last === undefined ? null : ago(row.last, clock),
    "Last refresh": gain === null ? null : `${score(row.before)} before, ${score(row.after)} after (${signed(gain)})`,
  };
  return h("dl", { class: "about" }, Object.entries(told).filter(([, text]) => text).flatMap(([name, text]) => [h("dt", null, name), h("dd", null, text)]));
}

function acts(row, asked, send) {
  const button = (kind) => h("button", { type: "button", class: kind === "forget" || kind === "revoke" ? "danger" : "", onclick: () => confirm(kind, row, asked, send) }, title(kind));
  const possible = Object.keys(ACTS).filter((kind) => !(kind === "release" && row.standing !== "quarantined") && !(kind === "quarantine" && row.standing === "quarantined"));
  return h("div", { class: "acts", role: "group", "aria-label": "Acts" }, possible.map(button));
}

function confirm(kind, row, asked, send) {
  const why = h("input", { id: "why", type: "text", maxlength: 500, autocomplete: "off" }), told = h("p", { role: "alert", class: "error" });
  const go = h("button", { type: "submit", class: "primary" }, `${title(kind)} ${row.client}`);
  const form = h("form", { class: "confirm" },
    h("p", null, ACTS[kind]), h("label", { for: "why" }, "Reason, kept in the journal"), why, told,
    h("div", { class: "fields" }, go, h("button", { type: "button", onclick: () => asked.replaceChildren() }, "Cancel")));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    go.disabled = true;
    told.textContent = "";
    try {
      await send(kind, row.client, why.value);
      asked.replaceChildren(h("p", { role: "status", class: "quiet" }, `Done: ${kind}.`));
    } catch (error) {
      told.textContent = error.message;
      go.disabled = false;
    }
  });
  asked.replaceChildren(form);
  why.focus();
}

/** A chart that is drawn once the dialog is open, and has a width. */
function later(draw) {
  const host = h("div", { class: "chart later" });
  host.addEventListener("draw", () => draw(host));
  return host;
}

function scores(source, history) {
  const scored = history.filter((one) => one.before !== undefined && one.after !== undefined);
  if (scored.length < 2) return null;
  const line = (name, key, kind) => ({ name, kind, points: scored.map((one) => [one.time, one[key]]), dashed: key === "before" });
  return h("section", null, h("h3", null, "Score before and after a refresh"),
    later((host) => lineChart(host, { lines: [line("before", "before", "c9"), line("after", "after", "c0")], clock: source.about.clock, label: "Score before and after each refresh" })));
}

function shares(source, history) {
  const known = history.filter((one) => one.mixture), clusters = source.clusters.length ? source.clusters : clustersOf(source);
  if (known.length < 2) return null;
  const lines = clusters.map((k, i) => ({ name: k, kind: `c${i % 10}`, points: known.map((one) => [one.time, one.mixture[k] || 0]) }));
  return h("section", null, h("h3", null, "Mixture"),
    later((host) => lineChart(host, { lines, clock: source.about.clock, label: "Shares of the clusters", floor: 0, digits: 2 })));
}

function uploads(source, history) {
  const rows = [...history].reverse().map((one) => [
    String(one.number), moment(one.time, source.about.clock), number(one.staleness), one.mixture ? mixtureText(one.mixture) : "-",
    one.before === undefined || one.after === undefined ? "-" : signed(one.after - one.before), [one.drift ? "data changed" : "", one.aside || ""].filter(Boolean).join("; ") || "-",
  ]);
  return tableOf("Last uploads", ["Upload", "Time", "Staleness", "Mixture", "Gain", "Note"], rows);
}
