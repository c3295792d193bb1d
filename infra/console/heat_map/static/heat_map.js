// The heat map rank × iteration: mount(element) draws it into an element with data-job, data-attempt and, if it likes,
// data-around (the iteration to begin with) and data-incidents (where incident pages stand, "/incidents/").

import { follow } from "./heat_map/following.js";
import { heardKeys, heardPointers } from "./heat_map/gestures.js";
import { coloursOf, drawCells, drawCursor, drawLegend, drawMargins, paletteOf, sized } from "./heat_map/painting.js";
import {
  count, duration, fetchJson, jobAddress, movesLittle, numbers, onBlamed, onIteration, onNewest, onScheme, query, shown, styleSheet, tellIteration,
} from "./heat_map/shared.js";
import { build, fillChoices, showDetails, showStrangest, showTip } from "./heat_map/telling.js";
import { Tiles } from "./heat_map/tiles.js";
import { View } from "./heat_map/view.js";

const EXACT_AFTER_MS = 150;
const AGAIN_MS = 2_500;
const MOVE_MS = 160;

export async function mount(element) {
  if (!element.dataset.job) throw new Error("data-job must be the name of a job; got none");
  element.dataset.attempt ||= "0";
  await styleSheet("../heat_map.css");
  const map = new HeatMap(element);
  await map.load(element.dataset.around || null);
  return map;
}

class HeatMap {
  constructor(element) {
    this.element = element;
    this.address = jobAddress(element);
    this.parts = build(element, this);
    this.quantity = this.orderName = "";
    this.around = this.pointed = this.focus = this.cursorColumn = this.data = this.order = this.strangest = null;
    this.accused = [];
    this.isFocused = this.isLive = this.isAsking = this.isOwed = false;
    this.frame = 0;
    this.followedAt = -Infinity;
    this.isDirty = true;
    this.setColours();
    onScheme(() => this.recolour());
    onIteration(element, (iteration, wantsCentre) => this.pointAt(iteration, wantsCentre));
    new ResizeObserver(() => this.resize()).observe(this.parts.plot);
    heardPointers(this.parts.over, this);
    heardKeys(this.parts.over, this);
    onNewest((newest) => follow(this, newest));
    onBlamed(() => follow(this, null, true));
  }

  // --- data

  async load(around, keepsView = false) {
    try {
      const data = await fetchJson(`${this.address}/heat-map?${query({ around })}`);
      this.around = around;
      this.isLive = data.last >= data.newest;
      if (keepsView && this.data?.version === data.version) return this.take(data);
      const shift = keepsView && this.data ? this.data.first : null;
      this.take(data);
      this.quantity ||= data.quantities[0].name;
      this.orderName ||= data.orders[0].name;
      fillChoices(this.parts, data, this);
      if (!this.view || this.view.rows !== data.ranks || this.view.columns !== this.iterations.length || shift === null) {
        this.view = new View(this.iterations.length, data.ranks);
        this.outermost = null;
      }
      this.resize();
      await this.choose(this.quantity, this.orderName);
      if (around !== null && shift === null) this.focusOn(this.columnOf(Number(around)), 0, false);
    } catch (error) {
      this.fail(error);
    }
  }

  take(data) {
    this.data = data;
    this.iterations = numbers(data.iterations);
    this.markAccused();
    this.draw();
  }

  get asked() {
    const { first, last, version } = this.data;
    return { first, last, version, quantity: this.quantity, order: this.orderName };
  }

  // `unchanged`: so many iterations from the first on are as they were, and so are ranks and their order.
  async choose(quantity, order, unchanged = 0) {
    [this.quantity, this.orderName] = [quantity, order];
    const [asked, before] = [this.asked, this.tiles];
    this.tiles = new Tiles(this.address, asked, () => this.tileCame(), (error) => this.fail(error));
    if (unchanged) this.tiles.inherit(before, unchanged, this.data.tile);
    before?.close();
    this.setOutermost();
    // What comes by itself is read to nobody: the page's own line tells of it.
    this.parts.status.setAttribute("aria-live", unchanged ? "off" : "polite");
    if (!unchanged) {
      this.scale = this.strangest = null;
      this.say("Reading …");
    }
    this.draw();
    const isStill = () => this.tiles.asked === asked;
    const rows = unchanged ? null : fetchJson(`${this.address}/heat-map/rows?${query(asked)}`).then((answer) => {
      if (!isStill()) return;
      this.order = { ...answer, ranks: numbers(answer.ranks) };
      this.rowOf = new Map();
      this.order.ranks.forEach((rank, row) => this.rowOf.set(rank, row));
      this.markAccused();
      this.draw();
    });
    const strangest = fetchJson(`${this.address}/heat-map/strangest?${query(asked)}`).then((answer) => {
      if (isStill()) this.strangest = answer;
    });
    try {
      await Promise.all([rows, strangest]);
    } catch (error) {
      return this.fail(error);
    }
    if (!isStill()) return;
    // A table that somebody is in by keys stays as it is.
    if (!unchanged || !this.parts.table.contains(document.activeElement)) showStrangest(this.parts, this);
    this.say(this.summary());
    this.draw();
  }

