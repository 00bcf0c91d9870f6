/* The client's half of the shell: addresses, live refresh, theme, language, shortcuts.
 *
 * Every state of a page lives in the address. A control changes it through `flightwatch.set`, which rewrites the
 * address without an entry in the history and hands the new state to the page's store `view`; links push an entry and
 * hand the new route to the store `route`. Nothing here talks to another server.
 */
(function () {
  "use strict";
  const root = document.documentElement;
  const base = root.dataset.base || "";
  const texts = JSON.parse(document.getElementById("fw-texts").textContent);
  /* Carried from page to page. */
  const GLOBAL = ["range", "from", "to", "tz", "refresh"];
  const POLL_MS = 5000;
  const SHORTEST_BEAT_MS = 2000;

  function text(key, values) {
    let found = texts[key] || key;
    for (const name in values || {}) found = found.replace("{" + name + "}", values[name]);
    return found;
  }

  /* Addresses ------------------------------------------------------------------------------------------------ */

  function path() {
    const here = location.pathname;
    return base && here.startsWith(base) ? here.slice(base.length) || "/" : here;
  }

  function params() {
    return Object.fromEntries(new URLSearchParams(location.search));
  }

  function view() {
    return { path: path(), params: params() };
  }

  function store(id, data) {
    try {
      window.dash_clientside.set_props(id, { data: data });
    } catch (error) {
      /* The page is on its way: it will read the address itself. */
    }
  }

  function address(target, values) {
    const query = new URLSearchParams();
    for (const name of Object.keys(values).sort()) {
      if (values[name] !== null && values[name] !== undefined && values[name] !== "") query.set(name, values[name]);
    }
    const tail = query.toString().replaceAll("%3A", ":").replaceAll("%2C", ",").replaceAll("%2F", "/");
    return base + target + (tail ? "?" + tail : "");
  }

  /* `keep`: the state before stays in the history, so that "back" brings it again. */
  function set(changes, keep) {
    const now = params();
    const after = Object.assign({}, now, changes);
    const next = address(path(), after);
    if (next === address(path(), now)) return;
    if (keep) history.pushState(null, "", next + location.hash);
    else history.replaceState(null, "", next + location.hash);
    store("view", view());
    sync();
    schedule();
  }

  function go(href) {
    const url = new URL(href, location.href);
    const kept = {};
    const own = Object.fromEntries(url.searchParams);
    for (const name of GLOBAL) if (name in params()) kept[name] = params()[name];
    if ("from" in own) delete kept.range;
    if ("range" in own) { delete kept.from; delete kept.to; }
    const target = base && url.pathname.startsWith(base) ? url.pathname.slice(base.length) || "/" : url.pathname;
    history.pushState(null, "", address(target, Object.assign(kept, own)) + url.hash);
    store("route", view());
    window.scrollTo(0, 0);
  }

  window.addEventListener("popstate", () => store("route", view()));

  function isPage(link) {
    const url = new URL(link.href, location.href);
    if (url.origin !== location.origin || link.target || link.hasAttribute("download")) return false;
    const target = base && url.pathname.startsWith(base) ? url.pathname.slice(base.length) : url.pathname;
    return !/^\/(api|assets|perfetto|login|logout|_dash)/.test(target);
  }

  document.addEventListener("click", (event) => {
    const action = event.target.closest("[data-action]");
    if (action && act(action)) { event.preventDefault(); return; }
    const link = event.target.closest("a[href]");
    /* Perfetto wants whole addresses of what it opens. */
    if (link && link.dataset.absolute) link.href = link.href.replace(/%7Borigin%7D|\{origin\}/, encodeURIComponent(location.origin));
    if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    if (!isPage(link)) return;
    event.preventDefault();
    go(link.href);
  });

  /* Actions of the header ------------------------------------------------------------------------------------- */

  function cookie(name, value) {
    document.cookie = name + "=" + value + "; path=" + (base || "/") + "; max-age=31536000; samesite=lax";
  }

  function dark() {
    return root.dataset.theme === "dark";
  }

  function theme(name) {
    root.dataset.theme = name;
    root.dataset.mantineColorScheme = name;
    document.body.dataset.agThemeMode = name;
    cookie("fw_theme", name);
    try { window.dash_clientside.set_props("theme", { forceColorScheme: name }); } catch (error) { /* not there yet */ }
    window.dispatchEvent(new Event("fw-theme"));
  }

  function language(name) {
    cookie("fw_lang", name);
    const now = params();
    delete now.lang;
    location.replace(address(path(), now));
  }

  function copy(value, said) {
    const done = () => toast(said);
    if (navigator.clipboard && window.isSecureContext) {
      navigator.clipboard.writeText(value).then(done, () => copyOld(value, done));
    } else copyOld(value, done);
  }

  function copyOld(value, done) {
    const area = document.createElement("textarea");
    area.value = value;
    area.style.position = "fixed";
    area.style.opacity = "0";
    document.body.appendChild(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    done();
  }

  let toastTimer = 0;
  function toast(said) {
    let box = document.getElementById("fw-toast");
    if (!box) {
      box = document.createElement("div");
      box.id = "fw-toast";
      box.setAttribute("role", "status");
      document.body.appendChild(box);
    }
    box.textContent = said;
    box.className = "shown";
    clearTimeout(toastTimer);
    toastTimer = setTimeout(() => { box.className = ""; }, 2500);
  }

  function act(element) {
    const name = element.dataset.action;
    if (name === "theme") theme(dark() ? "light" : "dark");
    else if (name === "lang") language(element.dataset.lang);
    else if (name === "copy-link") copy(location.href, text("js.link_copied"));
    else if (name === "copy-text") copy(element.dataset.text, text("js.copied"));
    else if (name === "help") help();
    else if (name === "close-help") document.getElementById("fw-help").close();
    else if (name === "set") set(JSON.parse(element.dataset.set));
    else if (name === "range") absolute();
    else if (name === "fill-ranks") {
      try { window.dash_clientside.set_props("profiler-ranks", { value: element.dataset.text }); } catch (error) { return false; }
      set({ ranks: element.dataset.text });
    }
    else if (name === "menu") document.getElementById("fw-header").classList.toggle("open");
    else return false;
    return true;
  }

  function absolute() {
    const from = document.getElementById("fw-from").value.trim();
    const to = document.getElementById("fw-to").value.trim();
    const form = document.querySelector(".fw-pop[open]");
    if (form) form.open = false;
    if (from) set({ from: from.replace(" ", "T"), to: to.replace(" ", "T"), range: null });
  }

  function help() {
    const box = document.getElementById("fw-help");
    if (box.open) box.close(); else box.showModal();
  }

  /* Shortcuts --------------------------------------------------------------------------------------------------- */

  let prefix = 0;
  function typing(target) {
    return target.closest && target.closest("input, textarea, select, [contenteditable], .cm-editor");
  }

  document.addEventListener("keydown", (event) => {
    if (event.metaKey || event.ctrlKey || event.altKey || event.defaultPrevented) return;
    if (event.key === "Escape" && typing(event.target)) { event.target.blur(); return; }
    if (typing(event.target)) return;
    const following = Date.now() - prefix < 1500;
    prefix = 0;
    if (following) {
      const link = document.querySelector('a[data-go="' + CSS.escape(event.key) + '"]');
      if (link) { event.preventDefault(); go(link.href); return; }
    }
    if (event.key === "g") { prefix = Date.now(); return; }
    if (event.key === "?") { event.preventDefault(); help(); return; }
    if (event.key === "/") {
      const box = document.querySelector("[data-search]") || document.getElementById("fw-search");
      if (box) { event.preventDefault(); (box.matches("input") ? box : box.querySelector("input")).focus(); }
      return;
    }
    if (event.key === "t") { theme(dark() ? "light" : "dark"); return; }
    if (event.key === "l") { copy(location.href, text("js.link_copied")); return; }
    const button = document.querySelector('[data-shortcut="' + CSS.escape(event.key) + '"]');
    if (button && !button.disabled) { event.preventDefault(); button.click(); }
  });

  /* Live ---------------------------------------------------------------------------------------------------------- */

  let socket = null;
  let socketOpen = false;
  let retryMs = 1000;
  let beats = 0;
  let lastBeat = 0;
  let pending = 0;
  let timer = 0;

  function mode() {
    const now = params();
    if (now.from || now.refresh === "off") return "paused";
    return now.refresh || "live";
  }

  function said(state) {
    root.dataset.live = state;
  }

  function busy() {
    return document.querySelector('[data-dash-is-loading="true"]') !== null;
  }

  function beat() {
    clearTimeout(pending);
    const wait = lastBeat + SHORTEST_BEAT_MS - Date.now();
    if (wait > 0 || busy()) { pending = setTimeout(beat, Math.max(250, wait)); return; }
    if (document.hidden || mode() === "paused") return;
    lastBeat = Date.now();
    beats += 1;
    store("beat", beats);
  }

  function connect() {
    const url = location.protocol.replace("http", "ws") + "//" + location.host + base + "/api/v1/live";
    socket = new WebSocket(url);
    socket.onopen = () => { socketOpen = true; retryMs = 1000; schedule(); };
    socket.onmessage = () => { if (mode() === "live") beat(); };
    socket.onclose = () => {
      socketOpen = false;
      schedule();
      retryMs = Math.min(60000, retryMs * 2);
      setTimeout(connect, retryMs);
    };
  }

  function schedule() {
    clearInterval(timer);
    const now = mode();
    if (now === "paused") { said("paused"); return; }
    const seconds = Number(now);
    if (seconds > 0) { said("poll"); timer = setInterval(beat, seconds * 1000); return; }
    said(socketOpen ? "live" : "poll");
    /* The socket tells what is new; the slow timer keeps ages of quiet data true. */
    timer = setInterval(beat, socketOpen ? 4 * POLL_MS : POLL_MS);
  }

  document.addEventListener("visibilitychange", () => { if (!document.hidden) beat(); });
  window.addEventListener("offline", () => said("lost"));
  window.addEventListener("online", schedule);
  /* A callback that cannot reach the server is the first sign that it is gone. */
  const plainFetch = window.fetch;
  window.fetch = function () {
    return plainFetch.apply(this, arguments).then(
      (answer) => { if (root.dataset.live === "lost") schedule(); return answer; },
      (error) => { if (error.name !== "AbortError") said("lost"); throw error; });
  };

  /* Native menus: `data-param` names the parameter, `data-default` the value that is left out of the address. */
  document.addEventListener("change", (event) => {
    const menu = event.target.closest("select[data-param]");
    if (!menu) return;
    const changes = { [menu.dataset.param]: menu.value === menu.dataset.default ? null : menu.value };
    if (menu.dataset.param === "range") {
      if (menu.value === "custom") return;
      changes.from = null;
      changes.to = null;
    }
    set(changes);
  });

  function sync() {
    const now = params();
    for (const menu of document.querySelectorAll("select[data-param]")) {
      const fixed = menu.dataset.param === "range" && now.from;
      if (fixed && ![...menu.options].some((option) => option.value === "custom"))
        menu.prepend(new Option(text("js.range_fixed"), "custom"));
      const value = fixed ? "custom" : now[menu.dataset.param] || menu.dataset.default;
      if (menu.value !== value && [...menu.options].some((option) => option.value === value)) menu.value = value;
    }
  }

  /* After each page: the marked link, the title. */
  function arrived(title) {
    document.title = title ? title + " · Flightwatch" : "Flightwatch";
    for (const link of document.querySelectorAll("#fw-nav a")) {
      const target = new URL(link.href).pathname;
      const own = base + path();
      const active = target === base + "/" ? own === target : own === target || own.startsWith(target.replace(/s$/, ""));
      if (active) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
    }
    document.getElementById("fw-header").classList.remove("open");
    sync();
    schedule();
  }

  window.flightwatch = { base, text, view, set, go, theme, dark, copy, toast, arrived, params };
  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    flightwatch: {
      route: () => view(),
      arrived: (title) => { arrived(title); return window.dash_clientside.no_update; },
      control: () => {
        const changes = {};
        for (const one of window.dash_clientside.callback_context.inputs_list[0] || []) {
          const value = one.value === undefined || one.value === null ? "" : String(one.value);
          changes[one.id.name] = value === one.id.default ? null : value;
        }
        set(changes);
        return window.dash_clientside.no_update;
      },
    },
  });
  schedule();
  connect();
})();
