// One stream of server-sent events per tab keeps every [data-live] of the page up to date, and the live tail.
//
// The stream is for the parts that are there now: another set of parts opens another one. A hidden tab has none. While no
// stream can be held the parts are fetched every few seconds instead, and the stream is tried again now and then.

const FETCH_MS = 3000, FETCHES_MAX = 15;
const SILENT_FIRST_MS = 15_000, SILENT_MS = 35_000; // the service says something every 10 s

const away = document.getElementById("away");
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const living = () => [...document.querySelectorAll("[data-live]:not([data-over])")];
const addresses = () => [...new Set(living().map((el) => el.dataset.live))];

let source = null; // the stream
let about = ""; // what it is about
let tail = null; // who shows the newest rows: {query(), show(facts)}, where query() is null while it pauses
let life = 0; // of the stream; what an older one started has nothing to say
let failures = 0, heardAt = 0, fetchedAt = 0, isUp = false;
const troubled = new Set();

/** Whether what the page shows is what the service says now. */
export const upToDate = () => !document.hidden && (isUp || Date.now() - fetchedAt < 2 * FETCH_MS);

/** The element that shows the newest rows of a tenant. */
export function tailIs(shown) {
  tail = shown;
  look();
}

/** Look whether the stream is still about what the page shows. */
export function look() {
  const rows = tail?.query() ?? null;
  const wanted = document.hidden ? "" : JSON.stringify([addresses(), rows !== null]);
  if (wanted === about) return;
  close();
  about = wanted;
  if (!document.hidden && (addresses().length || rows !== null)) open();
}

function close() {
  life += 1;
  source?.close();
  source = null;
  about = "";
  isUp = false;
}

function open() {
  const mine = ++life, query = new URLSearchParams(addresses().map((address) => ["part", address]));
  for (const [name, value] of Object.entries(tail?.query() ?? {})) query.set(name, value);
  source = new EventSource(`/live?${query}`);
  heardAt = Date.now();
  const on = (name, does) => source.addEventListener(name, (event) => {
    if (mine !== life) return;
    heardAt = Date.now();
    if (name !== "end") [isUp, failures] = [true, 0];
    does(JSON.parse(event.data));
    if (isUp) tellTrouble();
  });
  on("part", (told) => { troubled.delete(told.part); swap(told); });
  on("trouble", ({ part }) => troubled.add(part));
  on("tail", (told) => tail?.show(told));
  on("begin", () => {});
  on("beat", () => {});
  on("end", ({ reason }) => { if (reason === "signed-out") signIn(); else again(); });
  source.onerror = () => { if (mine === life) again(); };
}

/** The stream dropped: say so, fetch for a while if it does so again and again, then open another one. */
async function again() {
  const subject = about;
  close();
  about = subject; // nobody else opens one meanwhile
  const mine = life, is = () => mine === life;
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

/** Ask for each part once, the way the stream does. Whether the service answered. */
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

function tellTrouble() {
  const shown = new Set(addresses());
  away.hidden = ![...troubled].some((part) => shown.has(part));
}

function signIn() {
  close();
  about = "signed out";
  location.href = `/login?next=${encodeURIComponent(location.pathname)}`;
}

/** Put a part into its places. What is refused or gone stays as it is said to be. */
function swap({ part, html, over }) {
  for (const el of living().filter((each) => each.dataset.live === part)) {
    if (over) el.dataset.over = "";
    htmx.swap({ sourceElement: el, target: el, text: html, swap: "innerMorph" });
  }
}

setInterval(() => {
  if (source && Date.now() - heardAt > (isUp ? SILENT_MS : SILENT_FIRST_MS)) again();
}, 5000);
document.addEventListener("visibilitychange", () => { failures = 0; look(); });
addEventListener("pagehide", () => { close(); about = "left"; });
addEventListener("pageshow", () => { if (about === "left") { about = ""; look(); } });
new MutationObserver(look).observe(document.body, { childList: true, subtree: true });
setTimeout(look); // once the elements of this page are there
