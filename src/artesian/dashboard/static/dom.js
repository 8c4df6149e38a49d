// Elements from data. Text goes in as text and never as markup, wherever it came from.

const SVG = "http://www.w3.org/2000/svg";

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export const h = (tag, attributes, ...children) => build(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) => build(document.createElementNS(SVG, tag), attributes, children);
export const find = (id) => document.getElementById(id);
export const show = (id, shown) => { find(id).hidden = !shown; };

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A table of texts under these heads, as the alternative to a chart. */
export function tableOf(caption, heads, rows) {
  return h("table", null,
    h("caption", { class: "unseen" }, caption),
    h("thead", null, h("tr", null, heads.map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", null, rows.map((row) => h("tr", null, row.map((cell, i) =>
      (i ? h("td", null, cell) : h("th", { scope: "row" }, cell)))))));
}

/** Put a chart into its place; its table stays open if it was, and is filled only then. */
export function place(host, drawing, table, legend) {
  const open = host.querySelector("details")?.open || false;
  const details = h("details", { open }, h("summary", null, "As a table"));
  const fill = () => { if (details.open && details.children.length === 1) details.append(h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table" }, table())); };
  details.addEventListener("toggle", fill);
  fill();
  const held = host.contains(document.activeElement) && document.activeElement.tagName === "SUMMARY";
  host.replaceChildren(...[drawing, legend, details].filter(Boolean));
  if (held) details.firstChild.focus();
}

export function empty(host, text) {
  host.replaceChildren(h("p", { class: "empty" }, text));
}

// numbers and times as people read them

export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : digits);
}

/** A score, always with as many digits, so that a column can be compared. */
export const score = (value) => (typeof value === "number" ? value.toFixed(3) : "-");

export const signed = (value) => (value > 0 ? "+" : "") + number(value);

export function moment(time, clock) {
  if (clock !== "wall") return number(time, 1);
  const date = new Date(time * 1000), parts = [date.getHours(), date.getMinutes(), date.getSeconds()];
  return parts.map((part) => String(part).padStart(2, "0")).join(":");
}

export function ago(time, clock) {
  if (time === undefined || time === null) return "-";
  if (clock !== "wall") return `at ${number(time, 1)}`;
  const seconds = Math.max(0, Date.now() / 1000 - time);
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  return `${Math.round(seconds / 3600)} h ago`;
}

export const mixtureText = (mixture) => (mixture
  ? Object.entries(mixture).map(([k, share]) => `${k} ${Math.round(share * 100)}%`).join(", ") : "none yet");