  get unit() {
    return this.data.quantities.find(({ name }) => name === this.quantity).unit;
  }

  summary() {
    const { ranks, first, last, irregular } = this.data;
    const worst = this.strangest.cells[0];
    const start = `${count(ranks, "rank")}, iterations ${first.toLocaleString("en")} to ${last.toLocaleString("en")}, `;
    const odd = `${irregular.length.toLocaleString("en")} irregular. `;
    if (!worst) return `${start}${odd}Nothing is beyond usual.`;
    return `${start}${odd}Furthest: rank ${worst.rank} in iteration ${this.iterations[worst.column]}, ${shown(worst.value, this.unit)}.`;
  }

  tileCame() {
    this.draw();
  }

  fail(error) {
    if (error.status === 410) {
      // The rows changed. The server shares its answers for two seconds: sooner it would tell of the old ones again.
      clearTimeout(this.again);
      this.again = setTimeout(() => (this.isLive ? follow(this, null, true) : this.load(this.around, true)), AGAIN_MS);
      return;
    }
    this.element.dataset.state = "failed";
    this.say(`The heat map can't be shown: ${error.message}`);
  }

  say(text) {
    if (this.parts.status.textContent !== text) this.parts.status.textContent = text;
  }

  // --- looks

  setColours() {
    this.palette = paletteOf(this.element);
    this.colours = coloursOf(this.element);
  }

  recolour() {
    this.setColours();
    this.tiles?.forgetPictures();
    this.draw();
  }

  resize() {
    const { clientWidth, clientHeight } = this.parts.plot;
    if (!this.view || !clientWidth) return;
    [this.wide, this.tall] = [clientWidth, clientHeight];
    this.view.resize(clientWidth, clientHeight);
    this.setOutermost();
    this.draw();
  }

  setOutermost() {
    const whole = new View(this.view.columns, this.view.rows);
    [whole.width, whole.height] = [this.view.width, this.view.height];
    this.outermost = whole.perBin;
    this.tiles?.keepAlways(this.outermost, whole.tiles(this.outermost, this.data.tile));
  }

  draw() {
    this.isDirty = true;
    this.drawOver();
  }

  drawOver() {
    this.frame ||= requestAnimationFrame(() => this.paint());
  }

  paint() {
    this.frame = 0;
    if (!this.view || !this.tiles || !this.wide) return;
    if (this.isDirty) {
      this.isDirty = false;
      this.want();
      const context = sized(this.parts.base, this.wide, this.tall);
      drawCells(context, this);
      drawMargins(context, this);
      this.note();
    }
    drawCursor(sized(this.parts.over, this.wide, this.tall), this);
    this.parts.over.classList.toggle("is-whole", this.view.isWhole);
  }

  want() {
    const { perBin } = this.view;
    const now = this.view.tiles(perBin, this.data.tile).map((at) => [perBin, at]);
    const whole = this.view.tiles(this.outermost, this.data.tile).map((at) => [this.outermost, at]);
    this.tiles.want(String(perBin) === String(this.outermost) ? now : [...whole, ...now]);
  }

  // Says when all that is on the screen has come, for those who wait for it, and draws the legend with the first tile.
  note() {
    const perBin = this.view.perBin;
    const all = this.view.tiles(perBin, this.data.tile);
    const first = all.map((at) => this.tiles.get(perBin, at)).find(Boolean);
    if (first && this.scale !== `${first.low}/${first.high}/${this.unit}/${this.colours.fg}`) {
      this.scale = `${first.low}/${first.high}/${this.unit}/${this.colours.fg}`;
      [this.low, this.high] = [first.low, first.high];
      drawLegend(this.parts.legend, this, first.low, first.high, this.unit);
    }
    const state = all.every((at) => this.tiles.has(perBin, at)) ? "painted" : "reading";
    if (this.element.dataset.state !== state) {
      this.element.dataset.state = state;
      if (state === "painted") performance.mark("heat-map-painted");
    }
  }

