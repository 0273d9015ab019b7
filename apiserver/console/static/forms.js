// Forms that call the API, and pages that open as a dialog. Answers become text, never markup.

const ID_MAX = (1n << 63n) - 1n;

/** An Idempotency-Key. (randomUUID is missing on pages over plain HTTP.) */
const onceKey = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

/** The value at a path such as push.key. */
const valueAt = (values, path) => path.split(".").reduce((value, name) => value?.[name], values);

const quoted = (text) => /^[\w.:/-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;

/** Members of a request's body as JSON text, or an error message. Ids keep their 64 bits: they never become a number. */
const KINDS = {
  id(name, text) {
    if (!/^\d{1,19}$/.test(text) || BigInt(text) > ID_MAX) return { wrong: "A number from 0 to 9223372036854775807, in digits." };
    return { member: `${JSON.stringify(name)}:${BigInt(text)}` };
  },
  number: (name, text) => ({ member: `${JSON.stringify(name)}:${Number(text)}` }),
  tenant(_, text) {
    const [cluster, tenant] = text.split("/");
    return text ? { member: `"cluster_id":${cluster},"tenant_id":${tenant}` } : {};
  },
  rules: (name, text) => text ? { member: `${JSON.stringify(name)}:${JSON.stringify([text])}` } : {},
  text: (name, text) => ({ member: `${JSON.stringify(name)}:${JSON.stringify(text)}` }),
};

/**
 * A form whose fields are the body of a POST to `api`. The answer fills the <template>, which replaces the form: data-text
 * and data-env name a value of the answer (asked.NAME is a field), data-if and data-unless drop an element, {NAME} in an
 * attribute is replaced. `check` is requested first, with the same fields, for `why_not`. The same fields sent again after
 * a failure reuse the Idempotency-Key.
 */
class Ask extends HTMLElement {
  #body = null;
  #key = "";
  connectedCallback() {
    this.form = this.querySelector("form");
    this.form.noValidate = true; // errors are shown beside the fields
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.send(); });
  }
  async send() {
    const asked = {}, members = [];
    let first = null;
    for (const field of this.form.querySelectorAll("[name]")) {
      const text = field.value.trim();
      const parsed = field.required && !text ? { wrong: "Required." } : KINDS[field.dataset.kind ?? "text"](field.name, text);
      const words = document.getElementById(`${field.id}-wrong`);
      if (words) { words.textContent = parsed.wrong ?? ""; words.hidden = !parsed.wrong; }
      field.setAttribute("aria-invalid", Boolean(parsed.wrong));
      if (parsed.wrong) first ??= field;
      if (parsed.member) members.push(parsed.member);
      asked[field.name] = field.dataset.kind === "id" && !parsed.wrong ? String(BigInt(text)) : text;
    }
    this.wrong();
    if (first) { first.focus(); return; }
    const button = this.form.querySelector("button.act");
    button.disabled = true;
    try { await this.ask(asked, `{${members.join(",")}}`); }
    catch { this.wrong("The service does not answer. Send the form again: the request is done only once."); }
    button.disabled = false;
  }
  async ask(asked, body) {
    if (this.hasAttribute("check")) {
      const answer = await fetch(`${this.getAttribute("check")}?${new URLSearchParams(asked)}`);
      const { why_not: why, see } = answer.ok ? await answer.json() : {};
      if (why) { this.wrong(why, see); return; }
    }
    if (body !== this.#body) [this.#body, this.#key] = [body, onceKey()];
    const token = document.querySelector("meta[name=csrf-token]")?.content;
    const headers = { "Content-Type": "application/json", "Idempotency-Key": this.#key, ...(token && { "X-CSRF-Token": token }) };
    const answer = await fetch(this.getAttribute("api"), { method: "POST", headers, body });
    const facts = await answer.json();
    if (answer.ok) this.show({ ...facts, asked, replayed: answer.headers.has("Idempotent-Replayed") });
    else if (answer.status === 401) this.wrong("Your session has ended.", "/login");
    else this.wrong([facts.detail, facts.hint].filter(Boolean).join(" "));
  }
  /** Show an error beside the form, with a link; hide it without a message. */
  wrong(message = "", see = null) {
    const alert = this.form.querySelector("[role=alert]");
    alert.textContent = message;
    alert.hidden = !message;
    if (!see) return;
    const link = document.createElement("a");
    Object.assign(link, { href: see, textContent: see === "/login" ? "Sign in again" : "Show it" });
    alert.append(" ", link);
  }
  show(facts) {
    const view = this.querySelector("template").content.cloneNode(true);
    for (const el of view.querySelectorAll("*")) {
      const { text, env, if: needs, unless } = el.dataset;
      if ((needs && !valueAt(facts, needs)) || (unless && valueAt(facts, unless))) { el.remove(); continue; }
      if (text) el.textContent = valueAt(facts, text) ?? "";
      if (env) el.textContent = Object.entries(valueAt(facts, env)).map(([name, value]) => `export ${name}=${quoted(value)}`).join("\n");
      for (const { name, value } of [...el.attributes]) {
        if (value.includes("{")) el.setAttribute(name, value.replace(/\{([\w.]+)\}/g, (_, path) => encodeURIComponent(valueAt(facts, path))));
      }
    }
    this.replaceChildren(view);
    this.querySelector("[tabindex='-1']")?.focus();
  }
}
customElements.define("ts-ask", Ask);

/** Put this site's address into lines to copy. */
export function fillOrigin(within) {
  for (const el of within.querySelectorAll(".origin")) el.textContent = location.origin;
}

/** A link with data-dialog opens its page in a dialog; without a script, or with Ctrl, it is a link. */
async function openDialog(address) {
  const answer = await fetch(address, { headers: { "HX-Request": "true" } });
  if (!answer.ok || answer.redirected) { location.href = address; return; }
  let dialog = document.getElementById("dialog");
  if (!dialog) {
    dialog = document.createElement("dialog");
    dialog.id = "dialog";
    dialog.setAttribute("aria-labelledby", "dialog-title");
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
    dialog.addEventListener("submit", (event) => {
      if (event.target.method !== "get") return;
      event.preventDefault();
      openDialog(`${event.target.getAttribute("action")}?${new URLSearchParams(new FormData(event.target))}`);
    });
    document.body.append(dialog);
  }
  const close = document.createElement("button"), body = document.createElement("div");
  Object.assign(close, { type: "button", className: "quiet close", textContent: "Close" });
  close.addEventListener("click", () => dialog.close());
  body.innerHTML = await answer.text(); // a part of our own page, escaped where it was made
  fillOrigin(body);
  dialog.replaceChildren(body, close);
  if (!dialog.open) dialog.showModal();
}
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-dialog]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  openDialog(link.getAttribute("href")).catch(() => { location.href = link.href; });
});
