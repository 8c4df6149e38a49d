// One client of an Artesian federation, in plain JavaScript: Node 18 or later, no packages.
//
//   ARTESIAN_TOKEN=artesian_enrol_... node client.mjs URL HOME [TIMES] [DATA.json]
//
// It learns a softmax regression (dense.weight, dense.bias) from {"x": [[...], ...], "y": [0, 1, ...]}: joins, trains the
// model it is given, uploads, and keeps what it is given next in HOME/task.safetensors. Kill it anywhere and start it again.
// With TIMES 0 it trains and uploads nothing: it draws the model that the server has for it now into HOME/drawn.safetensors.
// It follows the recipe `train` with gradient descent, and asks the gate of a task for its mixture. Whatever else a task asks for (another recipe, Adam, a mask, ...) it
// refuses by name: a task that is followed by half would spoil the federation.

import { createHash, randomBytes } from "node:crypto";
import * as fs from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

const [url, home, times = "1", data] = process.argv.slice(2);
const token = process.env.ARTESIAN_TOKEN;
const PATIENCE = 60; // seconds of trying again
const TINY = { x: [[2, 1], [1, 2], [2, 2], [3, 1], [-2, -1], [-1, -2], [-2, -2], [-3, -1]], y: [1, 1, 1, 1, 0, 0, 0, 0] };
const { x, y } = data ? JSON.parse(fs.readFileSync(data)) : TINY;

// At home: every file is whole or not there, and what is sent was saved before.
const at = (name) => `${home}/${name}`;
const read = (name) => (fs.existsSync(at(name)) ? fs.readFileSync(at(name)) : null);
const drop = (name) => fs.rmSync(at(name), { force: true });
function save(name, bytes) {
  fs.writeFileSync(at(name + ".tmp"), bytes, { mode: 0o600, flush: true });
  fs.renameSync(at(name + ".tmp"), at(name));
}

// A message: 8 bytes of length, a JSON header, float32 vectors.
function decode(bytes) {
  const start = 8 + Number(bytes.readBigUInt64LE(0));
  const { __metadata__, ...tensors } = JSON.parse(bytes.subarray(8, start));
  const { format, body } = JSON.parse(__metadata__.artesian);
  if (format !== 1) throw new Error(`this client reads format 1, not ${format}`);
  const vector = ([from, to]) => new Float32Array(new Uint8Array(bytes.subarray(start + from, start + to)).buffer);
  for (const [name, { $tensor }] of Object.entries(body.models)) body.models[name] = vector(tensors[$tensor].data_offsets);
  return body;
}
function encode(body, name, vector) {
  const told = { ...body, models: { [name]: { $tensor: `models/${name}` } } };
  const tensor = { dtype: "F32", shape: [vector.length], data_offsets: [0, vector.byteLength] };
  const artesian = JSON.stringify({ format: 1, kind: "upload", body: told });
  let header = Buffer.from(JSON.stringify({ __metadata__: { artesian }, [`models/${name}`]: tensor }));
  header = Buffer.concat([header, Buffer.alloc(-header.length & 7, " ")]);
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  return Buffer.concat([length, header, Buffer.from(vector.buffer)]);
}

// What this client can follow of a task: each setting with a check, and what to say where it fails. Unknown ones are refused.
const FOLLOWS = {
  optimizer: [(value) => value === "sgd", "gradient descent (sgd)"],
  rate: [(value) => value > 0, "a rate above 0"],
  epochs: [(value) => Number.isInteger(value) && value >= 1, "whole epochs"],
  batch: [(value) => Number.isInteger(value) && value >= 1, "whole batches"],
  momentum: [(value) => value >= 0 && value < 1, "momentum from 0 to 1"],
  decay: [(value) => value >= 0, "weight decay from 0 on"],
  schedule: [(value) => ["constant", "linear", "cosine"].includes(value), "the schedules constant, linear and cosine"],
  cooling: [() => true, ""], // the server has multiplied the rate by it
  seed: [() => true, ""], // of the order of samples in mini-batches: any order is as good
  prox: [(value) => value >= 0, "a pull from 0 on"],
  delta: [(value) => typeof value === "boolean", "delta true or false"],
  sparsity: [(value) => value === 0, "no mask of small weights"],
  keep: [(value) => !value, "no model kept beside the task"],
  labels: [(value) => !value, "no count of labels kept"],
  gate: [() => true, ""], // tells this client's mixture; one that it cannot ask is left out
  clusters: [() => true, ""], // the names of its answers
  keep_optimizer_state: [(value) => !value, "an optimiser that starts afresh in every task"],
};
function checkTask({ recipe, settings, models }) {
  if (recipe !== "train") throw new Error(`this client knows the recipe train, not ${recipe}`);
  if (Object.keys(models).length !== 1) throw new Error(`this client trains one model, not ${Object.keys(models).length}`);
  for (const [name, value] of Object.entries(settings)) {
    if (!Object.keys(FOLLOWS).includes(name)) throw new Error(`this client does not know the setting ${name}`);
    const [follows, can] = FOLLOWS[name];
    if (!follows(value)) throw new Error(`the task asks for ${name} = ${JSON.stringify(value)}; this client follows ${can}`);
  }
}
const SCHEDULES = { constant: () => 1, linear: (done) => 1 - done, cosine: (done) => (1 + Math.cos(Math.PI * done)) / 2 };

