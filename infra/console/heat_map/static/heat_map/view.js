// Which cells are on the screen, and in which bins. Only arithmetic: nothing here knows a canvas.

export const MARGIN = { left: 76, top: 24, right: 10, bottom: 22 };
const LEAST_PX = 2; // of a bin: a straggler's single cell must be seen
const FEWEST = 6; // cells in a view

export class View {
  constructor(columns, rows) {
    this.columns = columns;
    this.rows = rows;
    this.resize(600, 400);
    this.reset();
  }

  resize(width, height) {
    this.width = Math.max(40, width - MARGIN.left - MARGIN.right);
    this.height = Math.max(40, height - MARGIN.top - MARGIN.bottom);
  }

  reset() {
    this.set(0, this.columns, 0, this.rows);
  }

  // There are other columns now; `dropped` of those that were the first ones are gone.
  grow(columns, dropped) {
    const [left, right, top, bottom] = this.box;
    const isWide = right - left >= this.columns;
    this.columns = columns;
    this.set(isWide ? 0 : left - dropped, isWide ? columns : right - dropped, top, bottom);
  }

  get isWhole() {
    return this.right - this.left >= this.columns && this.bottom - this.top >= this.rows;
  }

  set(left, right, top, bottom) {
    [this.left, this.right] = inside(left, right, this.columns);
    [this.top, this.bottom] = inside(top, bottom, this.rows);
  }

  get box() {
    return [this.left, this.right, this.top, this.bottom];
  }

  x(column) {
    return MARGIN.left + ((column - this.left) / (this.right - this.left)) * this.width;
  }

  y(row) {
    return MARGIN.top + ((row - this.top) / (this.bottom - this.top)) * this.height;
  }

  column(x) {
    return this.left + ((x - MARGIN.left) / this.width) * (this.right - this.left);
  }

  row(y) {
    return this.top + ((y - MARGIN.top) / this.height) * (this.bottom - this.top);
  }

  holds(x, y) {
    return x >= MARGIN.left && x < MARGIN.left + this.width && y >= MARGIN.top && y < MARGIN.top + this.height;
  }

  // Zoom about a point: a factor above 1 shows fewer cells, and what is under the pointer stays there.
  zoom(x, y, byColumns, byRows) {
    const column = this.column(x);
    const row = this.row(y);
    this.set(
      column - (column - this.left) / byColumns, column + (this.right - column) / byColumns,
      row - (row - this.top) / byRows, row + (this.bottom - row) / byRows,
    );
  }

  pan(dx, dy) {
    const columns = (dx / this.width) * (this.right - this.left);
    const rows = (dy / this.height) * (this.bottom - this.top);
    this.set(this.left - columns, this.right - columns, this.top - rows, this.bottom - rows);
  }

  centre(column, row) {
    const columns = (this.right - this.left) / 2;
    const rows = (this.bottom - this.top) / 2;
    this.set(column - columns, column + columns, row - rows, row + rows);
  }

  show(column, row) {
    if (column < this.left || column >= this.right) this.centre(column, (this.top + this.bottom) / 2);
    if (row < this.top || row >= this.bottom) this.centre((this.left + this.right) / 2, row);
  }

  // Ranks and iterations in a bin: powers of two, the smallest with which a bin is seen.
  get perBin() {
    return [
      power((LEAST_PX * (this.bottom - this.top)) / this.height),
      power((LEAST_PX * (this.right - this.left)) / this.width),
    ];
  }

  // Tiles on the screen for some bins, as [row, column] counted in tiles.
  tiles([ranks, iterations], tile) {
    const found = [];
    for (let row = Math.floor(this.top / (ranks * tile)); row * ranks * tile < this.bottom; row++)
      for (let column = Math.floor(this.left / (iterations * tile)); column * iterations * tile < this.right; column++)
        found.push([row, column]);
    return found;
  }
}

export function power(least) {
  return 2 ** Math.max(0, Math.ceil(Math.log2(least) - 1e-9));
}

function inside(from, to, size) {
  const span = Math.min(size, Math.max(Math.min(FEWEST, size), to - from));
  const middle = (from + to) / 2;
  const start = Math.min(size - span, Math.max(0, middle - span / 2));
  return [start, start + span];
}
