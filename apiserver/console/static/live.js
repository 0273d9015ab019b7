// One stream of server-sent events per tab updates every [data-live] element of the page, and the live tail.
//
// The stream covers the present parts: another set of parts opens another stream. A hidden tab has none. While no stream
// can be kept open, the parts are fetched every few seconds and the stream is retried now and then.

const FETCH_MS = 3000, FETCHES_MAX = 15;
const SILENT_FIRST_MS = 15_000, SILENT_MS = 35_000; // the service sends at least a beat every 10 s

const away = document.getElementById("away");
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const liveElements = () => [...document.querySelectorAll("[data-live]:not([data-over])")];
const addresses = () => [...new Set(liveElements().map((el) => el.dataset.live))];

let source = null; // the stream
let subject = ""; // parts and tail of the stream
let tail = null; // shows the newest rows: {query(), show(update)}; query() is null while paused
let generation = 0; // of the stream; callbacks of an older stream are ignored
let failures = 0, receivedAt = 0, fetchedAt = 0, isUp = false;
const troubled = new Set();

/** Whether the page shows the current state. */
export const upToDate = () => !document.hidden && (isUp || Date.now() - fetchedAt < 2 * FETCH_MS);

/** Set the element that shows the newest rows of a tenant. */
export function attachTail(element) {
  tail = element;
  reconnect();
}

/** Open another stream if the parts of the page have changed. */
export function reconnect() {
  const rows = tail?.query() ?? null;
  const next = document.hidden ? "" : JSON.stringify([addresses(), rows !== null]);
  if (next === subject) return;
  close();
  subject = next;
  if (!document.hidden && (addresses().length || rows !== null)) open();
}

function close() {
  generation += 1;
  source?.close();
  source = null;
  subject = "";
  isUp = false;
}

function open() {
  const own = ++generation, query = new URLSearchParams(addresses().map((address) => ["part", address]));
  for (const [name, value] of Object.entries(tail?.query() ?? {})) query.set(name, value);
  source = new EventSource(`/live?${query}`);
  receivedAt = Date.now();
  const on = (name, does) => source.addEventListener(name, (event) => {
    if (own !== generation) return;
    receivedAt = Date.now();
    if (name !== "end") [isUp, failures] = [true, 0];
    does(JSON.parse(event.data));
    if (isUp) showTrouble();
  });
  on("part", (update) => { troubled.delete(update.part); swap(update); });
  on("trouble", ({ part }) => troubled.add(part));
  on("tail", (update) => tail?.show(update));
  on("begin", () => {});
  on("beat", () => {});
  on("end", ({ reason }) => { if (reason === "signed-out") signIn(); else recover(); });
  source.onerror = () => { if (own === generation) recover(); };
}

/** After a dropped stream: show it, fetch for a while after repeated failures, then open another stream. */
async function recover() {
  const kept = subject;
  close();
  subject = kept; // so that reconnect() opens none meanwhile
  const own = generation, is = () => own === generation;
  failures += 1;
  away.hidden = false;
  let answered = null;
  for (let left = Math.min(failures * failures - 1, FETCHES_MAX); left > 0; left--) {
    await pause(FETCH_MS);
    if (!is()) return;
    const before = answered;
    answered = await fetchAll(is);
    if (!is() || (answered && before === false)) break; // it is back
  }
  await pause(500 + 1000 * Math.random()); // not all tabs at once
  if (is()) open();
}

/** Fetch each part once, as the stream does. Returns whether the service answered. */
async function fetchAll(is) {
  let answered = false;
  for (const part of addresses()) {
    try {
      const answer = await fetch(part, { headers: { "HX-Request": "true", Accept: "text/html" } });
      const html = await answer.text(), { status } = answer;
      if (!is()) return answered;
      if (status === 401) { signIn(); return true; }
      if (status >= 500 || status === 429) continue;
      answered = true;
      swap({ part, html, over: status !== 200 });
    } catch { break; } // away; the next round tries again
  }
  if (answered) { fetchedAt = Date.now(); troubled.clear(); away.hidden = true; }
  return answered;
}

function showTrouble() {
  const shown = new Set(addresses());
  away.hidden = ![...troubled].some((part) => shown.has(part));
}

function signIn() {
  close();
  subject = "signed out";
  location.href = `/login?next=${encodeURIComponent(location.pathname)}`;
}

/** Replace a part. A part that is over is not updated again. */
function swap({ part, html, over }) {
  for (const el of liveElements().filter((each) => each.dataset.live === part)) {
    if (over) el.dataset.over = "";
    htmx.swap({ sourceElement: el, target: el, text: html, swap: "innerMorph" });
  }
}

setInterval(() => {
  if (source && Date.now() - receivedAt > (isUp ? SILENT_MS : SILENT_FIRST_MS)) recover();
}, 5000);
document.addEventListener("visibilitychange", () => { failures = 0; reconnect(); });
addEventListener("pagehide", () => { close(); subject = "left"; });
addEventListener("pageshow", () => { if (subject === "left") { subject = ""; reconnect(); } });
new MutationObserver(reconnect).observe(document.body, { childList: true, subtree: true });
setTimeout(reconnect); // once the elements of this page are defined