// The recipe `train`: descend the mean cross-entropy + prox/2 ||w - given||^2; send the model, or its change.
function train(given, layout, settings) {
  const { rate, epochs, batch, momentum = 0, decay = 0, schedule = "constant", prox = 0, delta = false } = settings;
  const [weight, offset] = layout.entries; // rows of features, columns of classes; then one number for each class
  if (weight?.name !== "dense.weight" || offset?.name !== "dense.bias") throw new Error("this is no softmax regression");
  const [classes] = offset.shape, w = Float64Array.from(given), velocity = w.map(() => 0), bias = given.length - classes;
  for (let epoch = 0; epoch < epochs; epoch++) {
    const order = shuffled(x.length), step = rate * SCHEDULES[schedule](epoch / epochs);
    for (let first = 0; first < order.length; first += batch) {
      const rows = order.slice(first, first + batch);
      const slope = w.map((value, i) => prox * (value - given[i]) + decay * value);
      for (const n of rows) {
        const score = [...w.subarray(bias)].map((b, k) => x[n].reduce((s, v, i) => s + v * w[i * classes + k], b));
        const power = score.map((s) => Math.exp(s - Math.max(...score))), total = power.reduce((a, b) => a + b);
        power.forEach((p, k) => {
          const error = (p / total - (k === y[n])) / rows.length;
          x[n].forEach((v, i) => (slope[i * classes + k] += error * v));
          slope[bias + k] += error;
        });
      }
      slope.forEach((s, i) => (w[i] -= step * (velocity[i] = momentum * velocity[i] + s)));
    }
  }
  return Float32Array.from(w, (value, i) => (delta ? value - given[i] : value)); // all entries are floats here
}
function shuffled(count) {
  const order = Array.from({ length: count }, (_, i) => i);
  for (let i = count - 1; i > 0; i--) {
    const other = Math.floor(Math.random() * (i + 1));
    [order[i], order[other]] = [order[other], order[i]];
  }
  return order;
}

// A gate is a classifier of clusters that comes with a task. Asked about every sample, it tells the shares of clusters in them:
// scores linear in 32 random features and a 1, alone and once more for the sample's label; then expectation maximisation.
const FEATURES = 32, LABELS = 32, ROUNDS = 100, LEAST = 1e-3;
function mixture({ gate, clusters }) {
  if (gate?.features !== "hashed" || !gate.classes) return null; // none, or of another kind: the server goes by what it knows
  const many = gate.clusters, weights = halves(Buffer.from(gate.weights, "base64"));
  const answers = x.map((row, n) => {
    const inputs = row.map((value) => (value - gate.shift) / gate.scale), label = gate.classes === LABELS ? y[n] % LABELS : y[n];
    const seen = Array.from({ length: FEATURES }, (_, j) => {
      const sum = inputs.reduce((s, value, i) => s + value * hashed(i * FEATURES + j + 1), 0);
      return Math.max(0, sum / Math.sqrt(row.length) + hashed(row.length * FEATURES + j + 1) / 2);
    }).concat(1);
    const score = new Array(many).fill(0);
    seen.forEach((value, j) => {
      const own = label < gate.classes ? seen.length + j * gate.classes + label : null; // the row of this feature and label
      for (let k = 0; k < many; k++) score[k] += value * (weights[j * many + k] + (own === null ? 0 : weights[own * many + k]));
    });
    return score.map((s) => Math.exp(s - Math.max(...score)));
  });
  let shares = new Array(many).fill(1 / many);
  for (let round = 0; round < ROUNDS; round++) {
    const sums = new Array(many).fill(0);
    for (const answer of answers) {
      const weighed = answer.map((a, k) => a * shares[k]), total = weighed.reduce((a, b) => a + b);
      weighed.forEach((value, k) => (sums[k] += value / total / answers.length));
    }
    shares = sums;
  }
  shares = shares.map((share) => Math.max(share, LEAST));
  const total = shares.reduce((a, b) => a + b);
  return Object.fromEntries(clusters.map((name, k) => [name, shares[k] / total]));
}
function hashed(n) { // the same random number for everybody: mean 0, variance 1
  n = Math.imul(n ^ (n >>> 16), 0x85ebca6b);
  n = Math.imul(n ^ (n >>> 13), 0xc2b2ae35);
  return Math.sqrt(12) * ((((n ^ (n >>> 16)) >>> 0) + 0.5) / 2 ** 32 - 0.5);
}
function halves(bytes) { // float16, little-endian
  return Float64Array.from({ length: bytes.length / 2 }, (_, i) => {
    const bits = bytes.readUInt16LE(2 * i), power = (bits >> 10) & 31, rest = (bits & 1023) / 1024;
    return (bits >> 15 ? -1 : 1) * (power ? (1 + rest) * 2 ** (power - 15) : rest * 2 ** -14);
  });
}

