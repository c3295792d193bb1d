// The chart of iteration times: mount(element) draws it into an element with data-job, data-attempt and, if it likes,
// data-around. uPlot draws the lines (vendor/uplot); marks of irregular iterations and verdicts are ours.

import { colour, count, duration, fetchJson, jobAddress, make, numbers, onBlamed, onIteration, onNewest, onScheme, query, styleSheet, tellIteration } from "./heat_map/shared.js";
import uPlot from "./vendor/uplot/uPlot.esm.js";

const FEW = 2_000;
const ALL = 100_000;
const LISTED = 10;
const AGAIN = 20; // of the newest iterations are asked for again with those behind them: they may be judged anew
const HEIGHT = 220;
const LEGEND_PX = 34;

export async function mount(element) {
  if (!element.dataset.job) throw new Error("data-job must be the name of a job; got none");
  element.dataset.attempt ||= "0";
  await Promise.all([styleSheet("../heat_map.css"), styleSheet("../vendor/uplot/uPlot.min.css")]);
  const chart = new Times(element);
  await chart.load(FEW);
  return chart;
}

class Times {
  constructor(element) {
    this.element = element;
    this.around = element.dataset.around || null;
    this.all = make("button", { type: "button", onclick: () => this.load(this.wanted === FEW ? ALL : FEW) });
    const whole = make("button", { type: "button", onclick: () => this.zoom(-Infinity, Infinity) }, "whole span");
    this.plot = make("div", { class: "it-plot", tabindex: "0", role: "application", "aria-roledescription": "line chart", "aria-label": "Iteration times" });
    this.status = make("p", { class: "it-status", role: "status" }, "Reading …");
    this.table = make("div", { class: "hm-scroll" });
    element.classList.add("it");
    element.replaceChildren(
      make("div", { class: "it-controls" }, whole, this.all), this.plot, this.status,
      make("p", { class: "it-help" }, "▼ irregular; bars: verdicts; dashes: mean of the window before. Drag to zoom, double click for all; with keys: "
        + "arrows move, + and − zoom, Enter shows the iteration in the heat map."),
      this.table,
    );
    this.plot.addEventListener("keydown", (event) => this.key(event));
    this.plot.addEventListener("dblclick", () => this.zoom(-Infinity, Infinity));
    new ResizeObserver(() => this.chart?.setSize({ width: this.plot.clientWidth, height: HEIGHT - LEGEND_PX })).observe(this.plot);
    onScheme(() => this.data && this.draw());
    onIteration(element, (iteration) => this.pointAt(iteration, false));
    onNewest((newest) => this.follow(newest));
    onBlamed(() => {
      this.isOwed = true; // what can't be asked for now is asked for at the next look
      this.follow(-Infinity);
    });
  }

  async load(wanted) {
    try {
      const data = await fetchJson(`${jobAddress(this.element)}/iteration-times?${query({ around: this.around, iterations: wanted })}`);
      this.wanted = wanted;
      this.take(data);
    } catch (error) {
      this.element.dataset.state = "failed";
      this.status.textContent = `Iteration times can't be shown: ${error.message}`;
    }
  }

  // Append what is behind the iterations that are here, if they reached up to the newest before.
  async follow(newest) {
    if (document.hidden || this.isAsking || !this.data || this.around !== null) return;
    if (!this.isOwed && newest <= this.x[this.x.length - 1]) return;
    const { isOwed } = this;
    this.isAsking = true;
    this.isOwed = false;
    try {
      const after = this.x[Math.max(0, this.x.length - 1 - AGAIN)];
      const behind = await fetchJson(`${jobAddress(this.element)}/iteration-times?${query({ after, first: this.x[0] })}`);
      if (behind.is_cut) await this.load(this.wanted);
      else this.append(behind, after);
    } catch {
      this.isOwed ||= isOwed; // the page itself says that it is old
    } finally {
      this.isAsking = false;
    }
  }

  append(behind, after) {
    const kept = this.x.findLastIndex((iteration) => iteration <= after) + 1;
    const from = Math.max(0, kept + numbers(behind.iterations).length - this.wanted);
    const joined = (old, came) => [...Array.from(old).slice(from, kept), ...came];
    const places = (name) => [
      ...this.data[name].filter((at) => at >= from && at < kept).map((at) => at - from),
      ...behind[name].map((at) => at + kept - from),
    ];
    this.hold({
      ...behind, iterations: joined(this.x, numbers(behind.iterations)), irregular: places("irregular"), untrained: places("untrained"),
      elapsed_us: joined(this.data.elapsed_us, behind.elapsed_us), reference_us: joined(this.data.reference_us, behind.reference_us),
      verdicts: { ...this.data.verdicts, ...behind.verdicts },
    });
    const { min, max } = this.chart.scales.x;
    this.chart.setData([this.x, this.elapsed, this.reference], !this.isZoomed);
    if (this.isZoomed) this.chart.setScale("x", { min: Math.max(min, this.x[0]), max });
    this.element.dataset.newest = this.x[this.x.length - 1];
  }

