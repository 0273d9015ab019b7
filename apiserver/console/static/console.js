// Custom elements of the console. State comes from the API; only the colour scheme is kept between pages.

import { fillOrigin } from "./forms.js";
import { attachTail, reconnect, upToDate } from "./live.js";

const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.scheme ?? (dark.matches ? "dark" : "light")) === "dark";
if (localStorage.scheme) root.dataset.scheme = localStorage.scheme;
document.getElementById("scheme").addEventListener("click", () => {
  localStorage.scheme = root.dataset.scheme = isDark() ? "light" : "dark";
  dispatchEvent(new Event("scheme"));
});
fillOrigin(document);

// Forms of a session carry its CSRF token: htmx has it in <body>, plain forms get it here.
document.addEventListener("submit", (event) => {
  const token = document.querySelector("meta[name=csrf-token]")?.content, form = event.target;
  if (!token || form.method !== "post" || form.elements.csrf) return;
  const field = document.createElement("input");
  Object.assign(field, { type: "hidden", name: "csrf", value: token });
  form.append(field);
}, true);

/** Title and icon show lateness, from [data-late] of the page, and follow swapped parts. */
const title = document.title, icon = document.getElementById("icon");
function showLateness() {
  const late = Number(document.querySelector("[data-late]")?.dataset.late ?? 0);
  document.title = ["", "◐ ", "▲ ", "▲ "][late] + title;
  icon.href = `/static/icon${["", "-late", "-bad", "-bad"][late]}.svg`;
}
document.addEventListener("htmx:after:swap", showLateness);
showLateness();

const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const UNITS = [["d", 86400, "h", 3600], ["h", 3600, "min", 60], ["min", 60, "s", 1]];
const inUnits = (s) => {
  const [large, size, small, part] = UNITS.find((unit) => s >= unit[1]);
  const rest = Math.floor((s % size) / part);
  return `${Math.floor(s / size)} ${large}${rest ? ` ${rest} ${small}` : ""}`;
};
const seconds = (s) => s < 0.9995 ? `${Math.round(s * 1000)} ms` : s < 59.95 ? `${s.toFixed(1)} s` : inUnits(Math.round(s));

/** The current value of a CSS colour variable: canvas does not know light-dark(). */
function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const color = getComputedStyle(probe).color;
  probe.remove();
  return color;
}

/** A row of parts, each [tag, text]. Text is never read as markup. */
function line(className, parts) {
  const row = document.createElement("div");
  row.className = className;
  for (const [tag, text] of parts) {
    const part = document.createElement(tag);
    part.textContent = text;
    row.append(part);
  }
  return row;
}

