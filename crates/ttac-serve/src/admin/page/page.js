// The page of a service: its streams, and of one stream the curves, guards, events and the buttons that change it.

import { Curves } from "./curves.js";

const find = (id) => document.getElementById(id);
let token = sessionStorage.getItem("token") ?? "";
let chosen = null;
let watching = null;
let curves = null;

// `EventSource` cannot send a token, hence `fetch` for events as well.
async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (token) headers.authorization = `Bearer ${token}`;
  const answer = await fetch(path, { ...options, headers });
  if (answer.status === 401) find("sign-in").hidden = false;
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({}));
    throw new Error(said.error ?? `status ${answer.status}`);
  }
  return answer;
}

const read = async (path) => (await ask(path)).json();
const pathOf = ({ model, stream }) =>
  `v2/models/${encodeURIComponent(model)}/streams/${encodeURIComponent(stream)}`;

function cell(text, kind = "") {
  const cell = document.createElement("td");
  cell.textContent = text;
  cell.className = kind;
  return cell;
}

const shown = (value) =>
  typeof value === "number" && !Number.isInteger(value) ? value.toPrecision(4) : String(value ?? "");

// ------------------------------------------------------------------------------------------ streams

async function showStreams() {
  const rows = [];
  for (const { name: model } of (await read("v2/models")).models) {
    const { streams } = await read(`v2/models/${encodeURIComponent(model)}/streams`);
    for (const one of streams) {
      const row = document.createElement("tr");
      const name = document.createElement("td");
      const button = document.createElement("button");
      button.textContent = one.stream;
      name.append(button);
      const mode = one.share === undefined ? one.mode : `${one.mode} ${one.share}`;
      row.append(cell(model), name, cell(mode, one.mode), cell(one.health, one.health));
      row.append(cell(one.accepted), cell(one.learned), cell(one.weights_version));
      row.ariaSelected = String(chosen?.model === model && chosen?.stream === one.stream);
      row.addEventListener("click", () => choose({ model, stream: one.stream }));
      rows.push(row);
      if (!chosen) choose({ model, stream: one.stream });
    }
  }
  find("streams").tBodies[0].replaceChildren(...rows);
  find("none").hidden = rows.length > 0;
}

// --------------------------------------------------------------------------------------- one stream

function choose(stream) {
  if (chosen?.model === stream.model && chosen?.stream === stream.stream) return;
  chosen = stream;
  watching?.abort();
  watching = new AbortController();
  curves = new Curves(find("curves"));
  find("events").replaceChildren();
  find("title").textContent = `${stream.model} / ${stream.stream}`;
  find("outcome").textContent = "";
  find("one").hidden = false;
  delete find("one").dataset.filled;
  showOne().catch(say);
  watch(stream, watching.signal);
}

async function showOne() {
  if (!chosen) return;
  const stream = chosen;
  const one = await read(pathOf(stream));
  if (stream !== chosen) return;
  const { adapted_right: adapted, source_right: source, evidence } = one.labels;
  find("state").textContent =
    `mode ${one.mode}, health ${one.health}; ${one.accepted} images accepted, ${one.learned} learned from, ` +
    `${one.pending} waiting; weights version ${one.weights_version}; ` +
    `late labels: adapted right ${adapted}, source right ${source}, evidence ${shown(evidence)}`;
  const rows = one.guards.map((guard) => {
    const row = document.createElement("tr");
    row.append(cell(guard.name), cell(shown(guard.value)), cell(shown(guard.bound)));
    row.append(cell(guard.alarmed ? "alarmed" : "", guard.alarmed ? "alarmed" : ""));
    return row;
  });
  find("guards").tBodies[0].replaceChildren(...rows);
  // What an operator is about to choose is not changed under their hands.
  const names = ["source", "good", ...one.kept.map((kept) => String(kept.version)).reverse()];
  const versions = find("version");
  if (names.join() !== [...versions.options].map((option) => option.value).join()) {
    versions.replaceChildren(...names.map((name) => new Option(name, name)));
  }
  if (!find("one").dataset.filled) {
    find("one").dataset.filled = "yes";
    find("mode").value = one.mode;
    if (one.share !== undefined) find("share").value = one.share;
    showShare();
  }
}

const showShare = () => { find("share-label").hidden = find("mode").value !== "canary"; };
find("mode").addEventListener("change", showShare);

async function change(what, body) {
  try {
    await ask(`${pathOf(chosen)}/${what}`, { method: "POST", body: JSON.stringify(body) });
    find("outcome").textContent = `${what}: done`;
    await refresh();
  } catch (error) {
    find("outcome").textContent = `${what}: ${error.message}`;
  }
}

find("set-mode").addEventListener("click", () => {
  const mode = find("mode").value;
  change("mode", mode === "canary" ? { mode, share: Number(find("share").value) } : { mode });
});

find("roll-back").addEventListener("click", () => {
  const to = find("version").value;
  if (!confirm(`Roll ${chosen.stream} back to ${to}?`)) return;
  change("rollback", { to: /^\d+$/.test(to) ? Number(to) : to, reason: "on the page" });
});

// -------------------------------------------------------------------------------------------- events

async function watch(stream, signal) {
  let last = null;
  while (!signal.aborted) {
    try {
      const headers = last === null ? {} : { "last-event-id": last };
      const answer = await ask(`${pathOf(stream)}/events`, { headers, signal });
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        text += value;
        const blocks = text.split("\n\n");
        text = blocks.pop();
        for (const block of blocks) last = take(block) ?? last;
        curves.draw();
      }
    } catch (error) {
      if (signal.aborted) return;
      say(error);
    }
    await new Promise((wake) => setTimeout(wake, 2000));
  }
}

// Takes one event, and returns its number.
function take(block) {
  const field = (name) => block.split("\n").filter((line) => line.startsWith(`${name}: `)).map((line) => line.slice(name.length + 2));
  const [id] = field("id");
  if (id === undefined) return null;
  const [kind] = field("event");
  const text = field("data").join("\n");
  let data = {};
  try { data = JSON.parse(text); } catch { /* shown as it is */ }
  if (kind === "step") {
    curves.add(data);
    return id;
  }
  const line = document.createElement("li");
  line.textContent = `${kind}: ${text}`;
  line.className = kind === "alarm" ? "alarmed" : "";
  const list = find("events");
  list.prepend(line);
  while (list.children.length > 200) list.lastChild.remove();
  return id;
}

// ------------------------------------------------------------------------------------------- refresh

function say(error) { find("connection").textContent = error.message; }

async function refresh() {
  try {
    await showStreams();
    await showOne();
    find("connection").textContent = `seen ${new Date().toLocaleTimeString()}`;
  } catch (error) {
    say(error);
  }
}

find("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  token = find("token").value.trim();
  sessionStorage.setItem("token", token);
  find("sign-in").hidden = true;
  refresh();
});

refresh();
setInterval(refresh, 2000);
