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
    this.wanted = [];
    this.running = new Map();
    this.stop = new AbortController();
  }

  get(perBin, at) {
    const key = keyOf(perBin, at);
    const tile = this.kept.get(key);
    if (tile) {
      this.kept.delete(key); // to the end of the map: used last
      this.kept.set(key, tile);
    }
    return tile;
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
    const asked = { ...this.asked, ranks_per_bin: perBin[0], iterations_per_bin: perBin[1], row: at[0], column: at[1] };
    try {
      const response = await fetch(`${this.address}/heat-map/tile?${query(asked)}`, { signal: this.stop.signal });
      if (!response.ok) {
        const body = await response.json().catch(() => ({}));
        throw new Answer(response.status, body.error || `the console answered ${response.status}`);
      }
      this.keep(key, new Tile(await response.arrayBuffer()));
    } catch (error) {
      if (error.name !== "AbortError") this.onError(error);
      return;
    } finally {
      this.running.delete(key);
    }
    this.onTile();
    this.next();
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
