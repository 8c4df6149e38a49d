// What the page knows: facts of one or several sources, merged as they come. The same for a server and for run folders.

const NOTICES = 400, TRAIL = 3;

function fresh(about) {
  return { about, totals: {}, clusters: [], reasons: {}, staleness: [], series: new Map(), members: new Map(), trails: new Map(), notices: [] };
}

/** Take a message in; the source it is about, and which notices are new. */
export function merge(sources, told) {
  if (told.whole) sources.set(told.source, fresh(told.about));
  const source = sources.get(told.source);
  if (!source) return [];
  for (const name of ["totals", "clusters", "reasons", "staleness", "about"]) if (told[name]) source[name] = told[name];
  for (const [name, series] of Object.entries(told.series || {})) mergeSeries(source, name, series);
  for (const row of [...(told.members || [])].reverse()) mergeMember(source, row);
  for (const client of told.gone || []) { source.members.delete(client); source.trails.delete(client); }
  source.notices.push(...(told.notices || []));
  source.notices.splice(0, Math.max(0, source.notices.length - NOTICES));
  return told.whole ? [] : told.notices || [];
}

function mergeSeries(source, name, told) {
  const held = told.whole ? new Map() : source.series.get(name)?.points || new Map();
  for (const [time, mean, count] of told.points) held.set(time, [mean, count]);
  source.series.set(name, { step: told.step, points: held });
}

function mergeMember(source, row) {
  const before = source.members.get(row.client);
  source.members.delete(row.client);
  source.members.set(row.client, row);
  if (!row.mixture || JSON.stringify(before?.mixture) === JSON.stringify(row.mixture)) return;
  const trail = source.trails.get(row.client) || [];
  source.trails.set(row.client, [...trail, row.mixture].slice(-TRAIL));
}

/** The points of a series in order: [time, mean]. */
export function points(source, name) {
  const series = source.series.get(name);
  if (!series) return [];
  return [...series.points].map(([time, [mean]]) => [time, mean]).sort((a, b) => a[0] - b[0]);
}

/** Uploads a minute, or per unit of virtual time; zeros where nobody came. The step under way is left out. */
export function rate(source) {
  const series = source.series.get("uploads");
  if (!series || !series.points.size) return [];
  const times = [...series.points.keys()].sort((a, b) => a - b), { step } = series, wall = source.about.clock === "wall";
  const now = wall && source.about.live ? Math.floor(Date.now() / 1000 / step) * step : times[times.length - 1];
  const steps = Math.round((now - times[0]) / step), counts = new Map([...series.points].map(([time, [, count]]) => [Math.round((time - times[0]) / step), count]));
  return Array.from({ length: Math.max(1, Math.min(steps, 600)) }, (_, i) => [times[0] + i * step, ((counts.get(i) || 0) * (wall ? 60 : 1)) / step]);
}

/** The mean over clusters of a kind of series, at every time that any of them has; the last known value of each counts. */
export function mean(source, kind) {
  const all = [...source.series.keys()].filter((name) => name.startsWith(`${kind}/`)).map((name) => points(source, name));
  const times = [...new Set(all.flatMap((line) => line.map(([time]) => time)))].sort((a, b) => a - b);
  const places = all.map(() => -1);
  return times.map((time) => {
    all.forEach((line, i) => { while (places[i] + 1 < line.length && line[places[i] + 1][0] <= time) places[i] += 1; });
    const known = all.map((line, i) => (places[i] < 0 ? null : line[places[i]][1])).filter((value) => value !== null);
    return [time, known.reduce((sum, value) => sum + value, 0) / known.length];
  });
}

/** The clusters that have a curve or exist now, in the order of their numbers. */
export function clustersOf(source) {
  const named = [...source.series.keys()].filter((name) => name.includes("/")).map((name) => name.slice(name.indexOf("/") + 1));
  return [...new Set([...source.clusters, ...named])].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
}

export const gainOf = (row) => (row.before === undefined || row.after === undefined ? null : row.after - row.before);
