// Curves of the numbers of a stream by the images that it has seen, one picture for each.

const LONGEST = 10000;

// What is drawn first, in this order and in words: a name of a number, its title, and the guard whose bound belongs to it.
const KNOWN = [
  ["version", "published version"],
  ["guards agreement", "agreement with the source where that is sure", "agreement"],
  ["evidence", "evidence of late labels, log10"],
  ["guards marginal", "evenness of the predicted classes", "marginal"],
  ["guards marginal-of-source", "the same, in parts of the source's", "marginal-of-source"],
  ["entropy", "mean doubt of an answer, nats"],
  ["guards drift", "how far the parameters have moved", "drift"],
  ["anchor_distance", "distance from the anchors"],
  ["guards anchors", "the same, in parts of its least", "anchors"],
  ["seconds", "seconds for a learn batch"],
];

// Guards that are drawn under another name, and numbers that only count.
const LEFT_OUT = ["guards entropy", "seq", "batch", "images", "learned", "updates", "time"];

export class Curves {
  constructor(place) {
    this.place = place;
    this.place.replaceChildren();
    this.series = new Map();
    this.bounds = new Map();
    this.spans = []; // where the gate was open: [from, to]
    this.alarms = [];
    this.now = 0;
    this.first = null; // all curves begin here, so that one can be held against another
  }

  // Takes the numbers of a step.
  add(step) {
    const before = this.now;
    this.now = step.learned ?? this.now;
    this.first ??= this.now;
    if (step.source_answers === false) {
      const last = this.spans.at(-1);
      if (last && last[1] === before) last[1] = this.now;
      else this.spans.push([before, this.now]);
    }
    for (const [key, value] of Object.entries(step)) {
      if (value && typeof value === "object" && !Array.isArray(value)) {
        for (const [inner, number] of Object.entries(value)) this.point(`${key} ${inner}`, number);
      } else {
        this.point(key, value);
      }
    }
  }

  // Takes the evidence of labels. It spans hundreds of orders of magnitude, so its logarithm is drawn.
  label(labels) {
    if (labels.evidence > 0) this.point("evidence", Math.log10(labels.evidence));
  }

  alarm() { this.alarms.push(this.now); }

  bound(guard, value) { this.bounds.set(guard, value); }

  point(name, value) {
    if (typeof value !== "number" || !Number.isFinite(value) || LEFT_OUT.includes(name)) return;
    const points = this.series.get(name) ?? [];
    if (points.length && points.at(-1)[0] === this.now) points.pop();
    points.push([this.now, value]);
    if (points.length > LONGEST) points.shift();
    this.series.set(name, points);
  }

  draw() {
    const rank = (name) => {
      const at = KNOWN.findIndex(([known]) => known === name);
      return at < 0 ? KNOWN.length : at;
    };
    const names = [...this.series.keys()].sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
    names.forEach((name, at) => {
      const points = this.series.get(name);
      let figure = [...this.place.children].find((figure) => figure.dataset.name === name);
      if (!figure) {
        figure = document.createElement("figure");
        figure.dataset.name = name;
        const caption = document.createElement("figcaption");
        caption.append(document.createElement("span"), document.createElement("b"));
        figure.append(caption, document.createElement("canvas"));
      }
      if (this.place.children[at] !== figure) this.place.insertBefore(figure, this.place.children[at] ?? null);
      const [, title = name.replace("losses ", "loss: "), guard] = KNOWN[rank(name)] ?? [];
      const [caption, canvas] = figure.children;
      caption.firstChild.textContent = title;
      caption.lastChild.textContent = short(points.at(-1)[1]);
      canvas.role = "img";
      canvas.ariaLabel = `${title}, by images; now ${short(points.at(-1)[1])}`;
      this.line(canvas, points, name === "evidence" ? Math.log10(20) : this.bounds.get(guard));
    });
  }

  line(canvas, points, bound) {
    const scale = devicePixelRatio;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!width) return;
    canvas.width = width * scale;
    canvas.height = height * scale;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    const style = getComputedStyle(canvas);
    const colour = (name) => style.getPropertyValue(name);
    const first = Math.min(this.first ?? points[0][0], points[0][0]);
    const last = Math.max(this.now, points.at(-1)[0]);
    const [left, top, right, bottom] = [52, 8, width - 10, height - 20];
    const across = (x) => left + ((x - first) / (last - first || 1)) * (right - left);
    pen.fillStyle = colour("--open");
    for (const [from, to] of this.spans) {
      if (to <= first) continue;
      const start = across(Math.max(from, first));
      pen.fillRect(start, top, across(to) - start, bottom - top);
    }
    let low = Infinity;
    let high = -Infinity;
    for (const [, value] of points) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    // A bound is drawn unless the curve would be a flat line far away from it.
    const near = bound !== undefined && bound < 5 * Math.max(high, 0.05) && bound > low - 5 * Math.max(high - low, 0.2);
    if (near) [low, high] = [Math.min(low, bound), Math.max(high, bound)];
    if (low === high) [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) / 10, high + Math.abs(high) / 10];
    const up = (value) => bottom - ((value - low) / (high - low)) * (bottom - top);
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = style.color;
    pen.strokeStyle = colour("--line");
    pen.textAlign = "right";
    const straight = (fromX, fromY, toX, toY) => {
      pen.beginPath();
      pen.moveTo(fromX, fromY);
      pen.lineTo(toX, toY);
      pen.stroke();
    };
    for (const value of [low, (low + high) / 2, high]) {
      straight(left, up(value), right, up(value));
      pen.fillText(short(value), left - 4, up(value) + 4);
    }
    pen.fillText(last.toLocaleString("en"), right, height - 5);
    pen.textAlign = "left";
    pen.fillText(first.toLocaleString("en"), left, height - 5);
    pen.lineWidth = 1.5;
    if (near) {
      pen.strokeStyle = colour("--warn");
      pen.setLineDash([6, 4]);
      straight(left, up(bound), right, up(bound));
      pen.setLineDash([]);
    }
    pen.strokeStyle = colour("--bad");
    for (const at of this.alarms.filter((at) => at >= first)) straight(across(at), top, across(at), bottom);
    pen.strokeStyle = colour("--curve");
    pen.beginPath();
    // A curve has no more points than columns to draw them in.
    const every = Math.max(1, Math.floor(points.length / (2 * width)));
    points.forEach(([x, value], index) => {
      if (index % every && index !== points.length - 1) return;
      if (index === 0) pen.moveTo(across(x), up(value)); else pen.lineTo(across(x), up(value));
    });
    pen.stroke();
    if (points.length === 1) {
      pen.fillStyle = colour("--curve");
      pen.fillRect(across(points[0][0]) - 1.5, up(points[0][1]) - 1.5, 3, 3);
    }
  }
}

// Writes a number in few characters.
export function short(value) {
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e7) return value.toLocaleString("en");
  if (size >= 1e5 || size < 1e-3) return value.toExponential(1);
  return String(Number(value.toPrecision(size >= 1000 ? 4 : 3)));
}
