/* Everything a person changes goes from a form to the API: never from a callback, so that opening a page writes nothing.
 *
 * A form with `data-post` sends its fields as JSON. `data-body` holds what is sent besides; a field's `data-as` says how
 * it travels (number, hours: a moment so many hours from now, list, json), `data-into` the object it is a part of. `{name}` in the path is filled in from the
 * fields, and not sent. `data-each` sends it once for each selected row of a grid. `data-confirm` names the field whose
 * text must be what `data-expect` says. `data-then` follows an answer: `reload` (default), or an address with `{id}`.
 */
(function () {
  "use strict";
  const app = window.flightwatch;

  function cookie(name) {
    const found = document.cookie.split("; ").find((one) => one.startsWith(name + "="));
    return found ? decodeURIComponent(found.slice(name.length + 1)) : "";
  }

  function key() {
    const bytes = crypto.getRandomValues(new Uint8Array(16));
    return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  }

  async function send(method, path, body) {
    const answer = await fetch(app.base + path, {
      method, credentials: "same-origin",
      headers: { "Content-Type": "application/json", "X-CSRFToken": cookie("_csrf_token"), "Idempotency-Key": key() },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    const document_ = answer.status === 204 ? {} : await answer.json().catch(() => ({}));
    if (answer.ok) return document_;
    throw new Error((document_.error && document_.error.message) || "HTTP " + answer.status);
  }

  function value(field) {
    const text = field.type === "checkbox" ? field.checked : field.value.trim();
    if (text === "") return undefined;
    const as = field.dataset.as || (field.closest("[data-as]") || { dataset: {} }).dataset.as;
    if (as === "number") return Number(text);
    if (as === "hours") return new Date(Date.now() + Number(text) * 3600e3).toISOString();
    if (as === "list") return text.split(/[\s,]+/).filter(Boolean);
    if (as === "json") return JSON.parse(text);
    return text;
  }

  function read(form) {
    const body = JSON.parse(form.dataset.body || "{}");
    let path = form.dataset.post;
    for (const field of form.querySelectorAll("input[name], textarea[name], select[name]")) {
      if (field.name === form.dataset.confirm) continue;
      const found = value(field);
      const hole = "{" + field.name + "}";
      const whole = (field.closest("[data-into]") || { dataset: {} }).dataset.into;
      if (path.includes(hole)) path = path.replace(hole, encodeURIComponent(found === undefined ? "" : found));
      else if (whole && found !== undefined) body[whole] = Object.assign(body[whole] || {}, { [field.name]: found });
      else if (found !== undefined) body[field.name] = found;
    }
    return { path, body };
  }

  function say(form, words) {
    let box = form.querySelector(".fw-form-error");
    if (!box) {
      box = document.createElement("p");
      box.className = "fw-form-error fw-error";
      box.setAttribute("role", "alert");
      form.appendChild(box);
    }
    box.textContent = words;
  }

  function refresh() {
    try { window.dash_clientside.set_props("beat", { data: Date.now() }); } catch (error) { location.reload(); }
  }

  /* A drain by a person: asked for, approved and handed to the engine in one go. Each step is checked by the server. */
  async function drain(form) {
    const { body } = read(form);
    let id = form.dataset.known || "";
    if (!id) id = (await send("POST", "/api/v1/actions", body)).id;
    const revision = form.dataset.revision ? Number(form.dataset.revision) : null;
    const given = await send("POST", "/api/v1/actions/" + id + "/approval", { incident_revision: revision });
    return send("POST", "/api/v1/actions/" + id + "/approve", { approval: given.approval });
  }

  async function run(form) {
    if (form.dataset.steps === "drain") return drain(form);
    const method = form.dataset.method || "POST";
    const { path, body } = read(form);
    if (!form.dataset.each) return send(method, path, method === "DELETE" ? undefined : body);
    const ids = selected[form.dataset.each] || [];
    if (!ids.length) throw new Error(app.text("js.nothing_selected"));
    for (const id of ids) await send(method, path.replace("{each}", encodeURIComponent(id)), body);
    return {};
  }

  const selected = {};

  document.addEventListener("submit", async (event) => {
    const form = event.target.closest("form[data-post]");
    if (!form) return;
    event.preventDefault();
    const typed = form.dataset.confirm && form.querySelector('[name="' + CSS.escape(form.dataset.confirm) + '"]');
    if (typed && typed.value.trim() !== form.dataset.expect) {
      say(form, app.text("js.type_exactly", { expect: form.dataset.expect }));
      typed.focus();
      return;
    }
    const buttons = form.querySelectorAll("button");
    buttons.forEach((button) => { button.disabled = true; });
    try {
      const answer = await run(form);
      const then = form.dataset.then || "reload";
      const open = form.closest("details");
      if (open) open.open = false;
      for (const field of form.querySelectorAll("textarea[name], input[name]")) {
        if (field.dataset.keep === undefined && field.type !== "checkbox" && !field.readOnly) clear(field);
      }
      const old = form.querySelector(".fw-form-error");
      if (old) old.remove();
      app.toast(form.dataset.done || app.text("js.done"));
      if (form.dataset.shows) show(form, answer);
      if (then === "reload") refresh();
      else app.go(app.base + then.replace("{id}", encodeURIComponent(answer.id || "")));
    } catch (error) {
      say(form, error.message);
    } finally {
      buttons.forEach((button) => { button.disabled = false; });
    }
  });

  /* React keeps the value of its inputs itself: it must hear of the change. */
  function clear(field) {
    const kind = field.tagName === "TEXTAREA" ? HTMLTextAreaElement : HTMLInputElement;
    Object.getOwnPropertyDescriptor(kind.prototype, "value").set.call(field, field.defaultValue || "");
    field.dispatchEvent(new Event("input", { bubbles: true }));
  }

  /* What is shown once and never again, such as a new token. */
  function show(form, answer) {
    const box = document.createElement("p");
    box.className = "fw-once";
    const code = document.createElement("code");
    code.textContent = answer[form.dataset.shows] || "";
    box.append(app.text("js.shown_once") + " ", code);
    form.appendChild(box);
  }

  window.dash_clientside = Object.assign({}, window.dash_clientside);
  window.dash_clientside.flightwatch_writes = {
    /* Keeps the ids of a grid's selected rows, and says how many there are. */
    select: (rows, grid) => {
      selected[grid] = (rows || []).map((row) => row.id);
      return selected[grid].length ? app.text("js.selected", { n: selected[grid].length }) : "";
    },
  };
})();
