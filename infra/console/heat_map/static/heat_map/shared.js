// What the heat map and the chart of iteration times share: answers, words for times, colours, the joined cursor.

export class Answer extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

export async function fetchJson(address, signal) {
  const response = await fetch(address, { signal, credentials: "same-origin", headers: { Accept: "application/json" } });
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Answer(response.status, body.error || `the console answered ${response.status}`);
  return body;
}

export function jobAddress(element) {
  const { job, attempt } = element.dataset;
  const piece = job === "." || job === ".." ? `${job}/` : job; // as piece_of of infra/console/rendering.py
  return `/api/jobs/${encodeURIComponent(piece)}/${encodeURIComponent(attempt)}`;
}

export function query(values) {
  const known = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return new URLSearchParams(known).toString();
}

// Numbers that follow one another travel as {first, count}.
export function numbers(compact) {
  if (Array.isArray(compact)) return Float64Array.from(compact);
  return Float64Array.from({ length: compact.count }, (_, at) => compact.first + at);
}

export function duration(ns) {
  if (ns === null || ns === undefined || Number.isNaN(ns)) return "not known";
  const units = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
  const [size, unit] = units.find(([least]) => Math.abs(ns) >= least) || units[3];
  return `${Number((ns / size).toPrecision(3)).toLocaleString("en")} ${unit}`;
}

export function shown(value, unit) {
  return unit === "score" ? Number(value.toPrecision(3)).toLocaleString("en") : duration(value);
}

export function count(number, one, more = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : more}`;
}

export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") element.className = value;
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined)); // texts are never read as HTML
  return element;
}

export function styleSheet(address) {
  const href = new URL(address, import.meta.url).pathname;
  if ([...document.styleSheets].some((sheet) => sheet.href && new URL(sheet.href).pathname === href)) return Promise.resolve();
  return new Promise((done) => {
    const link = make("link", { rel: "stylesheet", href, onload: done, onerror: done });
    document.head.append(link);
  });
}

export function colour(element, name) {
  return getComputedStyle(element).getPropertyValue(name).trim();
}

// Calls back when light becomes dark, by the system or by an attribute of the page.
export function onScheme(callback) {
  const media = matchMedia("(prefers-color-scheme: dark)");
  media.addEventListener("change", callback);
  const observer = new MutationObserver(callback);
  observer.observe(document.documentElement, { attributes: true, attributeFilter: ["class", "data-theme", "style"] });
  return () => {
    media.removeEventListener("change", callback);
    observer.disconnect();
  };
}

export function movesLittle() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

const CURSOR = "irregulars:iteration";

// One cursor for all charts of a job: whoever points at an iteration tells the others.
export function tellIteration(element, iteration, wantsCentre = false) {
  const { job, attempt } = element.dataset;
  document.dispatchEvent(new CustomEvent(CURSOR, { detail: { job, attempt, iteration, wantsCentre, source: element } }));
}

export function onIteration(element, callback) {
  const hear = ({ detail }) => {
    const isOurs = detail.job === element.dataset.job && detail.attempt === element.dataset.attempt;
    if (isOurs && detail.source !== element) callback(detail.iteration, detail.wantsCentre);
  };
  document.addEventListener(CURSOR, hear);
  return () => document.removeEventListener(CURSOR, hear);
}

// The page of a running job tells which iteration is the newest, each time that it has looked.
export function onNewest(callback) {
  document.addEventListener("irregulars:newest", ({ detail }) => callback(detail));
}

// It also tells when a verdict came or was revised: mostly some moments after the iterations that it is about.
export function onBlamed(callback) {
  document.addEventListener("irregulars:blamed", () => callback());
}