  markAccused() {
    this.accused = (this.data?.marks || []).map((mark) => {
      const rows = mark.ranks.map((rank) => this.rowOf?.get(rank)).filter((row) => row !== undefined).sort((a, b) => a - b);
      const runs = [];
      for (const row of rows) {
        const last = runs[runs.length - 1];
        if (last && last[1] === row) last[1] = row + 1;
        else runs.push([row, row + 1]);
      }
      return { ...mark, runs, from: this.columnOf(mark.first), to: this.columnOf(mark.past) };
    });
  }

  // --- cells

  // The first column whose iteration is not before this one.
  columnOf(iteration) {
    let [from, to] = [0, this.iterations.length];
    while (from < to) {
      const middle = (from + to) >> 1;
      if (this.iterations[middle] < iteration) from = middle + 1;
      else to = middle;
    }
    return from;
  }

  // The bin that a cell lies in at this zoom, with the extreme in it, from the finest tile that has come.
  binAt(column, row) {
    const { tile, ranks } = this.data;
    if (column < 0 || row < 0 || column >= this.iterations.length || row >= ranks) return null;
    for (const perBin of [this.view.perBin, this.outermost]) {
      const [up, across] = [Math.floor(row / perBin[0]), Math.floor(column / perBin[1])];
      const found = this.tiles.get(perBin, [Math.floor(up / tile), Math.floor(across / tile)]);
      if (!found || across % tile >= found.columns) continue;
      const at = (up % tile) * found.columns + (across % tile);
      const [top, left] = [up * perBin[0], across * perBin[1]];
      const code = found.codes[at];
      return {
        top, left, rows: Math.min(perBin[0], ranks - top), columns: Math.min(perBin[1], this.iterations.length - left),
        code, row: code ? top + found.inRow[at] : row, column: code ? left + found.inColumn[at] : column,
        value: found.low * (found.high / found.low) ** (Math.max(0, code - 1) / 254),
      };
    }
    return null;
  }

  placeOf(row) {
    const { ranks, host, gpu } = this.order;
    const name = host.codes[row] < 0 ? "" : ` on ${host.names[host.codes[row]]}`;
    return `rank ${ranks[row]}${name}${gpu[row] < 0 ? "" : `, GPU ${gpu[row]}`}`;
  }

  textOf(bin) {
    if (!this.order) return ["", ""];
    const head = `${this.placeOf(bin.row)}, iteration ${this.iterations[bin.column].toLocaleString("en")}`;
    if (!bin.code) return [head, "nothing is stored here"];
    const { title, is_excess: isExcess } = this.data.quantities.find(({ name }) => name === this.quantity);
    const isOne = bin.rows * bin.columns === 1;
    const largest = isOne ? "" : `; the largest of ${count(bin.rows, "rank")} × ${count(bin.columns, "iteration")}`;
    if (isExcess && bin.code === 1) return [head, `as usual: less than ${shown(this.low, this.unit)} beyond${largest}`];
    return [head, `${title}: about ${shown(bin.value, this.unit)}${largest}`];
  }

  // --- pointing

  hover(x, y) {
    const isInside = this.view?.holds(x, y) && this.tiles;
    const bin = isInside ? this.binAt(Math.floor(this.view.column(x)), Math.floor(this.view.row(y))) : null;
    const isSame = bin && this.pointed && bin.top === this.pointed.top && bin.left === this.pointed.left && bin.rows === this.pointed.rows;
    this.pointed = bin;
    this.tip(bin, x, y, isSame);
    if (bin && !isSame) tellIteration(this.element, this.iterations[bin.column]);
    this.drawOver();
  }

  tip(bin, x, y, isSame) {
    if (!isSame) clearTimeout(this.exactTimer);
    if (!bin) return showTip(this.parts, null);
    showTip(this.parts, isSame ? null : this.textOf(bin), x, y);
    if (isSame || !bin.code || !this.order) return undefined;
    this.exactTimer = setTimeout(() => this.exact(bin), EXACT_AFTER_MS);
    return undefined;
  }

  async exact(bin) {
    const found = await this.cell(bin).catch(() => null);
    if (found && this.pointed === bin) showTip(this.parts, [...this.textOf(bin), exactText(found)]);
  }

