// Curves and bars as SVG, sized to where they stand; each with a legend and a table for whoever cannot see it.

import { h, s, place, empty, number, moment, tableOf } from "./dom.js";

const HEIGHT = 210, LEFT = 44, RIGHT = 12, TOP = 10, BOTTOM = 24, MOST = 40;

/** Round numbers between two ends, about so many; they are counted, as a step may be lost in numbers that are very large. */
export function ticks(low, high, wanted = 4) {
  const span = high - low || 1, rough = span / wanted, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const found = [];
  const first = Math.ceil(low / step - 1e-9), count = Math.min(MOST, Math.floor((high - low) / step + 1e-9) + 1);
  for (let i = 0; i < count && (first + i) * step <= high + step * 1e-9; i += 1) found.push(Math.abs((first + i) * step) < step * 1e-9 ? 0 : (first + i) * step);
  return found;
}

const WHOLE = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];

function timeTicks(low, high, clock, wanted) {
  if (clock !== "wall") return ticks(low, high, wanted);
  const step = WHOLE.find((one) => (high - low) / one <= wanted) || 86400 * Math.ceil((high - low) / 86400 / wanted);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) found.push(at);
  return found;
}

function extent(lines, floor) {
  const values = lines.flatMap((line) => line.points.map((point) => point[1]));
  let low = Math.min(...values), high = Math.max(...values);
  if (floor !== undefined) low = Math.min(low, floor);
  const room = (high - low || Math.abs(high) || 1) * 0.08;
  return [floor !== undefined && low >= floor ? floor : low - room, high + room];
}

/** Curves over time. `lines` have a name, a class and points; `floor` is a value that must be in sight. */
export function lineChart(host, { lines, clock, label, floor, area = false, digits = 3 }) {
  const drawn = lines.filter((line) => line.points.length);
  if (!drawn.length) return empty(host, "Nothing yet");
  const width = Math.max(260, host.clientWidth || 480), times = drawn.flatMap((line) => line.points.map((point) => point[0]));
  const start = Math.min(...times), end = Math.max(...times), [low, high] = extent(drawn, floor);
  const x = (time) => LEFT + ((time - start) / (end - start || 1)) * (width - LEFT - RIGHT);
  const y = (value) => TOP + (1 - (value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const svg = s("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img", "aria-label": spoken(label, drawn, digits) });
  for (const value of ticks(low, high)) {
    svg.append(s("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
      s("text", { x: LEFT - 7, y: y(value) + 4, "text-anchor": "end" }, String(Number(value.toPrecision(3)))));
  }
  for (const time of timeTicks(start, end, clock, width < 420 ? 3 : 5)) {
    if (x(time) > width - RIGHT + 1) continue;
    const edge = x(time) > width - 34 ? "end" : x(time) < LEFT + 24 ? "start" : "middle";
    svg.append(s("text", { x: edge === "end" ? width : edge === "start" ? LEFT : x(time), y: HEIGHT - 6, "text-anchor": edge }, moment(time, clock)));
  }
  for (const line of drawn) drawLine(svg, line, x, y, area ? y(Math.max(low, 0)) : null);
  const values = drawn.map((line) => h("b", null, number(line.points[line.points.length - 1][1], digits)));
  const legend = h("ul", { class: "legend" }, drawn.map((line, i) => h("li", { class: line.kind }, line.name, values[i])));
  follow(svg, drawn, x, values, digits, { start, end, width });
  place(host, svg, () => curveTable(label, drawn, clock, digits), legend);
}

function drawLine(svg, line, x, y, base) {
  const way = line.points.map(([time, value], i) => `${i ? "L" : "M"}${x(time).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const [first, last] = [line.points[0][0], line.points[line.points.length - 1][0]];
  if (base !== null) svg.append(s("path", { class: `area ${line.kind}`, d: `${way}L${x(last)} ${base}L${x(first)} ${base}Z` }));
  svg.append(line.points.length > 1
    ? s("path", { class: `line ${line.kind}${line.dashed ? " dashed" : ""}`, d: way })
    : s("circle", { class: `dot ${line.kind}`, cx: x(first), cy: y(line.points[0][1]), r: 4 }));
}

/** While a pointer is over a chart, its legend shows the values there. */
function follow(svg, lines, x, values, digits, { start, end, width }) {
  const cursor = s("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  svg.append(cursor);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), at = ((event.clientX - box.left) / box.width) * width;
    const time = start + ((at - LEFT) / (width - LEFT - RIGHT)) * (end - start);
    cursor.setAttribute("x1", x(Math.min(Math.max(time, start), end)));
    cursor.setAttribute("x2", cursor.getAttribute("x1"));
    cursor.setAttribute("visibility", "visible");
    lines.forEach((line, i) => { values[i].textContent = number(nearest(line.points, time)[1], digits); });
  });
  svg.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    lines.forEach((line, i) => { values[i].textContent = number(line.points[line.points.length - 1][1], digits); });
  });
}

const nearest = (points, time) => points.reduce((best, point) => (Math.abs(point[0] - time) < Math.abs(best[0] - time) ? point : best));

function spoken(label, lines, digits) {
  const told = lines.map((line) => `${line.name} ${number(line.points[line.points.length - 1][1], digits)}`);
  return `${label}. Now: ${told.join(", ")}.`;
}

function curveTable(label, lines, clock, digits) {
  const times = [...new Set(lines.flatMap((line) => line.points.map((point) => point[0])))].sort((a, b) => b - a).slice(0, 30);
  const known = lines.map((line) => new Map(line.points));
  return tableOf(label, [clock === "wall" ? "Time" : "Virtual time", ...lines.map((line) => line.name)],
    times.map((time) => [moment(time, clock), ...known.map((points) => number(points.get(time) ?? null, digits))]));
}

/** Upright bars under their names. `bars` are [name, count, class]. */
export function barChart(host, { bars, label, unit, every = 1, height = HEIGHT }) {
  const total = bars.reduce((sum, bar) => sum + bar[1], 0);
  if (!total) return empty(host, "Nothing yet");
  const width = Math.max(260, host.clientWidth || 480), most = Math.max(...bars.map((bar) => bar[1]));
  const wide = (width - LEFT - RIGHT) / bars.length, y = (count) => TOP + (1 - count / (most * 1.06)) * (height - TOP - BOTTOM);
  const svg = s("svg", { class: "bars", viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${label}. ${total} ${unit}.` });
  for (const count of ticks(0, most)) {
    if (!Number.isInteger(count)) continue;
    svg.append(s("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(count), y2: y(count) }),
      s("text", { x: LEFT - 7, y: y(count) + 4, "text-anchor": "end" }, number(count)));
  }
  bars.forEach(([name, count, kind], i) => {
    const thick = Math.min(wide * 0.78, 56), middle = LEFT + wide * (i + 0.5);
    svg.append(s("rect", { class: kind || "c0", x: middle - thick / 2, y: y(count), width: thick, height: Math.max(0, height - BOTTOM - y(count)), rx: 2 },
      s("title", null, `${name}: ${count} ${unit}`)));
    if (i % Math.max(every, Math.ceil(48 / wide)) === 0) svg.append(s("text", { x: middle, y: height - 6, "text-anchor": "middle" }, name));
  });
  svg.append(s("line", { class: "axis", x1: LEFT, x2: width - RIGHT, y1: height - BOTTOM, y2: height - BOTTOM }));
  place(host, svg, () => tableOf(label, ["", unit], bars.map(([name, count]) => [name, String(count)])));
}
