// The page of a service: its streams, and of one stream the curves, guards, versions, events and the buttons that change it.

import { Curves, short } from "./curves.js";

const find = (id) => document.getElementById(id);
let token = sessionStorage.getItem("token") ?? "";
let chosen = null;
let watching = null;
let curves = null;

const MEANING = {
  off: "the source answers, and nothing is learned",
  shadow: "the source answers; learning goes on and is compared",
  canary: "a share of the requests is answered by the adapted weights",
  active: "the adapted weights answer, once the stream has warmed",
  frozen: "the version of now answers, and nothing is learned",
};

// The guards whose values have to stay below their bounds; those of all others stay above.
const MOST = ["drift", "anchors"];

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

function element(name, content, kind = "") {
  const made = document.createElement(name);
  made.append(content);
  if (kind) made.className = kind;
  return made;
}

const cell = (content, kind) => element("td", content, kind);
const count = (number) => number.toLocaleString("en");
const shown = (value) => (typeof value === "number" ? short(value) : "");

function row(...cells) {
  const made = document.createElement("tr");
  made.append(...cells);
  return made;
}

function button(text, act) {
  const made = element("button", text);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}

// ------------------------------------------------------------------------------------------ streams

async function showStreams() {
  const rows = [];
  for (const { name: model } of (await read("v2/models")).models) {
    const { streams } = await read(`v2/models/${encodeURIComponent(model)}/streams`);
    for (const one of streams) {
      const name = cell(element("button", one.stream));
      const made = row(cell(model), name, cell(modeOf(one), one.mode), cell(one.health, one.health));
      made.append(cell(count(one.accepted)), cell(count(one.learned)), cell(count(one.weights_version)));
      made.ariaSelected = String(chosen?.model === model && chosen?.stream === one.stream);
      made.addEventListener("click", () => choose({ model, stream: one.stream }));
      rows.push(made);
      if (!chosen) choose({ model, stream: one.stream });
    }
  }
  find("streams").tBodies[0].replaceChildren(...rows);
  find("none").hidden = rows.length > 0;
}

function modeOf(one) {
  if (one.mode === "canary") return `canary ${one.share}`;
  if (one.mode === "frozen" && one.version !== null) return `frozen at ${one.version}`;
  return one.mode;
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
  refresh();
  watch(stream, watching.signal);
}

// Says who answers, which follows from mode, health and what is published.
function answering(one) {
  const fits = one.health === "cooling" ? "" : ", which fits";
  const version = one.weights_version ? `version ${count(one.weights_version)}` : `the source${fits}`;
  if (one.health === "failed" || one.mode === "off" || one.mode === "shadow") return "the source";
  if (one.mode === "frozen") return one.version ? `version ${count(one.version)}` : "the source";
  if (one.health === "idle" || one.health === "warming") return "the source, until it has warmed";
  if (one.mode === "canary") return one.health === "cooling" ? "the source" : `${version}, for a share of ${one.share}`;
  return version;
}

function showState(one) {
  const { adapted_right: adapted, source_right: source, evidence } = one.labels;
  const facts = [
    ["Mode", modeOf(one), one.mode],
    ["Health", one.health, one.health],
    ["Who answers", answering(one)],
    ["Images accepted", count(one.accepted)],
    ["Learned from", count(one.learned)],
    ["Waiting", count(one.pending)],
    ["Late labels", `${count(adapted)} to ${count(source)}, evidence ${shown(evidence)}`],
    ["Log", `${shown(one.log_bytes / 1e6)} MB`],
  ];
  find("state").replaceChildren(...facts.map(([name, value, kind]) => {
    const fact = document.createElement("div");
    fact.append(element("dt", name), element("dd", value, kind));
    if (name === "Late labels") {
      fact.title = `where the two differ, the adapted weights were right ${count(adapted)} times and the source ${count(source)} times`;
    }
    return fact;
  }));
}