  cell(bin) {
    const { first, last } = this.data;
    const asked = { iteration: this.iterations[bin.column], rank: this.order.ranks[bin.row], first, last };
    return fetchJson(`${this.address}/heat-map/cell?${query(asked)}`);
  }

  pointAt(iteration, wantsCentre) {
    if (!this.data) return;
    const column = this.columnOf(iteration);
    const isHere = iteration >= this.data.first && iteration <= this.data.last;
    if (!isHere && wantsCentre) {
      this.load(String(iteration));
      return;
    }
    this.cursorColumn = isHere ? column : null;
    if (wantsCentre) this.focusOn(column, this.focus?.row ?? 0);
    this.drawOver();
  }

  async open(bin) {
    if (!bin || !bin.code || !this.order) return;
    try {
      showDetails(this.parts, this, bin, await this.cell(bin));
    } catch (error) {
      this.say(`This cell can't be shown: ${error.message}`);
    }
  }

  // --- moving

  change(move) {
    if (!this.view) return;
    move(this.view);
    this.draw();
  }

  reset() {
    this.change((view) => view.reset());
  }

  zoomBy(factor, byRows = factor, x = null, y = null) {
    const bin = this.isFocused && this.focus;
    this.change((view) => {
      const at = x === null && bin ? [view.x(bin.column + 0.5), view.y(bin.row + 0.5)] : [x ?? view.x((view.left + view.right) / 2), y ?? view.y((view.top + view.bottom) / 2)];
      view.zoom(...at, factor, byRows);
    });
  }

  // Move the keyboard's cell by bins of this zoom.
  step(columns, rows) {
    const from = this.focus || { left: Math.floor((this.view.left + this.view.right) / 2), top: Math.floor((this.view.top + this.view.bottom) / 2) };
    const [ranks, iterations] = this.view.perBin;
    this.focusOn(clamp(from.left + columns * iterations, this.iterations.length), clamp(from.top + rows * ranks, this.data.ranks));
  }

  focusOn(column, row, tells = true) {
    const before = this.view.box;
    this.view.show(column, row);
    this.focus = this.binAt(column, row) || { left: column, top: row, column, row, rows: 1, columns: 1, code: 0, value: 0 };
    this.pointed = null;
    showTip(this.parts, null);
    if (tells) {
      this.say(this.textOf(this.focus).join(": "));
      tellIteration(this.element, this.iterations[this.focus.column]);
    }
    this.moveFrom(before);
  }

  // Go to a cell and come near, so that it is a cell and not a bin.
  goTo(column, row) {
    const before = this.view.box;
    const [columns, rows] = [Math.min(this.iterations.length, 120), Math.min(this.data.ranks, 96)];
    this.view.set(column - columns / 2, column + columns / 2, row - rows / 2, row + rows / 2);
    this.focus = { left: column, top: row, column, row, rows: 1, columns: 1, code: 1, value: 0 };
    this.isFocused = true;
    tellIteration(this.element, this.iterations[column]);
    this.moveFrom(before);
    this.open(this.focus);
  }

  moveFrom(before) {
    const to = this.view.box;
    cancelAnimationFrame(this.moving);
    if (movesLittle() || before.every((edge, at) => edge === to[at])) return this.draw();
    const began = performance.now();
    const move = (now) => {
      const part = Math.min(1, Math.max(0, (now - began) / MOVE_MS));
      const eased = part * (2 - part);
      this.view.set(...before.map((edge, at) => edge + (to[at] - edge) * eased));
      this.draw();
      if (part < 1) this.moving = requestAnimationFrame(move);
    };
    this.moving = requestAnimationFrame(move);
    return undefined;
  }

  page(direction) {
    const length = this.iterations.length;
    const to = direction < 0 ? this.data.first - Math.floor(length / 2) : this.data.last + Math.floor(length / 2);
    this.load(to > this.data.newest ? null : String(Math.max(to, this.data.oldest)));
  }
}

function exactText(cell) {
  const usual = cell.usual_ns === null ? "not known" : duration(cell.usual_ns);
  return `Worked ${duration(cell.work_ns)}; its usual ${usual}, all ranks' median ${duration(cell.median_ns)}; the iteration took ${duration(cell.elapsed_ns)}.`;
}

function clamp(value, size) {
  return Math.max(0, Math.min(size - 1, value));
}
