// What every page does: the theme's switch, keys, ages of moments, and the part of the page that is live.

const STALE_S = 10; // what is shown is called old when nothing newer came for so long
const HIDDEN_MS = 15_000; // between two looks of a tab that is in the background: for its title
const SHARED_MS = 2_500; // the server shares its answers for two seconds: who asks sooner is told the old ones
const KEEPS_PLACE = CSS.supports("overflow-anchor", "auto"); // a browser that scrolls along when something above grows
const root = document.documentElement;

// --- theme ---------------------------------------------------------------------------------------------------------

const THEMES = ["system", "light", "dark"];
const themeButton = document.getElementById("theme");

function showTheme() {
  const chosen = root.dataset.theme ?? "system";
  themeButton.textContent = `Theme: ${chosen}`;
  themeButton.hidden = false;
}

themeButton?.addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(root.dataset.theme ?? "system") + 1) % THEMES.length];
  if (next === "system") delete root.dataset.theme;
  else root.dataset.theme = next;
  try {
    if (next === "system") localStorage.removeItem("theme");
    else localStorage.setItem("theme", next);
  } catch {
    // It holds until the page is left.
  }
  document.dispatchEvent(new CustomEvent("themechange"));
  showTheme();
});
if (themeButton) showTheme();

// --- keys ----------------------------------------------------------------------------------------------------------

const PLACES = { n: "/", d: "/devices", p: "/pipeline", q: "/questions" };
let isGoing = false;

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input, textarea, select, [contenteditable]");
  if (event.key === "Escape" && isTyping) event.target.blur();
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const search = document.getElementById("search");
  if (event.key === "/" && search) {
    event.preventDefault();
    search.focus();
    search.select();
  } else if (isGoing && PLACES[event.key]) {
    location.assign(PLACES[event.key]);
  }
  isGoing = event.key === "g";
});

// --- copying: the button behind a command copies it ------------------------------------------------------------------

document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("button.copy");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.previousElementSibling.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(button.previousElementSibling); // no permission, or no https: ready to be copied
  }
});

// --- ages ----------------------------------------------------------------------------------------------------------

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

function ageText(seconds) {
  const parts = [];
  let left = Math.max(0, Math.round(seconds));
  for (const [size, unit] of UNITS) {
    if (left >= size || parts.length) {
      parts.push(`${Math.floor(left / size)} ${unit}`);
      left %= size;
    }
  }
  const told = parts.slice(0, 2).filter((part) => !part.startsWith("0 "));
  return told.length ? told.join(" ") : "0 s";
}

function showAges(place) {
  for (const element of place.querySelectorAll("time[data-age]")) {
    element.title ||= element.textContent;
    element.textContent = `${ageText(Date.now() / 1000 - Number(element.dataset.age))} ago`;
  }
}

setInterval(() => { if (!document.hidden) showAges(document); }, 1000);

// --- the live part -------------------------------------------------------------------------------------------------

const live = document.getElementById("live");
const partsOf = (place) => [...place.querySelectorAll("[data-part]")];
const trouble = document.getElementById("trouble");
const status = document.getElementById("status");
const shownParts = new Map(live ? partsOf(live).map((part) => [part.dataset.part, part.innerHTML]) : []);
showAges(document);
let tag = null;
let shown = live?.innerHTML.trim();
let freshAt = Date.now();
let failure = "";
let blamed = live?.querySelector("[data-blamed]")?.dataset.blamed;

function say(text) {
  if (trouble.textContent !== text) trouble.textContent = text;
  trouble.hidden = !text;
}

function showFreshness() {
  const old = (Date.now() - freshAt) / 1000;
  if (failure || old > STALE_S) say(`${failure || "No news from the console."} What you see is ${ageText(old)} old.`);
  else say("");
  live.classList.toggle("stale", Boolean(failure) || old > STALE_S);
  showTitle();
}

// The tab says what the page says, also while nobody looks at it; an old page says that it is old.
const firstTitle = document.title;

