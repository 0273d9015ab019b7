// Custom elements of the console. State comes from the API alone; nothing here is kept between pages but the scheme.

const root = document.documentElement;
if (localStorage.scheme) root.dataset.scheme = localStorage.scheme;
document.getElementById("scheme").addEventListener("click", () => {
  const dark = getComputedStyle(root).colorScheme === "dark" || (!root.dataset.scheme && matchMedia("(prefers-color-scheme: dark)").matches);
  localStorage.scheme = root.dataset.scheme = dark ? "light" : "dark";
  dispatchEvent(new Event("scheme"));
});
for (const el of document.querySelectorAll(".origin")) el.textContent = location.origin;

/** A css colour variable as the browser resolves it now: canvas knows no light-dark(). */
function colour(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

class LagChart extends HTMLElement {
  #times = [];
  #lags = [];
  connectedCallback() {
    this.timer = setInterval(() => this.poll(), 1000);
    addEventListener("scheme", () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    addEventListener("resize", () => this.draw());
    this.poll();
  }
  disconnectedCallback() { clearInterval(this.timer); }
  async poll() {
    if (document.hidden) return;
    let facts;
    try {
      const answer = await fetch(this.getAttribute("src"));
      if (!answer.ok) return;
      facts = await answer.json();
    } catch { return; } // the next poll tries again; the page shows what it had
    this.#times.push(Date.now() / 1000);
    this.#lags.push(facts.lag_ms === null ? null : facts.lag_ms / 1000);
    if (this.#times.length > 300) { this.#times.shift(); this.#lags.shift(); }
    if (this.plot) this.plot.setData([this.#times, this.#lags]); else this.draw();
  }
  draw() {
    if (this.plot) this.plot.destroy();
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    this.plot = new uPlot({
      width: this.clientWidth, height: 190, legend: { show: false }, cursor: { drag: { x: false } },
      series: [{}, { stroke: colour("--accent"), width: 2, points: { show: this.#times.length < 3 } }],
      axes: [axis, { ...axis, size: 64, values: (_, v) => v.map((x) => `${+x.toFixed(1)} s`) }],
    }, [this.#times, this.#lags], this);
  }
}
customElements.define("ts-lag-chart", LagChart);

class Tail extends HTMLElement {
  async connectedCallback() {
    this.tabIndex = 0;
    this.setAttribute("role", "log");
    this.setAttribute("aria-label", "Newest decoded rows");
    this.setAttribute("aria-live", "off");
    let position = `start_ts=${this.getAttribute("start")}`;
    while (this.isConnected) {
      try {
        const answer = await fetch(`${this.getAttribute("src")}?${position}&format=ndjson&limit=2000&wait=5`);
        if (!answer.ok) throw new Error(answer.statusText);
        const lines = (await answer.text()).split("\n").filter(Boolean).map((line) => JSON.parse(line));
        position = `cursor=${answer.headers.get("TiStream-Next-Cursor")}`;
        this.show(lines.filter((event) => event.type !== "resolved").slice(-60));
        if (lines.length < 2) await new Promise((done) => setTimeout(done, 500));
      } catch { await new Promise((done) => setTimeout(done, 2000)); } // the service is away: keep trying
    }
  }
  show(events) {
    for (const event of events) {
      const row = document.createElement("div");
      row.className = event.type;
      const sign = { insert: "+", update: "~", delete: "−", ddl: "≡" }[event.type] ?? "!";
      const text = event.query ?? JSON.stringify(event.columns ?? event.old ?? event.cause);
      for (const [tag, words] of [["b", sign], ["i", event.commit_time?.slice(11, 23) ?? ""], ["span", `${event.database}.${event.table} `], ["span", text.replace(/\s+/g, " ").slice(0, 220)]]) {
        const part = document.createElement(tag);
        part.textContent = words;
        row.append(part);
      }
      this.prepend(row);
    }
    while (this.children.length > 120) this.lastChild.remove();
    if (!this.children.length) this.textContent = "No change yet. Rows appear here as they are committed upstream.";
    else if (this.lastChild.nodeType === Node.TEXT_NODE) this.lastChild.remove();
  }
}
customElements.define("ts-tail", Tail);
