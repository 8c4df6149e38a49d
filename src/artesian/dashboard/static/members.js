// The table of clients: found, sorted, and kept in place while numbers change, so that a keyboard never loses its row.

import { h, find, setText, number, score, signed, ago } from "./dom.js";
import { clustersOf, gainOf } from "./facts.js";
import { mixtureBar } from "./map.js";

const ROWS = 60;
const COLUMNS = [
  { key: "client", title: "Client", of: (row) => row.client },
  { key: "standing", title: "Standing", of: (row) => (row.present === false && row.standing === "member" ? "left" : row.standing || "") },
  { key: "answered", title: "Uploads", kind: "number", of: (row) => row.answered ?? null },
  { key: "mixture", title: "Mixture", of: (row) => Math.max(0, ...Object.values(row.mixture || {})) },
  { key: "gain", title: "Gain", kind: "number", of: gainOf },
  { key: "after", title: "Score", kind: "number wide", of: (row) => row.after ?? null },
  { key: "staleness", title: "Staleness", kind: "number wide", of: (row) => row.staleness ?? null },
  { key: "samples", title: "Samples", kind: "number wide", of: (row) => row.samples ?? null },
  { key: "set_aside", title: "Set aside", kind: "number wide", of: (row) => row.set_aside ?? 0 },
  { key: "last", title: "Last upload", kind: "wide", of: (row) => row.last ?? null },
];

const order = { key: "last", down: true };
let lines = new Map(), body = null, heads = new Map();

function sorted(source, wanted) {
  const column = COLUMNS.find((one) => one.key === order.key);
  const rows = [...source.members.values()].filter((row) => row.client.toLowerCase().includes(wanted));
  const worth = (row) => column.of(row);
  return rows.sort((a, b) => {
    const [one, two] = [worth(a), worth(b)];
    if (one === null || two === null) return (one === null) - (two === null);
    const way = typeof one === "string" ? one.localeCompare(two, "en", { numeric: true }) : one - two;
    return (order.down ? -way : way) || a.client.localeCompare(b.client, "en", { numeric: true });
  });
}

export function drawMembers(source, open, redraw) {
  if (!body) begin(redraw);
  find("members").className = `scroll ${source.about.clock}`;
  for (const [key, head] of heads) head.setAttribute("aria-sort", key === order.key ? (order.down ? "descending" : "ascending") : "none");
  const all = sorted(source, find("search").value.trim().toLowerCase()), shown = all.slice(0, ROWS), clusters = source.clusters.length ? source.clusters : clustersOf(source);
  const kept = new Map();
  shown.forEach((row, i) => {
    const line = lines.get(row.client) || lineOf(row.client, open);
    fill(line, row, clusters, source.about.clock);
    if (body.children[i] !== line.element) body.insertBefore(line.element, body.children[i] || null);
    kept.set(row.client, line);
  });
  for (const [client, line] of lines) if (!kept.has(client)) line.element.remove();
  lines = kept;
  setText(find("members-more"), all.length > shown.length ? `${shown.length} of ${all.length} are shown. Search or sort to see others.` : all.length ? "" : "No client.");
}

export function forgetLines() {
  for (const line of lines.values()) line.element.remove();
  lines = new Map();
}

function begin(redraw) {
  const sort = (key) => { order.down = order.key === key ? !order.down : key !== "client"; order.key = key; redraw(); };
  const head = (column) => {
    const made = h("th", { scope: "col", class: `${column.kind || ""} ${column.key}` }, h("button", { type: "button", class: "sort", onclick: () => sort(column.key) }, column.title));
    heads.set(column.key, made);
    return made;
  };
  body = h("tbody");
  find("members").replaceChildren(h("table", null, h("caption", { class: "unseen" }, "Clients; the heads sort"), h("thead", null, h("tr", null, COLUMNS.map(head))), body));
  find("search").addEventListener("input", redraw);
}

function lineOf(client, open) {
  const name = h("button", { type: "button", class: "name", onclick: () => open(client) }, client);
  const cells = Object.fromEntries(COLUMNS.slice(1).map((column) => [column.key, h("td", { class: `${column.kind || ""} ${column.key}` })]));
  return { element: h("tr", null, h("th", { scope: "row" }, name), Object.values(cells)), cells, mixture: null };
}

function fill(line, row, clusters, clock) {
  const { cells } = line, gain = gainOf(row), standing = COLUMNS[1].of(row);
  line.element.className = row.present === false ? "off" : "";
  if (cells.standing.textContent !== standing) cells.standing.replaceChildren(h("span", { class: `chip ${standing}` }, standing));
  setText(cells.answered, number(row.answered));
  setText(cells.gain, gain === null ? "-" : signed(gain));
  cells.gain.className = `number gain ${gain === null ? "" : gain > 0 ? "good" : gain < 0 ? "bad" : ""}`;
  setText(cells.after, score(row.after));
  setText(cells.staleness, number(row.staleness));
  setText(cells.samples, number(row.samples));
  setText(cells.set_aside, number(row.set_aside ?? 0));
  setText(cells.last, ago(row.last, clock));
  const told = JSON.stringify([row.mixture, clusters.length]);
  if (told !== line.mixture) cells.mixture.replaceChildren(mixtureBar(row.mixture, clusters));
  line.mixture = told;
}