/** Chart of [data-lag-s] over the last minutes, with a sentence below. */
class LagChart extends HTMLElement {
  static #SPAN_S = 120;
  static #REPEAT_S = 3; // an unchanged value is sampled again after this time, while the page is up to date
  static #STEPS_S = [0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400, 604800];
  #times = [];
  #lags = [];
  connectedCallback() {
    this.canvas = document.createElement("div");
    this.canvas.setAttribute("role", "img");
    this.caption = document.createElement("p");
    this.caption.className = "dim";
    this.caption.textContent = "No data yet.";
    this.append(this.canvas, this.caption);
    this.redraw = () => this.draw();
    for (const [source, event] of [[window, "scheme"], [window, "resize"], [dark, "change"]]) source.addEventListener(event, this.redraw);
    this.draw();
    this.run();
  }
  disconnectedCallback() {
    for (const [source, event] of [[window, "scheme"], [window, "resize"], [dark, "change"]]) source.removeEventListener(event, this.redraw);
  }
  async run() {
    this.sample(document.querySelector("[data-lag-s]")?.dataset.lagS);
    while (this.isConnected) {
      await pause(1000);
      const lagS = document.querySelector("[data-lag-s]")?.dataset.lagS;
      if (upToDate() && (lagS !== this.lagS || Date.now() / 1000 - this.#times.at(-1) > LagChart.#REPEAT_S)) this.sample(lagS);
    }
  }
  sample(lagS) {
    this.lagS = lagS;
    this.#times.push(Date.now() / 1000);
    this.#lags.push(lagS ? Number(lagS) : null);
    while (this.#times[0] < this.#times.at(-1) - LagChart.#SPAN_S) { this.#times.shift(); this.#lags.shift(); }
    this.plot.setData([this.#times, this.#lags]);
    this.describe();
  }
  describe() {
    const lags = this.#lags.filter((lag) => lag !== null);
    const now = this.#lags.at(-1);
    this.caption.textContent = lags.length && now !== null
      ? `${seconds(now)} now, at most ${seconds(Math.max(...lags))} since this page was opened.`
      : "No watermark yet.";
    this.canvas.setAttribute("aria-label", `Watermark lag over time: ${this.caption.textContent}`);
  }
  draw() {
    this.plot?.destroy();
    const axis = { stroke: colour("--dim"), font: "12px system-ui, sans-serif", grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const time = (_, stamps) => stamps.map((s) => new Date(s * 1000).toTimeString().slice(0, 8));
    this.plot = new uPlot({
      width: this.clientWidth, height: 180, padding: [8, 12, 0, 0], legend: { show: false }, cursor: { show: false },
      scales: {
        x: { range: () => { const end = this.#times.at(-1) ?? Date.now() / 1000; return [end - LagChart.#SPAN_S, end]; } },
        y: { range: (_, low, high) => [0, Math.max(2, (high ?? 0) * 1.15)] },
      },
      series: [{}, { stroke: colour("--accent"), fill: colour("--accent-soft"), width: 2, points: { show: () => this.#times.length < 2, size: 5 } }],
      axes: [{ ...axis, space: 90, size: 28, values: time }, { ...axis, size: 58, incrs: LagChart.#STEPS_S, values: (_, marks) => marks.map(seconds) }],
    }, [this.#times, this.#lags], this.canvas);
    this.describe();
  }
}
customElements.define("ts-lag-chart", LagChart);

/** The newest decoded changes of `tenant` (with `keys`: of keys), from timestamp `start` on; `filter` and `pause` name an input and a button. */
class Tail extends HTMLElement {
  static #ROWS_MAX = 120;
  static #SIGNS = { insert: "+", put: "+", update: "~", delete: "−", ddl: "≡" };
  #paused = false;
  #over = false;
  #cursor = null;
  connectedCallback() {
    this.tabIndex = 0;
    this.setAttribute("role", "log");
    const what = this.hasAttribute("keys") ? "Keys" : "Rows";
    this.setAttribute("aria-label", `Newest decoded ${what.toLowerCase()}`);
    this.setAttribute("aria-live", "off");
    this.textContent = `No change yet. ${what} appear here as they are committed upstream.`;
    this.input = document.getElementById(this.getAttribute("filter"));
    this.input.addEventListener("input", () => { for (const row of this.children) this.sift(row); });
    const button = document.getElementById(this.getAttribute("pause"));
    button.addEventListener("click", () => {
      this.#paused = !this.#paused;
      button.setAttribute("aria-pressed", this.#paused);
      reconnect(); // the stream continues without rows, or from the last row shown
    });
    attachTail({
      query: () => this.#paused || this.#over ? null : { tail: this.getAttribute("tenant"), ...(this.hasAttribute("keys") && { tail_keys: true }), ...this.#from() },
      show: (update) => this.#update(update),
    });
  }
  #from() {
    return this.#cursor ? { tail_cursor: this.#cursor } : { tail_start: this.getAttribute("start") };
  }
  #update({ cursor, events, over, words }) {
    this.#cursor = cursor ?? this.#cursor;
    if (!this.#paused) this.show(events);
    if (!over) return;
    this.#over = true;
    if (this.children.length) this.prepend(line("error", [["b", "!"], ["span", words]]));
    else this.textContent = words;
    reconnect();
  }
  show(events) {
    if (events.length && !this.children.length) this.textContent = "";
    for (const event of events) {
      const [type, time, name, text] = event.op ? Tail.#ofKey(event) : Tail.#ofRow(event);
      const row = line(type, [
        ["b", Tail.#SIGNS[type] ?? "!"], ["i", time.slice(11, 23)], ["em", name.slice(0, 200)],
        ["span", text.replace(/\s+/g, " ").slice(0, 400)],
      ]);
      this.sift(row);
      this.prepend(row);
    }
    while (this.children.length > Tail.#ROWS_MAX) this.lastChild.remove();
  }
  static #ofRow(event) {
    const name = event.table ? `${event.database}.${event.table}` : event.database;
    return [event.type, event.commit_time, name, event.query ?? JSON.stringify(event.columns ?? event.old ?? event.cause)];
  }
  static #ofKey({ op, key, value, ts, expire_ts }) {
    const expiry = expire_ts ? ` (expires ${new Date(expire_ts * 1000).toISOString().slice(0, 19).replace("T", " ")})` : "";
    return [op, new Date(Number(BigInt(ts) >> 18n)).toISOString(), key, `${value ?? ""}${expiry}`];
  }
  sift(row) {
    row.hidden = !row.textContent.toLowerCase().includes(this.input.value.toLowerCase());
  }
}
customElements.define("ts-tail", Tail);

/** A line with a copy button. Without a clipboard (a page over plain HTTP) the button selects the line. */
class Copy extends HTMLElement {
  connectedCallback() {
    const code = this.querySelector("code"), button = document.createElement("button");
    Object.assign(button, { type: "button", className: "quiet", textContent: "Copy" });
    const what = code.getAttribute("aria-label");
    button.setAttribute("aria-label", `Copy ${what[0].toLowerCase()}${what.slice(1)}`);
    button.addEventListener("click", async () => {
      try { await navigator.clipboard.writeText(code.textContent); } catch { getSelection().selectAllChildren(code); return; }
      button.textContent = "Copied";
      await pause(1500);
      button.textContent = "Copy";
    });
    this.append(button);
  }
}
customElements.define("ts-copy", Copy);

/** Describe a cell of a key-space strip below it. */
function describe(cell) {
  const words = cell?.closest("section").querySelector(".strip-words");
  if (words) words.textContent = cell.getAttribute("aria-label");
}
for (const event of ["focusin", "mouseover"]) document.addEventListener(event, ({ target }) => describe(target.closest?.(".strip a")));
// A swapped part has the hint again.
document.addEventListener("htmx:after:swap", () => describe(document.querySelector(".strip a:focus") ?? document.querySelector(".strip a:hover")));

/** A range input over timestamps. Choosing one submits its form. */
class Steps extends HTMLElement {
  connectedCallback() {
    const steps = this.getAttribute("steps").split(" "), input = this.querySelector("input"), form = this.closest("form");
    input.addEventListener("input", () => {
      form.querySelector("output").textContent = input.value;
      form.querySelector("[name=at]").value = steps[input.value];
      form.querySelector("#at-ts").textContent = steps[input.value];
    });
    input.addEventListener("change", () => form.submit());
  }
}
customElements.define("ts-steps", Steps);
