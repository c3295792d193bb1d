// The heat map of a job that runs: only what is behind its window is asked for.

import { fetchJson, query } from "./shared.js";
import { fillPages } from "./telling.js";
import { View } from "./view.js";

const PAUSE_MS = 4_000; // between two looks: with each the scale and the strangest ranks are found anew

// `newest` is the newest iteration that the page knows of; `isForced`: what is here was judged anew, or somebody blamed.
export async function follow(map, newest, isForced = false) {
  map.isOwed ||= isForced; // what can't be asked for now is asked for at the next look
  const isDue = map.isOwed || (newest > (map.data?.last ?? Infinity) && performance.now() - map.followedAt > PAUSE_MS);
  if (!isDue || document.hidden || map.drag || map.isAsking || !map.isLive) return;
  const isOwed = map.isOwed;
  map.isAsking = true;
  map.isOwed = false;
  map.followedAt = performance.now();
  const { first, version } = map.data;
  try {
    const data = await fetchJson(`${map.address}/heat-map?${query({ first, version, quantity: map.quantity })}`);
    if (map.data.version !== version) return; // somebody has chosen another window meanwhile
    if (data.version === version) map.take(data);
    else await grow(map, data);
  } catch {
    map.isOwed ||= isOwed; // the page itself says that it is old
  } finally {
    map.isAsking = false;
  }
}

async function grow(map, data) {
  const isSame = data.first === map.data.first && data.ranks === map.data.ranks && map.orderName !== "strange";
  const dropped = map.columnOf(data.first);
  if (dropped) map.focus = map.pointed = null;
  map.take(data);
  if (map.view.rows === data.ranks) map.view.grow(map.iterations.length, dropped);
  else map.view = new View(map.iterations.length, data.ranks);
  map.resize();
  fillPages(map.parts, data); // not the choices: one of them may be open
  await map.choose(map.quantity, map.orderName, isSame ? data.unchanged : 0);
  map.element.dataset.newest = data.last;
}