  take(data) {
    this.status.setAttribute("aria-live", "polite");
    this.hold(data);
    this.draw();
  }

  // What comes by itself is read to nobody: the page's own line tells of it.
  hold(data) {
    if (this.data) this.status.setAttribute("aria-live", "off");
    this.data = data;
    this.x = numbers(data.iterations);
    // One that never ended is stored as far as it came: it has no time.
    const unended = data.marks.filter(({ kind }) => kind === "hang" || kind === "mismatch");
    const isUnended = (iteration) => unended.some(({ first, past }) => iteration >= first && iteration < past);
    this.elapsed = data.elapsed_us.map((us, at) => (isUnended(this.x[at]) ? null : us / 1e3));
    this.reference = data.reference_us.map((us) => (us === null ? null : us / 1e3));
    this.all.hidden = this.wanted === FEW && this.x.length < FEW;
    this.all.textContent = this.wanted === FEW ? "all iterations" : `the newest ${FEW.toLocaleString("en")}`;
    this.status.textContent = this.summary();
    this.list();
  }

  summary() {
    const longest = this.elapsed.reduce((best, value, at) => (value > this.elapsed[best] ? at : best), 0);
    const ended = Float64Array.from(this.elapsed.filter((value) => value !== null)).sort();
    const middle = ended[ended.length >> 1] ?? 0;
    return `${count(this.x.length, "iteration")}, ${this.data.irregular.length.toLocaleString("en")} irregular; median `
      + `${duration(middle * 1e6)}, longest ${duration(this.elapsed[longest] * 1e6)} (iteration ${this.x[longest].toLocaleString("en")}).`;
  }

