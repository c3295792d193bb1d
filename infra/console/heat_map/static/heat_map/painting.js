// Draws on the two canvases: cells, margins and marks on one; crosshair and pointer on the other, which changes with
// each move and costs nothing.

import { MARGIN } from "./view.js";
import { colour, shown } from "./shared.js";

const STOPS = 6;
const FONT = "12px system-ui, sans-serif";

export function paletteOf(element) {
  const stops = Array.from({ length: STOPS }, (_, at) => rgb(colour(element, `--hm-${at}`)));
  const palette = new Uint32Array(256);
  palette[0] = 0; // not stored: the hatching below shows through
  for (let code = 1; code < 256; code++) {
    const at = ((code - 1) / 254) * (STOPS - 1);
    const [below, above] = [stops[Math.floor(at)], stops[Math.ceil(at)]];
    const part = at - Math.floor(at);
    const [red, green, blue] = below.map((value, channel) => Math.round(value + (above[channel] - value) * part));
    palette[code] = (255 << 24) | (blue << 16) | (green << 8) | red;
  }
  return palette;
}

export function coloursOf(element) {
  const names = ["fg", "dim", "line", "bg", "accused", "odd", "cursor"];
  return Object.fromEntries(names.map((name) => [name, colour(element, `--hm-${name}`)]));
}

export function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio); // clears it, and forgets widths and dashes of what was drawn before
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.font = FONT;
  return context;
}

// Cells: the outermost bins first, and over them those of this zoom, as far as they are there.
export function drawCells(context, map) {
  const { view, tiles, data } = map;
  context.save();
  context.beginPath();
  context.rect(MARGIN.left, MARGIN.top, view.width, view.height);
  context.clip();
  hatch(context, map);
  context.imageSmoothingEnabled = false; // a smoothed cell is an average
  const levels = [map.outermost, view.perBin].filter((one, at, all) => at === 0 || String(one) !== String(all[0]));
  for (const perBin of levels)
    for (const at of view.tiles(perBin, data.tile)) {
      const tile = tiles.get(perBin, at);
      if (tile) drawTile(context, map, tile, perBin, at);
    }
  context.restore();
}

function drawTile(context, { view, data, palette, colours }, tile, [ranks, iterations], [row, column]) {
  if (!tile.picture) tile.paint(palette);
  const [left, top] = [column * data.tile * iterations, row * data.tile * ranks];
  // The last bin of a row or column may reach beyond the last cell.
  const [x, y] = [view.x(left), view.y(top)];
  const [wide, tall] = [view.x(left + tile.columns * iterations) - x, view.y(top + tile.rows * ranks) - y];
  context.fillStyle = colours.bg;
  context.drawImage(tile.picture, x, y, wide, tall);
}

function hatch(context, { view, colours }) {
  context.fillStyle = colours.bg;
  context.fillRect(MARGIN.left, MARGIN.top, view.width, view.height);
  context.strokeStyle = colours.line;
  context.lineWidth = 1;
  context.beginPath();
  for (let at = -view.height; at < view.width; at += 6) {
    context.moveTo(MARGIN.left + at, MARGIN.top + view.height);
    context.lineTo(MARGIN.left + at + view.height, MARGIN.top);
  }
  context.stroke();
}

export function drawMargins(context, map) {
  const { view, colours } = map;
  context.strokeStyle = colours.line;
  context.strokeRect(MARGIN.left - 0.5, MARGIN.top - 0.5, view.width + 1, view.height + 1);
  drawIterations(context, map);
  if (map.order?.borders.length) drawGroups(context, map);
  else if (map.order) drawRanks(context, map);
  drawIrregular(context, map);
  drawAccused(context, map);
  drawStrangest(context, map);
}

function drawIterations(context, { view, iterations, colours }) {
  context.fillStyle = colours.dim;
  context.textAlign = "center";
  context.textBaseline = "top";
  const step = nice(((view.right - view.left) / view.width) * 90);
  for (let column = Math.ceil(view.left / step) * step; column < view.right; column += step) {
    const x = view.x(column + 0.5);
    context.fillText(iterations[column].toLocaleString("en"), x, MARGIN.top + view.height + 7);
    context.fillRect(x - 0.5, MARGIN.top + view.height + 1, 1, 4);
  }
}

