// The page from its first request on: sign in, follow the stream, draw, act.

import { find, show, setText } from "./dom.js";
import { merge } from "./facts.js";
import { drawTiles, drawCurves, drawBars, drawPlaces, drawNotices, drawRefusals } from "./panels.js";
import { drawMembers, forgetLines } from "./members.js";
import { showClient } from "./client.js";

const SIGNED_IN = "artesian-signed-in"; // a mark that it is worth asking for the session; no secret
const runs = document.querySelector('meta[name="artesian"]').content === "runs";
const sources = new Map();
let session = null, stream = null, focus = null, chosen = null, path = [], waiting = false, heard = 0, announced = 0;

async function ask(place, options = {}) {
  const response = await fetch(place, { cache: "no-store", ...options });
  const told = response.headers.get("content-type")?.startsWith("application/json") ? await response.json() : null;
  if (!response.ok) throw Object.assign(new Error(told?.rule ? `${told.rule}. ${told.remedy}.` : `The server answered ${response.status}.`), { status: response.status });
  return told;
}

const post = (place, body) => ask(place, { method: "POST", headers: { "content-type": "application/json", "artesian-csrf": session?.csrf || "" }, body: JSON.stringify(body) });

function remember(signed) {
  try { if (signed) localStorage.setItem(SIGNED_IN, "1"); else localStorage.removeItem(SIGNED_IN); } catch { /* a browser that keeps nothing asks for the token again */ }
}

function remembered() {
  try { return localStorage.getItem(SIGNED_IN) === "1"; } catch { return false; }
}

// signing in and out

function showLogin(problem = "") {
  stream?.close();
  stream = session = null;
  sources.clear();
  remember(false);
  show("login", true);
  for (const id of ["page", "logout", "status", "rollback"]) show(id, false);
  setText(find("login-error"), problem);
  find("client").close();
  find("token").focus();
}

function enter(told) {
  session = told;
  if (!runs) remember(true);
  show("login", false);
  show("page", true);
  show("status", true);
  show("logout", !runs);
  show("rollback", Boolean(session.acts));
  connect();
}

find("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const field = find("token");
  setText(find("login-error"), "");
  try {
    const told = await post("page/login", { token: field.value.trim() });
    field.value = "";
    enter(told);
    find("main").focus({ preventScroll: true });
  } catch (error) {
    setText(find("login-error"), error.message);
    field.select();
    field.focus();
  }
});

find("logout").addEventListener("click", async () => {
  try { await post("page/logout", {}); } catch { /* it is over already */ }
  showLogin();
});

// the stream

function connect() {
  say("Connecting", "");
  stream = new EventSource("page/events");
  stream.addEventListener("facts", (event) => { heard = Date.now(); take(JSON.parse(event.data)); });
  stream.addEventListener("over", () => showLogin("Your session is over. Sign in again."));
  stream.onopen = () => say("Live", "live");
  stream.onerror = () => {
    say("No connection. Trying again", "lost");
    if (stream.readyState === EventSource.CLOSED) retry();
  };
}

/** A stream that was refused is over for a browser: find out why, and try again. */
async function retry() {
  try { await ask("page/session"); setTimeout(connect, 3000); } catch (error) {
    if (error.status === 401) showLogin("Your session is over. Sign in again."); else setTimeout(retry, 3000);
  }
}

function say(text, kind) {
  find("status").className = `status ${kind}`;
  setText(find("status"), text);
}

function take(told) {
  const news = merge(sources, told);
  if (!focus || !sources.has(focus)) focus = [...sources.keys()][0];
  if (told.whole) offerSources();
  const source = sources.get(focus);
  if (source && !source.about.live && [...sources.values()].every((one) => !one.about.live)) say("Finished", "live");
  announce(news.filter((one) => one.kind === "alarm" || one.kind === "drift"));
  schedule();
}

/** What matters is spoken, a few times a minute at the most. */
function announce(news) {
  if (!news.length || Date.now() - announced < 15000) return;
  announced = Date.now();
  const last = news[news.length - 1];
  setText(find("announce"), `${last.kind === "alarm" ? "Alarm" : "Drift"}: ${last.client} ${last.text}`);
}

function offerSources() {
  const select = find("focus");
  show("focus-label", sources.size > 1);
  select.replaceChildren(...[...sources.values()].map((one) => new Option(one.about.name, one.about.key, false, one.about.key === focus)));
}

find("focus").addEventListener("change", (event) => { focus = event.target.value; chosen = null; path = []; forgetLines(); draw(); });
find("kind").addEventListener("change", () => draw());

// drawing

function schedule() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; draw(); });
}

function draw() {
  const source = sources.get(focus);
  if (!source) return;
  const several = sources.size > 1;
  setText(find("title"), several ? `${sources.size} runs` : source.about.name);
  setText(find("subtitle"), several ? `${source.about.name}, ${source.about.algorithm}, below the curves` : source.about.algorithm);
  document.title = `${several ? "Runs" : source.about.name} - Artesian`;
  drawTiles(source);
  drawCurves(sources, source);
  drawBars(source);
  drawPlaces(source, chosen, path, open);
  drawMembers(source, open, () => draw());
  drawNotices(source, open);
  drawRefusals(source);
  find("rollback-to").max = source.totals.events ?? "";
  document.body.dataset.mark = String(Number(document.body.dataset.mark || 0) + 1);
}

new ResizeObserver(schedule).observe(find("main"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", schedule);

// one client

async function open(client) {
  const source = sources.get(focus);
  const where = `page/clients/${encodeURIComponent(client)}${runs ? `?source=${encodeURIComponent(focus)}` : ""}`;
  let history = [];
  try { history = await ask(where); } catch (error) { if (error.status === 401) { showLogin("Your session is over. Sign in again."); return; } }
  chosen = client;
  path = history.filter((one) => one.mixture).map((one) => one.mixture);
  showClient(source, client, history, session.acts ? act : null);
  schedule();
}

async function act(kind, client, why) {
  await post(`page/members/${encodeURIComponent(client)}/${kind}`, { why });
}

find("client").addEventListener("close", schedule); // its path stays on the map

find("rollback").addEventListener("submit", async (event) => {
  event.preventDefault();
  const to = Number(find("rollback-to").value), told = find("rollback-told");
  if (!window.confirm(`Bring back the state after event ${to}?`)) return;
  setText(told, "Rolling back");
  try {
    const done = await post("page/rollback", { to, why: find("rollback-why").value });
    setText(told, `Done: event ${done.event}, version ${done.version}.`);
  } catch (error) { setText(told, error.message); }
});

// the beginning

setInterval(() => { if (stream && !runs && Date.now() - heard > 40000 && heard) say("Quiet", "live"); schedule(); }, 5000);
if (runs) enter({ csrf: "", acts: false });
else if (remembered()) ask("page/session").then(enter, () => showLogin());
else showLogin();