  list() {
    const longest = [...this.data.irregular].sort((one, other) => this.elapsed[other] - this.elapsed[one]).slice(0, LISTED);
    const isOpen = this.table.querySelector("details")?.open;
    const rows = longest.map((at) => make("tr", {},
      make("th", { scope: "row" }, this.x[at].toLocaleString("en")),
      make("td", { "data-label": "took" }, duration(this.elapsed[at] * 1e6)),
      make("td", { "data-label": "usual" }, this.reference[at] === null ? "none yet" : duration(this.reference[at] * 1e6)),
      make("td", { "data-label": "verdicts" }, this.verdictsIn(this.x[at]).join(", ") || "none"),
      make("td", {}, make("button", { type: "button", onclick: () => tellIteration(this.element, this.x[at], true) }, "in the heat map"))));
    const head = ["iteration", "took", "usual", "verdicts", ""].map((text) => make("th", { scope: "col" }, text));
    this.table.replaceChildren(...(rows.length ? [make("details", { open: isOpen }, make("summary", {}, "The longest irregular iterations"),
      make("table", { class: "stacked" }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows)))] : []));
  }

  // Verdicts whose cause was seen in an iteration, by the devices that they accuse first.
  verdictsIn(iteration) {
    return (this.data.verdicts[iteration] || []).map((id) => this.data.marks.find((mark) => mark.verdict_id === id)?.name || id);
  }

  draw() {
    this.chart?.destroy();
    const style = (name) => colour(this.element, `--hm-${name}`);
    this.colours = { odd: style("odd"), accused: style("accused"), dim: style("dim"), line: style("line"), bg: style("bg") };
    const axis = { stroke: style("dim"), grid: { stroke: style("line"), width: 1 }, ticks: { stroke: style("line") }, font: "12px system-ui, sans-serif" };
    // Where nobody points at an iteration, the legend has the newest.
    const told = (write) => (chart, value, series, at) => {
      const one = at === null || at === undefined ? chart.data[series].at(-1) : value;
      return one === null || one === undefined ? "–" : write(one);
    };
    const ms = told((value) => duration(value * 1e6));
    this.chart = new uPlot({
      width: this.plot.clientWidth || 600, height: HEIGHT - LEGEND_PX,
      scales: { x: { time: false } },
      axes: [{ ...axis }, { ...axis, size: 66, values: (chart, ticks) => ticks.map((tick) => duration(tick * 1e6)) }],
      series: [
        { label: "iteration", value: told((value) => value.toLocaleString("en")) },
        { label: "took", stroke: style("fg"), width: 1, points: { show: false }, value: ms },
        { label: "usual", stroke: style("cursor"), width: 1, dash: [6, 4], points: { show: false }, value: ms },
      ],
      cursor: { drag: { x: true, y: false }, points: { size: 6 } },
      hooks: {
        draw: [(chart) => this.mark(chart)],
        setCursor: [(chart) => this.moved(chart)],
        setScale: [(chart, key) => { if (key === "x") this.isZoomed = chart.scales.x.max - chart.scales.x.min < this.x[this.x.length - 1] - this.x[0]; }],
      },
    }, [this.x, this.elapsed, this.reference], this.plot);
    this.chart.over.addEventListener("click", () => this.chosen());
    this.element.dataset.state = "painted";
    performance.mark("iteration-times-painted");
  }

  // Verdicts as bars with ends at the top, irregular iterations as triangles above their value.
  mark(chart) {
    const { ctx: context, bbox } = chart;
    const ratio = devicePixelRatio || 1;
    const right = bbox.left + bbox.width;
    context.save();
    context.beginPath();
    context.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    context.clip();
    context.fillStyle = this.colours.accused;
    this.data.marks.forEach((mark, number) => {
      const from = Math.max(bbox.left, chart.valToPos(mark.first - 0.5, "x", true));
      const to = Math.min(right, Math.max(from + 3 * ratio, chart.valToPos(mark.past - 0.5, "x", true)));
      if (to < bbox.left || from > right) return;
      const y = bbox.top + (3 + (number % 4) * 5) * ratio;
      context.globalAlpha = 1;
      context.fillRect(from, y, to - from, 2 * ratio);
      for (const x of [from, to - 1.5 * ratio]) context.fillRect(x, y - 2 * ratio, 1.5 * ratio, 6 * ratio);
      context.globalAlpha = 0.07;
      context.fillRect(from, bbox.top, to - from, bbox.height);
    });
    context.globalAlpha = 1;
    context.fillStyle = this.colours.odd;
    context.strokeStyle = this.colours.bg;
    let last = -Infinity;
    for (const at of this.data.irregular) {
      const x = chart.valToPos(this.x[at], "x", true);
      if (x < bbox.left || x > right || x - last < 2 * ratio) continue;
      last = x;
      const y = Math.max(bbox.top + 8 * ratio, chart.valToPos(this.elapsed[at], "y", true) - 3 * ratio);
      context.beginPath();
      context.moveTo(x - 4 * ratio, y - 7 * ratio);
      context.lineTo(x + 4 * ratio, y - 7 * ratio);
      context.lineTo(x, y);
      context.closePath();
      context.fill();
      context.stroke();
    }
    context.restore();
  }

  moved(chart) {
    const at = chart.cursor.idx;
    if (at === null || at === undefined || this.isTold) return;
    tellIteration(this.element, this.x[at]);
  }

  chosen() {
    const at = this.chart.cursor.idx;
    if (at !== null && at !== undefined) tellIteration(this.element, this.x[at], true);
  }

  pointAt(iteration, speaks) {
    if (!this.chart) return;
    if (speaks) this.status.setAttribute("aria-live", "polite");
    const at = this.nearest(iteration);
    this.isTold = true; // what others told is not told back
    this.chart.setCursor({ left: this.chart.valToPos(this.x[at], "x"), top: this.chart.valToPos(this.elapsed[at], "y") });
    this.isTold = false;
    if (!speaks) return;
    const odd = this.data.irregular.includes(at) ? ", irregular" : "";
    const took = this.elapsed[at] === null ? "does not end" : `took ${duration(this.elapsed[at] * 1e6)}`;
    this.status.textContent = `Iteration ${this.x[at].toLocaleString("en")} ${took}${odd}.`;
  }

  nearest(iteration) {
    let [from, to] = [0, this.x.length - 1];
    while (from < to) {
      const middle = (from + to) >> 1;
      if (this.x[middle] < iteration) from = middle + 1;
      else to = middle;
    }
    return from;
  }

  zoom(from, to) {
    const [first, last] = [this.x[0], this.x[this.x.length - 1]];
    this.chart?.setScale("x", { min: Math.max(first, from), max: Math.min(last, to) });
  }

  key(event) {
    if (!this.chart || event.ctrlKey || event.metaKey || event.altKey) return;
    const { min, max } = this.chart.scales.x;
    const at = this.chart.cursor.idx ?? this.nearest((min + max) / 2);
    const step = (event.shiftKey ? 10 : 1) * Math.max(1, Math.round((max - min) / this.plot.clientWidth));
    const middle = this.x[at];
    const acts = {
      ArrowLeft: () => this.walk(at - step), ArrowRight: () => this.walk(at + step),
      Home: () => this.walk(0), End: () => this.walk(this.x.length - 1),
      "+": () => this.zoom(middle - (middle - min) / 1.6, middle + (max - middle) / 1.6),
      "-": () => this.zoom(middle - (middle - min) * 1.6, middle + (max - middle) * 1.6),
      0: () => this.zoom(-Infinity, Infinity), Enter: () => tellIteration(this.element, middle, true),
    };
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  }

  walk(at) {
    const to = Math.min(this.x.length - 1, Math.max(0, at));
    const { min, max } = this.chart.scales.x;
    if (this.x[to] < min || this.x[to] > max) this.zoom(this.x[to] - (max - min) / 2, this.x[to] + (max - min) / 2);
    this.pointAt(this.x[to], true);
    tellIteration(this.element, this.x[to]);
  }
}