function showGuards(guards) {
  find("guards").tBodies[0].replaceChildren(...guards.map((guard) => {
    const kind = guard.alarmed ? "alarmed" : "";
    const value = guard.value === null ? "not yet" : shown(guard.value);
    const bound = `${MOST.includes(guard.name) ? "at most" : "at least"} ${shown(guard.bound)}`;
    return row(cell(guard.name), cell(value), cell(bound), cell(guard.alarmed ? "beyond" : "", kind));
  }));
}

// Buttons are made again only where versions changed, so that none vanishes under somebody's hands.
function showVersions(one) {
  const table = find("versions");
  const state = JSON.stringify([pathOf(chosen), one.kept]);
  if (table.dataset.state === state) return;
  table.dataset.state = state;
  const rows = [...one.kept].reverse().map((kept) => {
    const acts = cell(button("Roll back", () => rollBack(kept.version)));
    acts.append(" ", button("Save", () => save(kept.version)));
    const [word, kind] = kept.good ? ["good", "good"] : ["too new", ""];
    return row(cell(count(kept.version)), cell(count(kept.after)), cell(word, kind), acts);
  });
  rows.push(row(cell("source"), cell(""), cell(""), cell(button("Roll back", () => rollBack("source")))));
  table.tBodies[0].replaceChildren(...rows);
}

async function showOne() {
  if (!chosen) return;
  const stream = chosen;
  const one = await read(pathOf(stream));
  if (stream !== chosen) return;
  showState(one);
  showGuards(one.guards);
  showVersions(one);
  for (const guard of one.guards) curves.bound(guard.name, guard.bound);
  curves.draw();
  // What an operator is about to choose is not changed under their hands.
  if (!find("one").dataset.filled) {
    find("one").dataset.filled = "yes";
    find("mode").value = one.mode;
    if (one.share !== undefined) find("share").value = one.share;
    explain();
  }
}

function explain() {
  const mode = find("mode").value;
  find("share-label").hidden = mode !== "canary";
  find("meaning").textContent = MEANING[mode] ?? "";
}
find("mode").addEventListener("change", explain);

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

function rollBack(to) {
  const name = to === "source" ? "the source" : `version ${to}`;
  if (!confirm(`Roll ${chosen.stream} back to ${name}? What came later is forgotten.`)) return;
  change("rollback", { to, reason: "on the page" });
}

async function save(version) {
  try {
    const answer = await ask(`${pathOf(chosen)}/versions/${version}/model`);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await answer.blob());
    link.download = `${chosen.stream}-${version}.safetensors`;
    link.click();
    URL.revokeObjectURL(link.href);
  } catch (error) {
    find("outcome").textContent = `save: ${error.message}`;
  }
}

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
  let data = {};
  try { data = JSON.parse(field("data").join("\n")); } catch { /* shown as it is */ }
  if (kind === "step") curves.add(data);
  else if (kind === "labels") curves.label(data);
  else note(kind, data);
  return id;
}

function note(kind, data) {
  if (kind === "alarm") curves.alarm();
  const line = element("li", element("time", new Date(data.time).toLocaleTimeString()), kind === "alarm" ? "alarmed" : "");
  line.append(inWords(kind, data));
  const list = find("events");
  list.prepend(line);
  while (list.children.length > 200) list.lastChild.remove();
}

const modeInWords = (mode) => (typeof mode === "object" ? Object.entries(mode)[0].join(" ") : mode);

function inWords(kind, data) {
  if (kind === "alarm") return `alarm of the guard ${data.guard}: ${data.reason}`;
  if (data.mode !== undefined) return `mode ${modeInWords(data.mode)}, was ${modeInWords(data.from)}, by ${data.by}`;
  if (data.health !== undefined) return `${data.health}, was ${data.from}: ${data.cause}`;
  if (data.rollback !== undefined) return `rolled back to ${data.rollback ? `version ${data.rollback}` : "the source"}: ${data.cause}`;
  if (data.deleted) return `deleted by ${data.by}`;
  return `${kind}: ${JSON.stringify(data)}`;
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
