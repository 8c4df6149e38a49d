// Everything of the page that is drawn from facts: tiles, charts, events, refusals.

import { h, s, find, setText, number, moment, empty } from "./dom.js";
import { points, rate, mean, clustersOf, gainOf } from "./facts.js";
import { lineChart, barChart } from "./charts.js";
import { drawMap } from "./map.js";

const BINS = 16, SAME = 1e-9;

export function drawTiles(source) {
  const { totals } = source, rates = rate(source), wall = source.about.clock === "wall";
  const recent = rates.slice(-Math.max(1, Math.round(60 / (source.series.get("uploads")?.step || 60))));
  const a_minute = recent.length ? recent.reduce((sum, point) => sum + point[1], 0) / recent.length : 0;
  tiles([
    ["Clients here", totals.present ?? source.members.size, totals.members !== undefined && totals.members !== totals.present ? `of ${number(totals.members)}` : ""],
    wall ? ["Uploads a minute", Math.round(a_minute * 10) / 10, ""] : ["Virtual time", totals.time, ""],
    ["Uploads", totals.uploads, ""],
    ["Draws", totals.draws, ""],
    ["Version", totals.version, "folds"],
    ["Clusters", (source.clusters.length ? source.clusters : clustersOf(source)).length, ""],
    ["Refused", totals.refused, ""],
    ["Set aside", totals.set_aside, totals.suspects ? `${totals.suspects} suspects` : "", totals.suspects > 0],
  ].filter((tile) => tile[1] !== undefined && tile[1] !== null));
}

function tiles(wanted) {
  const host = find("tiles");
  if (host.children.length !== wanted.length) host.replaceChildren(...wanted.map(() => h("div", { class: "tile" }, h("dt"), h("dd", null, h("span"), " ", h("span", { class: "part" })))));
  wanted.forEach(([title, value, part, alert], i) => {
    const tile = host.children[i], [name, told] = tile.children;
    setText(name, title);
    setText(told.children[0], number(value, 1));
    setText(told.children[1], part);
    tile.className = alert ? "tile alert" : "tile";
  });
}

/** One curve per cluster; of several sources, one curve each: the mean over its clusters. */
function curves(sources, source, kind) {
  if (sources.size > 1) return [...sources.values()].map((one, i) => ({ name: one.about.name, kind: `c${i % 10}`, dashed: i > 9, points: mean(one, kind) }));
  return clustersOf(source).map((k, i) => ({ name: k, kind: `c${i % 10}`, dashed: i > 9, points: points(source, `${kind}/${k}`) }));
}

export function drawCurves(sources, source) {
  const { clock } = source.about, several = sources.size > 1;
  const losses = curves(sources, source, "loss"), scores = curves(sources, source, "accuracy");
  const isError = scores.some((line) => line.points.some((point) => point[1] < 0));
  setText(find("loss-title"), several ? "Loss, mean of the clusters" : "Loss per cluster");
  setText(find("accuracy-title"), `${isError ? "Score" : "Accuracy"}${several ? ", mean of the clusters" : " per cluster"}`);
  find("loss-title").closest("section").hidden = clock === "virtual" && losses.every((line) => !line.points.length);
  lineChart(find("loss"), { lines: losses, clock, label: "Loss of the clusters" });
  lineChart(find("accuracy"), { lines: scores, clock, label: "Scores of the clusters" });
  setText(find("uploads-title"), clock === "wall" ? "Uploads a minute" : "Uploads over virtual time");
  const lines = [...sources.values()].map((one, i) => ({ name: several ? one.about.name : clock === "wall" ? "a minute" : "per unit of time", kind: `c${i % 10}`, points: rate(one) }));
  lineChart(find("uploads"), { lines, clock, label: "Uploads", floor: 0, area: !several, digits: 1 });
}

export function drawBars(source) {
  barChart(find("staleness"), { bars: source.staleness.map(([name, count]) => [name, count, "c0"]), label: "Folds between a task and its upload, of the last uploads", unit: "uploads" });
  drawGains(source);
}

function drawGains(source) {
  const host = find("gains"), gains = [...source.members.values()].map(gainOf).filter((gain) => gain !== null);
  if (!gains.length) return empty(host, source.about.clock === "wall" ? "No client reports its scores yet (refresh with report)" : "No scores yet");
  const far = Math.max(...gains.map(Math.abs), SAME), wide = (2 * far) / BINS;
  const bars = Array.from({ length: BINS }, (_, i) => {
    const from = -far + i * wide, middle = from + wide / 2;
    const count = gains.filter((gain) => Math.abs(gain) > SAME && Math.min(BINS - 1, Math.floor((gain + far) / wide)) === i).length;
    return [number(middle, 2), count, middle < 0 ? "bad" : "good"];
  });
  const [up, down] = [gains.filter((gain) => gain > SAME).length, gains.filter((gain) => gain < -SAME).length];
  if (up + down) barChart(host, { bars, label: "Score after the last refresh minus score before it", unit: "clients", every: 3, height: 290 });
  else empty(host, "Nobody's score changed");
  const average = gains.reduce((sum, gain) => sum + gain, 0) / gains.length;
  host.insertBefore(h("ul", { class: "legend" }, h("li", { class: "good" }, "gained ", h("b", null, number(up))), h("li", { class: "bad" }, "lost ", h("b", null, number(down))),
    h("li", { class: "same" }, "the same ", h("b", null, number(gains.length - up - down))), h("li", { class: "c9" }, "mean ", h("b", null, number(average)))), host.querySelector("details"));
}

export function drawPlaces(source, chosen, path, open) {
  drawMap(find("map"), source, chosen, path, open);
}

const KINDS = { drift: "drift", alarm: "alarm", aside: "set aside", act: "act", clusters: "clusters", membership: "member" };
let drawn = "";

export function drawNotices(source, open) {
  const kind = find("kind").value;
  const wanted = source.notices.filter((one) => (kind ? one.kind === kind : one.kind !== "membership")).slice(-80).reverse();
  const key = `${source.about.key} ${kind} ${wanted.length} ${wanted[0]?.number}`;
  if (key === drawn) return;
  drawn = key;
  const item = (one) => h("li", null, h("time", null, moment(one.time, source.about.clock)), h("span", null, h("span", { class: `chip ${one.kind}` }, KINDS[one.kind] || one.kind)),
    h("span", { class: "text" }, one.client ? h("button", { type: "button", class: "name", onclick: () => open(one.client) }, one.client) : null, one.client ? " " : "", one.text));
  find("notices").replaceChildren(...(wanted.length ? wanted.map(item) : [h("li", null, h("span", { class: "text quiet" }, "Nothing yet"))]));
}

export function drawRefusals(source) {
  const host = find("refusals"), rows = Object.entries(source.reasons).sort((a, b) => b[1] - a[1]);
  if (!rows.length) return empty(host, "Nothing was refused");
  const most = rows[0][1];
  const bar = (count) => s("svg", { class: "bars", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, s("rect", { class: "c1", x: 0, y: 0, height: 10, width: (100 * count) / most, rx: 1 }));
  host.replaceChildren(h("div", { class: "reasons", role: "list" }, rows.flatMap(([reason, count]) => [h("span", { role: "listitem" }, reason, h("span", { class: "unseen" }, `: ${count}`)), bar(count), h("b", { "aria-hidden": "true" }, number(count))])));
}
