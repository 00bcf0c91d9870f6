/* What the console's canvas components share: arrays, colours, sizes, the tooltip. */
(function () {
  "use strict";
  const kinds = { f4: Float32Array, u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i4: Int32Array };

  /* base64 of little-endian bytes to a typed array. */
  function unpack(text, kind) {
    if (!text) return new kinds[kind](0);
    const raw = atob(text);
    const bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    return new kinds[kind](bytes.buffer);
  }

  /* Colour scales: told apart by people who see red and green alike; dark is low on dark, light is low on light. */
  const ramps = {
    heat: ["#d7e6f5", "#9fc6e6", "#5b9bd0", "#2f6fb0", "#e8c35a", "#f09a2c", "#e2542c", "#a8123e"],
    heatDark: ["#1d3b5c", "#245a8d", "#2f7cbb", "#67a9d8", "#e8c35a", "#f4a132", "#ee5f33", "#e0245e"],
    load: ["#e3edf7", "#b5d2ea", "#7fb2d9", "#4b8fc4", "#2a6ca6", "#1a4c80"],
    loadDark: ["#1a2a3d", "#1f4468", "#256294", "#3485bf", "#65abd9", "#a8d4ee"],
    around: ["#1d5fa8", "#4f90c9", "#a9c9e4", "#e4e9ee", "#e4e9ee", "#e4e9ee", "#f0bd82", "#e2762f", "#b3211a"],
    aroundDark: ["#58b0f5", "#2f78b5", "#25435f", "#232a34", "#232a34", "#232a34", "#5e4526", "#d67a2b", "#ff5a3c"],
    diff: ["#1d5fa8", "#6fa8d6", "#c3d9ec", "#e6eaef", "#f3c58b", "#e8853a", "#c2331f"],
    diffDark: ["#58b0f5", "#2f78b5", "#28527a", "#333b46", "#86572a", "#d67a2b", "#ff5a3c"],
    severity: ["#c9d2dc", "#7aa7ff", "#e3b93c", "#f08a2e", "#e0393e"],
    severityDark: ["#2b3643", "#5f8fe6", "#d9b544", "#f09238", "#f2474c"],
  };
  const STEPS = 64;
  const tables = {};

  function parse(hex) {
    return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  }

  /* A scale as STEPS css colours. */
  function table(name) {
    const key = name + (window.flightwatch.dark() && ramps[name + "Dark"] ? "Dark" : "");
    if (!tables[key]) {
      const stops = ramps[key].map(parse);
      tables[key] = Array.from({ length: STEPS }, (_, i) => {
        const at = (i / (STEPS - 1)) * (stops.length - 1);
        const low = Math.min(stops.length - 2, Math.floor(at));
        const mixed = stops[low].map((from, c) => Math.round(from + (stops[low + 1][c] - from) * (at - low)));
        return "rgb(" + mixed.join(",") + ")";
      });
    }
    return tables[key];
  }

  /* Index into a table; -1 for what is unknown. */
  function shade(value, low, high) {
    if (value !== value) return -1;
    const at = Math.round(((value - low) / (high - low || 1)) * (STEPS - 1));
    return at < 0 ? 0 : at >= STEPS ? STEPS - 1 : at;
  }

  function ink(name) {
    return getComputedStyle(document.documentElement).getPropertyValue("--fw-" + name).trim();
  }

  /* Size a canvas to its box in device pixels; return its context in css pixels. */
  function prepare(canvas, width, height) {
    const ratio = window.devicePixelRatio || 1;
    const wide = Math.round(width * ratio);
    const high = Math.round(height * ratio);
    if (canvas.width !== wide || canvas.height !== high) { canvas.width = wide; canvas.height = high; }
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    return context;
  }

  let box = null;
  function tip(lines, x, y) {
    if (!box) {
      box = document.createElement("div");
      box.className = "fw-tip";
      document.body.appendChild(box);
    }
    if (!lines) { box.style.display = "none"; return; }
    box.replaceChildren(...lines.map((line, index) => {
      const row = document.createElement("div");
      row.textContent = line;
      if (!index) row.className = "first";
      return row;
    }));
    box.style.display = "block";
    const wide = box.offsetWidth;
    const high = box.offsetHeight;
    box.style.left = Math.max(4, Math.min(window.innerWidth - wide - 8, x + 14)) + "px";
    box.style.top = (y + high + 24 > window.innerHeight ? y - high - 12 : y + 16) + "px";
  }

  function number(value, unit) {
    if (value !== value) return "—";
    const size = Math.abs(value);
    const plain = size >= 10000 ? Math.round(value).toLocaleString("en-US")
      : size >= 100 ? value.toFixed(size % 1 ? 1 : 0) : String(Number(value.toPrecision(3)));
    return unit ? plain + " " + unit : plain;
  }

  /* Redraw when the box changes its width or the theme changes; returns how to stop. */
  function watch(element, redraw) {
    const observer = new ResizeObserver(() => redraw());
    observer.observe(element);
    window.addEventListener("fw-theme", redraw);
    return () => { observer.disconnect(); window.removeEventListener("fw-theme", redraw); tip(null); };
  }

  window.flightwatch_draw = { unpack, table, shade, ink, prepare, tip, number, watch, STEPS };
  window.flightwatch_console = window.flightwatch_console || {};
})();
