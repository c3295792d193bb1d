// All that is text: choices, legend, the table of the strangest ranks, what is told of one cell. Names of jobs and hosts
// are set as text, never as HTML.

import { count, duration, make, shown } from "./shared.js";

const HELP = "Drag to move, wheel or pinch to zoom (with Shift only along iterations, with Alt only along ranks). With "
  + "keys: arrows move, with Shift by ten; + and − zoom, 0 shows all; n and p go to the next and the one before of the "
  + "strangest; Enter tells all of a cell.";

export function build(element, map) {
  const parts = {
    quantity: make("select", { onchange: () => map.choose(parts.quantity.value, map.orderName) }),
    order: make("select", { onchange: () => map.choose(map.quantity, parts.order.value) }),
    legend: make("canvas", { role: "img", "aria-label": "Colours from the scale's low to its high end" }),
    base: make("canvas", { "aria-hidden": "true" }),
    over: make("canvas", {
      class: "hm-over", tabindex: "0", role: "application", "aria-roledescription": "heat map",
      "aria-label": "Heat map, ranks from top to bottom, iterations from left to right", "aria-describedby": "hm-help hm-status",
    }),
    tip: make("div", { class: "hm-tip", "aria-hidden": "true", hidden: true }),
    status: make("p", { class: "hm-status", id: "hm-status", role: "status" }, "Reading …"),
    explained: make("span", {}),
    details: make("div", { "aria-live": "polite" }),
    table: make("div", { class: "hm-scroll" }),
    older: make("button", { type: "button", onclick: () => map.page(-1), disabled: true }, "‹ older"),
    newer: make("button", { type: "button", onclick: () => map.page(1), disabled: true }, "newer ›"),
  };
  parts.plot = make("div", { class: "hm-plot" }, parts.base, parts.over, parts.tip);
  const button = (text, label, act) => make("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
  element.classList.add("hm");
  element.replaceChildren(
    make("div", { class: "hm-controls" },
      make("label", {}, "Colour: ", parts.quantity), make("label", {}, "Rows by ", parts.order),
      make("span", { class: "hm-buttons" },
        button("+", "Zoom in", () => map.zoomBy(1.6)), button("−", "Zoom out", () => map.zoomBy(1 / 1.6)),
        button("all", "Show all cells", () => map.reset()), parts.older, parts.newer)),
    make("div", { class: "hm-legend" }, parts.legend, parts.explained,
      make("span", { class: "hm-missing" }, "not stored"),
      make("span", { "data-sign": "▼" }, "irregular iteration"),
      make("span", { "data-sign": "▶" }, "accused (▷ not the first suspect)"),
      make("span", { "data-sign": "◯" }, "numbered as in the table below")),
    parts.plot, parts.status, make("p", { class: "hm-help", id: "hm-help" }, HELP), parts.details, parts.table,
  );
  return parts;
}

export function fillChoices(parts, data, map) {
  const options = (choices, chosen) =>
    choices.map(({ name, title }) => make("option", { value: name, selected: name === chosen }, title));
  parts.quantity.replaceChildren(...options(data.quantities, map.quantity));
  parts.order.replaceChildren(...options(data.orders, map.orderName));
  fillPages(parts, data);
}

export function fillPages(parts, data) {
  parts.older.disabled = data.first <= data.oldest;
  parts.newer.disabled = data.last >= data.newest;
}

export function showStrangest(parts, map) {
  const quantity = map.data.quantities.find(({ name }) => name === map.quantity);
  parts.explained.textContent = quantity.explanation;
  const { cells, low } = map.strangest;
  if (!cells.length) {
    parts.table.replaceChildren(make("p", { class: "hm-help" }, `No rank is beyond ${shown(low, quantity.unit)} in this window.`));
    return;
  }
  const head = ["rank", "in iteration", quantity.title, `above ${shown(low, quantity.unit)} in`, ""];
  const rows = cells.map((one, number) => {
    const go = () => {
      map.goTo(one.column, one.row);
      parts.over.focus();
    };
    const cells = [map.iterations[one.column].toLocaleString("en"), shown(one.value, quantity.unit), `${one.times.toLocaleString("en")} of ${count(one.present, "iteration")}`];
    return make("tr", {},
      make("th", { scope: "row" }, `${number + 1}: ${map.placeOf(one.row)}`),
      ...cells.map((text, at) => make("td", { "data-label": head[at + 1] }, text)),
      make("td", {}, make("button", { type: "button", onclick: go, "aria-label": `Show rank ${one.rank}` }, "show")));
  });
  parts.table.replaceChildren(make("table", { class: "stacked" },
    make("caption", {}, `The ${count(cells.length, "rank")} furthest or most often beyond usual, each in its worst iteration`),
    make("thead", {}, make("tr", {}, ...head.map((text) => make("th", { scope: "col" }, text)))),
    make("tbody", {}, ...rows)));
}

export function showTip(parts, texts, x = null, y = null) {
  const { tip, plot } = parts;
  if (texts === null && x === null) {
    tip.hidden = true;
    return;
  }
  if (texts) {
    const [head, ...rest] = texts;
    tip.replaceChildren(make("strong", {}, head), ...rest.map((text) => make("div", {}, text)));
    tip.hidden = false;
  }
  if (x === null) return;
  const isLeft = x > plot.clientWidth / 2;
  const isUp = y > plot.clientHeight / 2;
  tip.style.transform = `translate(${x + (isLeft ? -14 : 14)}px, ${y + (isUp ? -14 : 14)}px) translate(${isLeft ? "-100%" : "0"}, ${isUp ? "-100%" : "0"})`;
}

export function showDetails(parts, map, bin, cell) {
  const { order, iterations, element } = map;
  const named = ({ names, codes }) => (codes[bin.row] < 0 ? null : names[codes[bin.row]]);
  const facts = [
    ["Rank", map.placeOf(bin.row)],
    ["NIC, switch", [named(order.nic), named(order.switch)].filter(Boolean).join(", ") || null],
    ["Own work", `${duration(cell.work_ns)}; its usual: ${duration(cell.usual_ns)}`],
    ["All ranks", cell.median_ns === undefined ? null
      : `median ${duration(cell.median_ns)}, longest ${duration(cell.most_ns)} (rank ${cell.most_rank}); ${count(cell.longer, "rank")} worked longer than this one`],
    ["Iteration", duration(cell.elapsed_ns)],
    ["Score", cell.score === null || cell.score === undefined ? null : shown(cell.score, "score")],
    ["Operators", cell.operators === undefined ? null
      : `${cell.operators.toLocaleString("en")}${cell.late_rows ? `, ${count(cell.late_rows, "row")} came late` : ""}`],
  ].filter(([, text]) => text !== null);
  const incidents = (cell.verdicts || []).map((one) =>
    make("div", {}, make("a", { href: `${element.dataset.incidents || "/incidents/"}${encodeURIComponent(one.verdict_id)}` },
      `${one.kind.replaceAll("_", " ")}: ${one.name} (${one.state})`)));
  if (cell.operators === undefined) facts.push(["Stored", "nothing any more: rows of ranks are kept for a while only"]);
  parts.details.replaceChildren(make("section", { class: "hm-details" },
    make("h3", {}, `Rank ${order.ranks[bin.row]} in iteration ${iterations[bin.column].toLocaleString("en")}`),
    make("dl", {}, ...facts.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)]),
      make("dt", {}, "Incidents"), make("dd", {}, ...(incidents.length ? incidents : ["none names this rank then"])))));
}
