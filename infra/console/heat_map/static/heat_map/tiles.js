// Tiles of bins: fetched when they are looked at, few at a time, and kept as pictures.

import { Answer, query } from "./shared.js";

const HEADER_BYTES = 32;
const AT_ONCE = 4;
const KEPT = 96; // of 1 MB each as pictures

export class Tile {
  constructor(buffer) {
    const view = new DataView(buffer);
    this.low = view.getFloat64(0, true);
    this.high = view.getFloat64(8, true);
    this.rows = view.getUint32(16, true);
    this.columns = view.getUint32(20, true);
    const cells = this.rows * this.columns;
    const Places = view.getUint32(24, true) === 1 ? Uint8Array : Uint16Array;
    const places = (number) => {
      const from = HEADER_BYTES + cells + number * cells * Places.BYTES_PER_ELEMENT;
      return new Places(buffer.slice(from, from + cells * Places.BYTES_PER_ELEMENT)); // a slice: two-byte values lie anywhere
    };
    this.codes = new Uint8Array(buffer, HEADER_BYTES, cells);
    this.inRow = places(0);
    this.inColumn = places(1);
    this.picture = null;
  }

  // These bins behind the first `columns` of another tile.
  behind(other, columns) {
    const joined = Object.assign(Object.create(Tile.prototype), this, { columns: columns + this.columns });
    for (const name of ["codes", "inRow", "inColumn"]) {
      joined[name] = new this[name].constructor(this.rows * joined.columns);
      for (let row = 0; row < this.rows; row++) {
        joined[name].set(other[name].subarray(row * other.columns, row * other.columns + columns), row * joined.columns);
        joined[name].set(this[name].subarray(row * this.columns, (row + 1) * this.columns), row * joined.columns + columns);
      }
    }
    return joined;
  }

  hasScaleOf(other) {
    return this.low === other.low && this.high === other.high && this.rows === other.rows && this.inRow.constructor === other.inRow.constructor;
  }

  // `palette` has a colour as a 32-bit pixel for each code; that of code 0 is transparent.
  paint(palette) {
    const canvas = document.createElement("canvas");
    canvas.width = this.columns;
    canvas.height = this.rows;
    const image = new ImageData(this.columns, this.rows);
    const pixels = new Uint32Array(image.data.buffer);
    for (let at = 0; at < pixels.length; at++) pixels[at] = palette[this.codes[at]];
    canvas.getContext("2d").putImageData(image, 0, 0);
    this.picture = canvas;
  }
}

export class Tiles {
  // `asked` holds what all tiles have in common: quantity, order, first, last, version.
  constructor(address, asked, onTile, onError) {
    Object.assign(this, { address, asked, onTile, onError });
    this.kept = new Map();
    this.begun = new Map(); // tiles of which only the first columns are as they were, and how many
    this.inherited = new Set();
    this.wanted = [];
    this.running = new Map();
    this.stop = new AbortController();
  }

  // Take over from the tiles of a window that began with the same iterations what did not change: so many iterations.
  inherit(others, unchanged, size) {
    for (const [key, tile] of [...others.kept, ...[...others.begun].map(([name, { tile: begun }]) => [name, begun])]) {
      const [, iterations, , column] = key.split("/").map(Number);
      const known = others.begun.get(key)?.columns ?? tile.columns;
      const columns = Math.min(known, Math.floor(unchanged / iterations) - column * size);
      if (columns >= size) this.kept.set(key, tile);
      else if (columns > 0) this.begun.set(key, { tile, columns });
      if (columns > 0) this.inherited.add(key);
    }
  }

  // Another scale: colours of what was inherited would say something else.
  disown() {
    for (const key of this.inherited) this.kept.delete(key);
    this.inherited.clear();
    this.begun.clear();
  }

  get(perBin, at) {
    const key = keyOf(perBin, at);
    const tile = this.kept.get(key) ?? this.begun.get(key)?.tile;
    if (this.kept.has(key)) {
      this.kept.delete(key); // to the end of the map: used last
      this.kept.set(key, tile);
    }
    return tile;
  }

  // Whether all of a tile is there.
  has(perBin, at) {
    return this.kept.has(keyOf(perBin, at));
  }

  // Fetch these, the first ones first, instead of what was wanted before.
  want(tiles) {
    this.wanted = tiles.filter(([perBin, at]) => !this.kept.has(keyOf(perBin, at)) && !this.running.has(keyOf(perBin, at)));
    this.next();
  }

  get isIdle() {
    return this.wanted.length === 0 && this.running.size === 0;
  }

  close() {
    this.stop.abort();
    this.kept.clear();
  }

  forgetPictures() {
    for (const tile of this.kept.values()) tile.picture = null;
  }

  next() {
    while (this.running.size < AT_ONCE && this.wanted.length) {
      const [perBin, at] = this.wanted.shift();
      const key = keyOf(perBin, at);
      this.running.set(key, this.fetch(perBin, at, key));
    }
  }

  async fetch(perBin, at, key) {
    const begun = this.begun.get(key);
    const asked = {
      ...this.asked, ranks_per_bin: perBin[0], iterations_per_bin: perBin[1], row: at[0], column: at[1], skipped: begun?.columns,
    };
    try {
      const response = await fetch(`${this.address}/heat-map/tile?${query(asked)}`, { signal: this.stop.signal });
      if (!response.ok) {
        const body = await response.json().catch(() => ({}));
        throw new Answer(response.status, body.error || `the console answered ${response.status}`);
      }
      this.came(key, new Tile(await response.arrayBuffer()), begun);
    } catch (error) {
      if (error.name !== "AbortError") this.onError(error);
      return;
    } finally {
      this.running.delete(key);
    }
    this.onTile();
    this.next();
  }

  came(key, tile, begun) {
    const [inherited] = this.inherited;
    const known = begun?.tile ?? this.kept.get(inherited) ?? this.begun.get(inherited)?.tile;
    if (known && !(tile.low === known.low && tile.high === known.high)) this.disown();
    if (!begun) this.keep(key, tile);
    else if (this.begun.get(key) === begun && tile.hasScaleOf(begun.tile)) this.keep(key, tile.behind(begun.tile, begun.columns));
    // Else it is asked for again, as a whole.
    this.begun.delete(key);
  }

  keep(key, tile) {
    this.kept.set(key, tile);
    for (const old of this.kept.keys()) {
      if (this.kept.size <= KEPT) break;
      if (!this.overview?.has(old)) this.kept.delete(old);
    }
  }

  // Tiles of the outermost zoom are never dropped: they are what is shown where nothing finer has come yet.
  keepAlways(perBin, tiles) {
    this.overview = new Set(tiles.map((at) => keyOf(perBin, at)));
  }
}

function keyOf(perBin, at) {
  return `${perBin[0]}/${perBin[1]}/${at[0]}/${at[1]}`;
}
