// The map: every cluster is a corner, and a client stands between the corners by the shares of its mixture.

import { h, s, place, empty, mixtureText, tableOf } from "./dom.js";
import { clustersOf } from "./facts.js";

const HEIGHT = 330, MARGIN = 34;

/** Where the clusters stand: one in the middle, two at the ends of a line, more on a ring that fills the box. */
export function corners(clusters, width) {
  if (clusters.length === 1) return [[width / 2, HEIGHT / 2]];
  if (clusters.length === 2) return [[MARGIN + 30, HEIGHT / 2], [width - MARGIN - 30, HEIGHT / 2]];
  const shift = clusters.length === 4 ? Math.PI / 4 : 0;
  const ring = clusters.map((_, i) => (2 * Math.PI * i) / clusters.length - Math.PI / 2 + shift).map((turn) => [Math.cos(turn), Math.sin(turn)]);
  const wide = Math.min(width - 2 * MARGIN, 1.7 * HEIGHT);
  return ring.map((_, i) => [width / 2 + wide * (stretched(ring, 0)[i] - 0.5), MARGIN + (HEIGHT - 2 * MARGIN) * stretched(ring, 1)[i]]);
}

/** One axis of some places, from 0 to 1. */
function stretched(places, axis) {
  const all = places.map((one) => one[axis]), low = Math.min(...all), high = Math.max(...all);
  return all.map((value) => (value - low) / (high - low));
}

/** A little to one side, the same for a client every time, so that two with one mixture can be told apart. */
function nudge(client, few) {
  let hash = 2166136261;
  for (let i = 0; i < client.length; i += 1) hash = Math.imul(hash ^ client.charCodeAt(i), 16777619);
  const turn = ((hash >>> 0) % 3600) / 3600 * 2 * Math.PI, far = ((hash >>> 12) % 100) / 100;
  return few === 1 ? [90 * far * Math.cos(turn), 90 * far * Math.sin(turn)] : few === 2 ? [6 * Math.cos(turn), 70 * far * Math.sin(turn)] : [5 * far * Math.cos(turn), 5 * far * Math.sin(turn)];
}

/** The place of a mixture between the corners. */
export function spot(mixture, clusters, places) {
  const total = clusters.reduce((sum, k) => sum + (mixture[k] || 0), 0) || 1;
  return [0, 1].map((axis) => clusters.reduce((sum, k, i) => sum + ((mixture[k] || 0) / total) * places[i][axis], 0));
}

const largest = (mixture, clusters) => clusters.reduce((best, k, i) => ((mixture[k] || 0) > (mixture[clusters[best]] || 0) ? i : best), 0);

/** Draw the map; `chosen` is a client whose path is shown, and `open` is called with one that is clicked. */
export function drawMap(host, source, chosen, path, open) {
  const clusters = source.clusters.length ? source.clusters : clustersOf(source);
  const placed = [...source.members.values()].filter((row) => row.mixture && Object.keys(row.mixture).length);
  if (!clusters.length || !placed.length) return empty(host, "No client has a mixture yet");
  const width = Math.max(260, host.clientWidth || 480), places = corners(clusters, width);
  const svg = s("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img", "aria-label": `Clients by mixture. ${placed.length} clients between ${clusters.length} clusters. The table of clients below holds the same.` });
  places.forEach((a, i) => places.slice(i + 1).forEach((b) => svg.append(s("line", { class: "edge", x1: a[0], y1: a[1], x2: b[0], y2: b[1] }))));
  const at = (mixture, client) => { const p = spot(mixture, clusters, places), n = nudge(client, clusters.length); return [p[0] + n[0], p[1] + n[1]]; };
  for (const row of placed) drawTrail(svg, source.trails.get(row.client) || [], row, at, clusters);
  for (const row of placed) svg.append(dot(row, at, clusters, row.client === chosen, open));
  if (chosen && path.length > 1) {
    const way = path.map((mixture) => at(mixture, chosen));
    svg.append(s("polyline", { class: "path", points: way.map((p) => p.map((v) => v.toFixed(1)).join(",")).join(" ") }));
  }
  clusters.forEach((k, i) => svg.append(s("circle", { class: `corner c${i % 10}`, cx: places[i][0], cy: places[i][1], r: 6 }),
    s("text", { class: "label", x: places[i][0], y: places[i][1] + (places[i][1] < HEIGHT / 2 ? -13 : 23), "text-anchor": "middle" }, k)));
  place(host, svg, () => shareTable(placed, clusters));
}

function drawTrail(svg, trail, row, at, clusters) {
  if (trail.length < 2) return;
  const way = trail.map((mixture) => at(mixture, row.client).map((v) => v.toFixed(1)).join(","));
  svg.append(s("polyline", { class: `trail c${largest(row.mixture, clusters) % 10}`, points: way.join(" ") }));
}

function dot(row, at, clusters, chosen, open) {
  const [x, y] = at(row.mixture, row.client);
  return s("circle", { class: `dot c${largest(row.mixture, clusters) % 10}${row.present === false ? " away" : ""}${chosen ? " chosen" : ""}`, cx: x.toFixed(1), cy: y.toFixed(1), r: chosen ? 7 : 4.5, onclick: () => open(row.client) },
    s("title", null, `${row.client}: ${mixtureText(row.mixture)}`));
}

function shareTable(placed, clusters) {
  const rows = placed.slice(-40).reverse();
  return tableOf("Shares of clients", ["Client", ...clusters], rows.map((row) => [row.client, ...clusters.map((k) => `${Math.round((row.mixture[k] || 0) * 100)}%`)]));
}

/** A mixture as one narrow bar. */
export function mixtureBar(mixture, clusters) {
  if (!mixture) return document.createTextNode("-");
  let at = 0;
  const svg = s("svg", { class: "mixture", viewBox: "0 0 100 10", preserveAspectRatio: "none", role: "img", "aria-label": mixtureText(mixture) }, s("title", null, mixtureText(mixture)));
  clusters.forEach((k, i) => {
    const share = 100 * (mixture[k] || 0);
    if (share > 0) svg.append(s("rect", { class: `c${i % 10}`, x: at, y: 0, width: share, height: 10 }));
    at += share;
  });
  return svg;
}
