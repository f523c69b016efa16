// Curves of the numbers in events, one picture for each name.

const LONGEST = 10000;

// Numbers that count something; they say where a point lies, and make no curve.
const COUNTERS = ["learned", "seq", "batch", "images", "updates", "version", "time"];

export class Curves {
  constructor(place) {
    this.place = place;
    this.place.replaceChildren();
    this.series = new Map();
    this.steps = 0;
  }

  // Takes the numbers of an event; numbers in objects have the names of both.
  add(data, before = "", x = null) {
    if (!before) {
      this.steps += 1;
      x = data.learned ?? data.seq ?? this.steps;
    }
    for (const [key, value] of Object.entries(data)) {
      const name = before + key;
      if (typeof value === "number" && Number.isFinite(value)) {
        if (COUNTERS.includes(key)) continue;
        const points = this.series.get(name) ?? [];
        points.push([x, value]);
        if (points.length > LONGEST) points.shift();
        this.series.set(name, points);
      } else if (value && typeof value === "object" && !Array.isArray(value) && !before) {
        this.add(value, `${key} `, x);
      }
    }
  }

  draw() {
    for (const [name, points] of this.series) {
      let figure = [...this.place.children].find((figure) => figure.dataset.name === name);
      if (!figure) {
        figure = document.createElement("figure");
        figure.dataset.name = name;
        figure.append(document.createElement("figcaption"), document.createElement("canvas"));
        this.place.append(figure);
      }
      const [, last] = points.at(-1);
      figure.firstChild.textContent = `${name} ${last.toPrecision(4)}`;
      figure.lastChild.ariaLabel = `${name} by images`;
      this.line(figure.lastChild, points);
    }
  }

  line(canvas, points) {
    const scale = devicePixelRatio;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    canvas.width = width * scale;
    canvas.height = height * scale;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    const style = getComputedStyle(canvas);
    const values = points.map(([, value]) => value);
    let [low, high] = [Math.min(...values), Math.max(...values)];
    if (low === high) [low, high] = [low - Math.abs(low || 1) / 10, high + Math.abs(high || 1) / 10];
    const [first, last] = [points[0][0], points.at(-1)[0]];
    const [left, top, right, bottom] = [52, 8, width - 8, height - 20];
    const place = ([x, value]) => [
      left + ((x - first) / (last - first || 1)) * (right - left),
      bottom - ((value - low) / (high - low)) * (bottom - top),
    ];
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = style.color;
    pen.strokeStyle = style.getPropertyValue("--line");
    pen.textAlign = "right";
    for (const value of [low, (low + high) / 2, high]) {
      const [, y] = place([first, value]);
      pen.beginPath();
      pen.moveTo(left, y);
      pen.lineTo(right, y);
      pen.stroke();
      pen.fillText(value.toPrecision(3), left - 4, y + 4);
    }
    pen.fillText(String(last), right, height - 5);
    pen.textAlign = "left";
    pen.fillText(String(first), left, height - 5);
    pen.strokeStyle = style.getPropertyValue("--curve");
    pen.lineWidth = 1.5;
    pen.beginPath();
    // A curve has no more points than columns to draw them in.
    const every = Math.max(1, Math.floor(points.length / (2 * width || 1)));
    points.forEach((point, index) => {
      if (index % every && index !== points.length - 1) return;
      const [x, y] = place(point);
      if (index === 0) pen.moveTo(x, y); else pen.lineTo(x, y);
    });
    pen.stroke();
    if (points.length === 1) pen.fillRect(...place(points[0]), 3, 3);
  }
}