function showTitle() {
  const told = live.querySelector("[data-title]")?.dataset.title;
  const isOld = live.classList.contains("stale");
  document.title = `${isOld ? "No news: " : ""}${told ? `${told} · Irregulars` : firstTitle}`;
}

function announce() {
  const text = live.querySelector("[data-announce]")?.dataset.announce ?? "";
  if (text && status.textContent !== text) status.textContent = text;
}

function replace(place, html) {
  const active = place.contains(document.activeElement) ? document.activeElement : null;
  const wanted = active && (active.id ? `#${CSS.escape(active.id)}` : active.getAttribute("href") &&
    `${active.tagName.toLowerCase()}[href="${CSS.escape(active.getAttribute("href"))}"]`);
  const open = new Set([...place.querySelectorAll("details[open]")].map((one) => one.id));
  const scrolled = [...place.querySelectorAll(".scroll")].map((one) => [one.scrollLeft, one.scrollTop]);
  place.innerHTML = html; // made by our own server, which escapes what comes from jobs
  for (const one of place.querySelectorAll("details")) one.open = open.has(one.id);
  place.querySelectorAll(".scroll").forEach((one, at) => { [one.scrollLeft, one.scrollTop] = scrolled[at] ?? [0, 0]; });
  showAges(place);
  if (wanted) place.querySelector(wanted)?.focus({ preventScroll: true });
}

// Of a page in parts only those are replaced that changed, and what the reader looks at stays where it is.
function replaceParts(html) {
  const came = document.createElement("template");
  came.innerHTML = html;
  for (const part of partsOf(came.content)) {
    const here = live.querySelector(`[data-part="${part.dataset.part}"]`);
    if (!here || shownParts.get(part.dataset.part) === part.innerHTML) continue;
    shownParts.set(part.dataset.part, part.innerHTML);
    const [isAbove, tall] = [here.getBoundingClientRect().bottom <= 0, here.offsetHeight];
    replace(here, part.innerHTML);
    if (isAbove && !KEEPS_PLACE) scrollBy({ top: here.offsetHeight - tall, behavior: "instant" });
  }
}

// Charts ask for what is new by themselves, maybe not at the first word.
function tellNewest() {
  const facts = live.querySelector("[data-newest]");
  if (facts?.dataset.newest) document.dispatchEvent(new CustomEvent("irregulars:newest", { detail: Number(facts.dataset.newest) }));
  if (facts?.dataset.blamed !== blamed) {
    blamed = facts?.dataset.blamed;
    setTimeout(() => document.dispatchEvent(new Event("irregulars:blamed")), SHARED_MS);
  }
}

async function look() {
  if (document.hidden && !live.querySelector("[data-title]")) return; // nobody looks, and the tab's title says nothing
  if (!getSelection()?.isCollapsed) return; // somebody is about to copy
  const headers = { "X-Live": "1" };
  if (tag) headers["If-None-Match"] = tag;
  try {
    const answer = await fetch(location.pathname + location.search, { headers, cache: "no-store", signal: AbortSignal.timeout(15000) });
    if (answer.status === 401) {
      location.reload();
      return;
    }
    if (live.dataset.reload && answer.ok) {
      location.reload();
      return;
    }
    if (answer.status !== 304) {
      const html = await answer.text();
      tag = answer.headers.get("ETag");
      if (answer.ok || answer.status === 503) {
        if (shownParts.size && answer.ok) replaceParts(html);
        else if (!shownParts.size && html.trim() !== shown) replace(live, html);
        shown = html.trim();
        announce();
      }
    }
    failure = answer.ok || answer.status === 304 ? "" : answer.status === 503 ? "The database does not answer." : `The console answered ${answer.status}.`;
    if (failure) return;
    freshAt = Date.now();
    tellNewest();
  } catch {
    failure = "The console can't be reached.";
  }
}

if (live && live.dataset.live) {
  announce();
  const pause = 1000 * Number(live.dataset.live);
  const step = async () => {
    await look();
    showFreshness();
    setTimeout(step, document.hidden ? HIDDEN_MS : failure ? Math.max(pause, 3000) : pause);
  };
  setTimeout(step, pause);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look().then(showFreshness); });
}