function drawRanks(context, { view, order, colours }) {
  context.fillStyle = colours.dim;
  context.textAlign = "right";
  context.textBaseline = "middle";
  const step = nice(((view.bottom - view.top) / view.height) * 34);
  for (let row = Math.ceil(view.top / step) * step; row < view.bottom; row += step)
    context.fillText(String(order.ranks[row]), MARGIN.left - 18, view.y(row + 0.5));
}

function drawGroups(context, { view, order, data, colours }) {
  context.textAlign = "right";
  context.textBaseline = "middle";
  const bounds = [...order.borders, data.ranks];
  const areApart = (view.height / (view.bottom - view.top)) * (data.ranks / order.borders.length) >= 5;
  let free = -1;
  for (let group = 0; group < order.borders.length; group++) {
    const [from, to] = [bounds[group], bounds[group + 1]];
    if (to <= view.top || from >= view.bottom) continue;
    const y = view.y(from);
    context.fillStyle = colours.line;
    if (areApart && from > view.top) context.fillRect(MARGIN.left - 14, Math.round(y) - 0.5, view.width + 14, 1);
    const middle = (Math.max(y, MARGIN.top) + Math.min(view.y(to), MARGIN.top + view.height)) / 2;
    if (middle - free < 13) continue;
    free = middle;
    context.fillStyle = colours.dim;
    context.fillText(fitted(context, order.labels[group], MARGIN.left - 22), MARGIN.left - 18, middle);
  }
}

function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let length = text.length;
  while (length > 1 && context.measureText(`…${text.slice(-length)}`).width > width) length--;
  return `…${text.slice(-length)}`; // names differ in their ends
}

function drawIrregular(context, { view, data, colours }) {
  let last = -10;
  context.fillStyle = colours.odd;
  for (const column of data.irregular) {
    const x = view.x(column + 0.5);
    if (column < view.left - 0.5 || column > view.right || x - last < 3) continue;
    last = x;
    triangle(context, [x - 4, MARGIN.top - 9], [x + 4, MARGIN.top - 9], [x, MARGIN.top - 2]);
  }
  context.fillStyle = colours.dim;
  for (const column of data.untrained) {
    if (column < view.left - 0.5 || column > view.right) continue;
    context.fillRect(view.x(column + 0.5) - 1.5, MARGIN.top - 4, 3, 3);
  }
}

// Verdicts: a bar over the iterations, an arrow beside the ranks, a frame around both.
function drawAccused(context, map) {
  const { view, colours } = map;
  const right = MARGIN.left + view.width;
  map.accused.forEach((one, number) => {
    const from = Math.max(MARGIN.left, view.x(one.from));
    const to = Math.min(right, Math.max(view.x(one.to), view.x(one.from) + 3));
    const isFirst = one.position === 0;
    context.fillStyle = context.strokeStyle = colours.accused;
    if (isFirst && to > from) {
      const y = 3 + (number % 3) * 4;
      context.fillRect(from, y, to - from, 2);
      context.fillRect(from, y - 2, 1.5, 6);
      context.fillRect(to - 1.5, y - 2, 1.5, 6);
    }
    let last = -10;
    for (const [top, bottom] of one.runs) {
      if (bottom <= view.top || top >= view.bottom) continue;
      const [above, below] = [Math.max(MARGIN.top, view.y(top)), Math.min(MARGIN.top + view.height, view.y(bottom))];
      const y = (above + below) / 2;
      if (y - last < 4) continue;
      last = y;
      context.lineWidth = 1.2;
      triangle(context, [MARGIN.left - 11, y - 5], [MARGIN.left - 11, y + 5], [MARGIN.left - 2, y], isFirst);
      if (!isFirst || to <= from) continue;
      context.setLineDash([4, 3]);
      context.strokeRect(from - 1.5, Math.min(above, y - 2) - 1.5, to - from + 3, Math.max(below - above, 4) + 3);
      context.setLineDash([]);
    }
  });
}