// HTTP: what may pass is tried again, after as long as the server asks for and a little more by chance.
class Later extends Error {}
class Refused extends Error {}
async function request(method, path, credential, body, headers = {}) {
  const options = { method, body, headers: { authorization: `Bearer ${credential}`, ...headers } };
  let answer, bytes;
  try {
    answer = await fetch(url + path, options);
    bytes = Buffer.from(await answer.arrayBuffer());
  } catch (error) {
    throw new Later(`no answer: ${error.cause ?? error}`);
  }
  const { status } = answer, tag = answer.headers.get("etag");
  if ([408, 429].includes(status) || status >= 500)
    throw Object.assign(new Later(`status ${status}`), { after: Number(answer.headers.get("retry-after")) || 0 });
  if (!answer.ok) throw Object.assign(new Refused(`${status} ${bytes}`), { status });
  if (tag && tag !== `"${createHash("sha256").update(bytes).digest("hex")}"`) throw new Later("a garbled answer");
  return { status, bytes, headers: answer.headers };
}
async function patiently(attempt) {
  const end = performance.now() + 1000 * PATIENCE;
  for (let turn = 0; ; turn++) {
    try {
      return await attempt(turn);
    } catch (error) {
      const pause = 1000 * Math.max(error.after ?? 0, Math.min(10, 0.1 * 2 ** turn)) * (1 + Math.random() / 2);
      if (!(error instanceof Later) || performance.now() + pause > end) throw error;
      await sleep(pause);
    }
  }
}

// Who we are is made once and saved before anybody hears of it.
fs.mkdirSync(home, { recursive: true, mode: 0o700 });
if (!read("identity.json"))
  save("identity.json", JSON.stringify({ client: randomBytes(8).toString("hex"), secret: randomBytes(32).toString("hex") }));
const { client, secret } = JSON.parse(read("identity.json"));
const place = `/v1/clients/${client}`;
const layout = JSON.parse((await patiently(() => request("GET", "/v1/federation", token))).bytes).layout;

const keep = (bytes) => (save("task.safetensors", bytes), decode(bytes));
async function openTask() { // joining again is harmless, and tells the open task
  let { status, bytes } = await request("PUT", place, token, JSON.stringify({ samples: x.length, secret }));
  while (status !== 200) ({ status, bytes } = await request("GET", `${place}/task?wait=30`, secret));
  return keep(bytes);
}

if (Number(times) === 0) { // a draw between uploads: the open task stays as it is, and the next training begins there
  if (!read("task.safetensors")) await patiently(openTask);
  const { bytes, headers } = await patiently(() => request("GET", `${place}/model`, secret));
  save("drawn.safetensors", bytes);
  console.log(JSON.stringify({ client, drawn: headers.get("etag"), moved: headers.get("artesian-moved") }));
}

let task = null;
for (let turn = 0; turn < Number(times); turn++) {
  task ??= await patiently(openTask);
  let body = read("upload.safetensors"); // of an earlier life, perhaps
  if (!body) {
    checkTask(task);
    const [[name, given]] = Object.entries(task.models);
    const told = { client, number: task.number, samples: x.length, mixture: mixture(task.settings), metrics: {} };
    save("upload.safetensors", (body = encode(told, name, train(given, layout, task.settings))));
  }
  const { number } = decode(body);
  const digest = `sha-256=:${createHash("sha256").update(body).digest("base64")}:`;
  try {
    task = await patiently(async (again) => {
      const open = again ? await openTask() : task;
      if (number < open.number) return open; // it was taken, and its answer lost
      const sent = await request("PUT", `${place}/uploads/${number}`, secret, body, { "repr-digest": digest });
      return sent.status === 200 ? keep(sent.bytes) : null; // 202: a round is open
    });
    console.log(JSON.stringify({ client, uploaded: number, mixture: task?.mixture ?? null }));
  } catch (error) {
    if (![404, 409, 422].includes(error.status)) throw error;
    console.error(`upload ${number} will never be taken: ${error.message}`);
    task = null;
  }
  drop("upload.safetensors");
}