function drawStrangest(context, { view, strangest, colours }) {
  context.font = "bold 12px system-ui, sans-serif";
  context.textAlign = "left";
  context.textBaseline = "middle";
  const drawn = []; // one ring for those that lie on one another
  (strangest?.cells || []).forEach((one, number) => {
    const [x, y] = [view.x(one.column + 0.5), view.y(one.row + 0.5)];
    if (!view.holds(x, y) || drawn.some(([otherX, otherY]) => Math.abs(otherX - x) < 26 && Math.abs(otherY - y) < 12)) return;
    drawn.push([x, y]);
    for (const [style, width] of [[colours.bg, 4], [colours.fg, 1.4]]) {
      context.strokeStyle = style;
      context.lineWidth = width;
      context.beginPath();
      context.arc(x, y, 7, 0, 2 * Math.PI);
      context.stroke();
    }
    context.lineWidth = 3;
    context.strokeStyle = colours.bg;
    context.fillStyle = colours.fg;
    const beside = x + 30 > MARGIN.left + view.width ? x - 22 : x + 10;
    context.strokeText(String(number + 1), beside, y);
    context.fillText(String(number + 1), beside, y);
  });
  context.font = FONT;
}

export function drawCursor(context, map) {
  const { view, colours, pointed, focus, isFocused } = map;
  if (map.cursorColumn !== null) line(context, view, map.cursorColumn + 0.5, null, colours.cursor);
  const at = pointed || (isFocused ? focus : null);
  if (!at) return;
  line(context, view, at.column + 0.5, at.row + 0.5, colours.cursor);
  const [x, y] = [view.x(at.left), view.y(at.top)];
  const [wide, tall] = [view.x(at.left + at.columns) - x, view.y(at.top + at.rows) - y];
  for (const [style, width] of [[colours.bg, 4], [colours.fg, 2]]) {
    context.strokeStyle = style;
    context.lineWidth = width;
    context.strokeRect(x - 2, y - 2, wide + 4, tall + 4);
  }
}

function line(context, view, column, row, style) {
  context.strokeStyle = style;
  context.lineWidth = 1;
  context.beginPath();
  const x = Math.round(view.x(column)) + 0.5;
  if (x >= MARGIN.left && x <= MARGIN.left + view.width) {
    context.moveTo(x, MARGIN.top);
    context.lineTo(x, MARGIN.top + view.height);
  }
  if (row !== null) {
    const y = Math.round(view.y(row)) + 0.5;
    context.moveTo(MARGIN.left, y);
    context.lineTo(MARGIN.left + view.width, y);
  }
  context.stroke();
}

function triangle(context, first, second, third, isFilled = true) {
  context.beginPath();
  context.moveTo(...first);
  context.lineTo(...second);
  context.lineTo(...third);
  context.closePath();
  if (isFilled) context.fill();
  else context.stroke();
}

// The legend: from the scale's low to its high end, times in equal ratios, and what is not stored.
export function drawLegend(canvas, map, low, high, unit) {
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const context = sized(canvas, width, height);
  const { palette, colours } = map;
  for (let x = 0; x < width; x++) {
    const pixel = palette[1 + Math.round((x / (width - 1)) * 254)];
    context.fillStyle = `rgb(${pixel & 255},${(pixel >> 8) & 255},${(pixel >> 16) & 255})`;
    context.fillRect(x, 0, 1, 12);
  }
  context.strokeStyle = colours.line;
  context.strokeRect(0.5, 0.5, width - 1, 11);
  context.fillStyle = colours.fg;
  context.textBaseline = "top";
  for (let step = 0; step <= 3; step++) {
    context.textAlign = step === 0 ? "left" : step === 3 ? "right" : "center";
    context.fillText(shown(low * (high / low) ** (step / 3), unit), (step / 3) * width, 15);
  }
}

function nice(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  return Math.max(1, [1, 2, 5, 10].map((times) => times * power).find((step) => step >= least));
}

function rgb(text) {
  const hex = text.replace("#", "");
  const long = hex.length === 3 ? [...hex].map((digit) => digit + digit).join("") : hex;
  return [0, 2, 4].map((at) => parseInt(long.slice(at, at + 2), 16) || 0);
}
