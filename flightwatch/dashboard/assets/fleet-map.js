/* FleetMap: every accelerator a cell, a node a column of cells, a rack (zone, job, switch) a block.
 *
 * Layout and values come apart: a refresh sends one number a device. Cells are drawn colour by colour, so that 100,000
 * cost 100,000 rectangles and 64 changes of colour. Pointer: click opens the node, drag pans, ctrl + wheel zooms.
 * Keyboard: arrows move, Enter opens, + - zoom, 0 shows all.
 */
(function () {
  "use strict";
  const D = window.flightwatch_draw;
  const HOST = 65535;
  const LABEL_PX = 15;
  const GAP_PX = 10;
  const MOST_COLUMNS = 32;
  /* With more blocks than this, names show only when the map is zoomed; with more devices, the map may be taller. */
  const NAMED_BLOCKS = 300;
  const TALL_DEVICES = 20000;
  const TALL_PX = 860;

  /* Unpack a layout: for each device its node, for each node its first device and place in its block. */
  function unfold(layout) {
    const counts = D.unpack(layout.counts, "u2");
    const devices = D.unpack(layout.devices, "u2");
    const sizes = D.unpack(layout.group_sizes, "u4");
    const first = new Uint32Array(counts.length + 1);
    for (let n = 0; n < counts.length; n++) first[n + 1] = first[n] + counts[n];
    const nodeOf = new Uint32Array(devices.length);
    for (let n = 0; n < counts.length; n++) nodeOf.fill(n, first[n], first[n + 1]);
    const groups = [];
    let node = 0;
    for (let g = 0; g < sizes.length; g++) {
      let rows = 1;
      for (let n = node; n < node + sizes[g]; n++) rows = Math.max(rows, counts[n]);
      groups.push({ name: layout.groups[g], node, nodes: sizes[g], rows });
      node += sizes[g];
    }
    return { layout, counts, devices, first, nodeOf, groups, x: new Float32Array(devices.length), y: new Float32Array(devices.length) };
  }

  /* Place blocks left to right, top to bottom; return the height used. */
  function flow(fleet, cell, width, write) {
    let x = 0;
    let y = 0;
    let line = 0;
    const perRow = Math.max(1, Math.floor(width / cell));
    const named = fleet.groups.length <= NAMED_BLOCKS;
    const gap = named ? GAP_PX : 3;
    const label = named ? LABEL_PX : 3;
    fleet.label = label;
    for (const group of fleet.groups) {
      const columns = Math.min(group.nodes, perRow, fleet.groups.length === 1 ? perRow : MOST_COLUMNS);
      const bands = Math.ceil(group.nodes / columns);
      /* Room for the name, where the block is narrower. */
      const wide = Math.max(columns * cell, named ? Math.min(66, group.name.length * 6.3) - gap : 0);
      const high = label + bands * (group.rows * cell) + (bands - 1) * 3;
      if (x && x + wide > width) { x = 0; y += line + gap; line = 0; }
      if (write) {
        Object.assign(group, { x, y, wide, high });
        for (let i = 0; i < group.nodes; i++) {
          const n = group.node + i;
          const left = x + (i % columns) * cell;
          const top = y + label + Math.floor(i / columns) * (group.rows * cell + 3);
          for (let d = fleet.first[n]; d < fleet.first[n + 1]; d++) {
            fleet.x[d] = left;
            fleet.y[d] = top + (d - fleet.first[n]) * cell;
          }
        }
      }
      x += wide + gap;
      line = Math.max(line, high);
    }
    return y + line;
  }

  /* The largest cell with which the fleet fits. */
  function place(fleet, width, height) {
    let cell = 20;
    while (cell > 1 && flow(fleet, cell, width, false) > height) cell -= cell > 6 ? 1 : 0.5;
    fleet.cell = cell;
    fleet.used = flow(fleet, cell, width, true);
  }

  /* Devices sorted by colour: starts[s]..starts[s+1] have shade s - 1 (0: unknown). */
  function sortByShade(values, fleet) {
    const v = D.unpack(values.v, "f4");
    const shades = new Int8Array(v.length);
    const starts = new Uint32Array(D.STEPS + 2);
    for (let i = 0; i < v.length; i++) {
      shades[i] = D.shade(v[i], values.low, values.high);
      starts[shades[i] + 2]++;
    }
    for (let s = 1; s < starts.length; s++) starts[s] += starts[s - 1];
    const at = starts.slice();
    const order = new Uint32Array(v.length);
    for (let i = 0; i < v.length; i++) order[at[shades[i] + 1]++] = i;
    return { v, flags: D.unpack(values.flags, "u1"), order, starts, key: values.key };
  }

  function draw(context, state, width, height) {
    const { fleet, sorted, values, camera, search, cursor } = state;
    const size = fleet.cell * camera.k;
    const gap = size >= 4 ? 1 : 0;
    const inner = size - gap;
    const colours = D.table(values.ramp);
    const match = search ? fleet.layout.nodes.map((name) => name.toLowerCase().includes(search)) : null;
    const { x, y, nodeOf } = fleet;
    for (let s = 0; s < D.STEPS + 1; s++) {
      context.fillStyle = s ? colours[s - 1] : D.ink("cell");
      for (let i = sorted.starts[s]; i < sorted.starts[s + 1]; i++) {
        const d = sorted.order[i];
        const left = x[d] * camera.k + camera.x;
        const top = y[d] * camera.k + camera.y;
        if (left > width || top > height || left + size < 0 || top + size < 0) continue;
        if (match && !match[nodeOf[d]]) continue;
        context.fillRect(left, top, inner, inner);
      }
    }
    if (match) {
      context.fillStyle = D.ink("cell");
      context.globalAlpha = 0.55;
      for (let d = 0; d < x.length; d++) {
        if (!match[nodeOf[d]]) context.fillRect(x[d] * camera.k + camera.x, y[d] * camera.k + camera.y, inner, inner);
      }
      context.globalAlpha = 1;
    }
    frames(context, state, size, inner);
    labels(context, state);
    if (cursor >= 0) {
      context.strokeStyle = D.ink("accent");
      context.lineWidth = 2;
      context.strokeRect(x[cursor] * camera.k + camera.x - 1.5, y[cursor] * camera.k + camera.y - 1.5, inner + 3, inner + 3);
    }
  }

  function frames(context, state, size, inner) {
    const { fleet, sorted, camera } = state;
    const { flags } = sorted;
    /* Old value: a hole in the cell, where a cell is large enough to have one. */
    if (size >= 4) {
      context.fillStyle = D.ink("panel");
      for (let d = 0; d < flags.length; d++) {
        if (!(flags[d] & 2)) continue;
        const left = fleet.x[d] * camera.k + camera.x;
        const top = fleet.y[d] * camera.k + camera.y;
        context.fillRect(left + inner * 0.25, top + inner * 0.25, inner * 0.5, inner * 0.5);
      }
    }
    context.strokeStyle = D.ink("frame");
    context.lineWidth = Math.min(2, Math.max(1, size / 6));
    for (let d = 0; d < flags.length; d++) {
      if (!(flags[d] & 1)) continue;
      context.strokeRect(fleet.x[d] * camera.k + camera.x - 0.5, fleet.y[d] * camera.k + camera.y - 0.5, inner + 1, inner + 1);
    }
  }

  function labels(context, state) {
    const { fleet, camera } = state;
    if (fleet.label * camera.k < 11) return;
    context.fillStyle = D.ink("dim");
    context.font = "11px " + getComputedStyle(document.body).fontFamily;
    context.textBaseline = "alphabetic";
    for (const group of fleet.groups) {
      const room = group.wide * camera.k + GAP_PX - 4;
      if (room < 18) continue;
      let shown = group.name;
      const letters = Math.max(2, Math.floor(room / 6.2));
      if (shown.length > letters) shown = room < 40 ? shown.slice(-letters) : shown.slice(0, letters - 1) + "…";
      const top = (group.y + fleet.label) * camera.k + camera.y - 3;
      context.fillText(shown, group.x * camera.k + camera.x, top);
    }
  }

  function hit(state, px, py) {
    const { fleet, camera } = state;
    const wx = (px - camera.x) / camera.k;
    const wy = (py - camera.y) / camera.k;
    for (const group of fleet.groups) {
      if (wx < group.x || wy < group.y || wx > group.x + group.wide || wy > group.y + group.high) continue;
      const end = group.node + group.nodes;
      for (let d = fleet.first[group.node]; d < fleet.first[end]; d++) {
        if (wx >= fleet.x[d] && wx < fleet.x[d] + fleet.cell && wy >= fleet.y[d] && wy < fleet.y[d] + fleet.cell) return d;
      }
    }
    return -1;
  }

  function describe(state, d) {
    const { fleet, values, sorted } = state;
    const node = fleet.nodeOf[d];
    const group = fleet.groups.find((one) => node >= one.node && node < one.node + one.nodes);
    const device = fleet.devices[d];
    const text = window.flightwatch.text;
    const lines = [fleet.layout.nodes[node] + (device === HOST ? "" : " · " + text("js.device", { n: device }))];
    lines.push(values.label + ": " + D.number(sorted.v[d], values.unit));
    if (sorted.v[d] !== sorted.v[d]) lines.push(text("js.not_measured"));
    if (sorted.flags[d] & 1) lines.push(text("js.outlier"));
    if (sorted.flags[d] & 2) lines.push(text("js.stale"));
    if (group) lines.push(group.name);
    return lines;
  }

  function open(state, d) {
    const device = state.fleet.devices[d];
    const tail = device === HOST ? "" : "?device=" + device;
    const name = encodeURIComponent(state.fleet.layout.nodes[state.fleet.nodeOf[d]]);
    window.flightwatch.go(window.flightwatch.base + "/nodes/" + name + tail);
  }

  function FleetMap(props) {
    const React = window.React;
    const e = React.createElement;
    const box = React.useRef(null);
    const canvas = React.useRef(null);
    const live = React.useRef(null);
    const state = React.useRef({ camera: { k: 1, x: 0, y: 0 }, cursor: -1, fleet: null, sorted: null }).current;
    const height = props.height || 420;

    const redraw = React.useCallback(() => {
      if (!box.current || !state.fleet || !state.sorted || state.sorted.key !== state.fleet.layout.key) return;
      const width = box.current.clientWidth;
      if (!width) return;
      if (state.placed !== width + ":" + state.height) {
        state.room = state.fleet.devices.length > TALL_DEVICES ? Math.max(TALL_PX, state.height) : state.height;
        place(state.fleet, width, state.room);
        state.placed = width + ":" + state.height;
      }
      const started = performance.now();
      const high = Math.max(60, Math.min(state.room, state.fleet.used + 6));
      draw(D.prepare(canvas.current, width, high), state, width, high);
      const took = performance.now() - started;
      box.current.dataset.drawMs = took.toFixed(2);
      box.current.dataset.cells = state.fleet.devices.length;
    }, []);

    React.useEffect(() => {
      if (!props.layout) return;
      state.fleet = unfold(props.layout);
      state.placed = "";
      state.cursor = -1;
      redraw();
    }, [props.layout]);
    React.useEffect(() => {
      if (!props.values) return;
      state.values = props.values;
      state.sorted = sortByShade(props.values);
      redraw();
    }, [props.values]);
    React.useEffect(() => {
      state.search = (props.search || "").toLowerCase();
      state.height = height;
      redraw();
    }, [props.search, height]);
    React.useEffect(() => D.watch(box.current, redraw), []);

    const zoom = (factor, px, py) => {
      const camera = state.camera;
      const k = Math.min(24, Math.max(1, camera.k * factor));
      camera.x = k === 1 ? 0 : px - ((px - camera.x) * k) / camera.k;
      camera.y = k === 1 ? 0 : py - ((py - camera.y) * k) / camera.k;
      camera.k = k;
      redraw();
    };
    const middle = (factor) => zoom(factor, canvas.current.clientWidth / 2, canvas.current.clientHeight / 2);
    React.useEffect(() => {
      const element = canvas.current;
      const wheel = (event) => {
        if (!event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        const area = element.getBoundingClientRect();
        zoom(event.deltaY < 0 ? 1.25 : 0.8, event.clientX - area.left, event.clientY - area.top);
      };
      element.addEventListener("wheel", wheel, { passive: false });
      return () => element.removeEventListener("wheel", wheel);
    }, []);

    const at = (event) => {
      const area = canvas.current.getBoundingClientRect();
      return state.fleet && state.sorted && state.placed ? hit(state, event.clientX - area.left, event.clientY - area.top) : -1;
    };
    const move = (event) => {
      if (state.drag) {
        state.camera.x += event.clientX - state.drag.x;
        state.camera.y += event.clientY - state.drag.y;
        state.moved = state.moved || Math.abs(event.clientX - state.drag.x) + Math.abs(event.clientY - state.drag.y) > 2;
        state.drag = { x: event.clientX, y: event.clientY };
        redraw();
        return;
      }
      const d = at(event);
      canvas.current.style.cursor = d >= 0 ? "pointer" : "default";
      D.tip(d >= 0 ? describe(state, d) : null, event.clientX, event.clientY);
    };
    const walk = (event) => {
      const fleet = state.fleet;
      if (!fleet || !state.sorted) return;
      const last = fleet.devices.length - 1;
      let d = state.cursor;
      const node = d < 0 ? 0 : fleet.nodeOf[d];
      const within = d < 0 ? 0 : d - fleet.first[node];
      const beside = (n) => Math.min(fleet.first[n] + within, fleet.first[n + 1] - 1);
      if (event.key === "ArrowRight") d = d < 0 ? 0 : beside(Math.min(node + 1, fleet.counts.length - 1));
      else if (event.key === "ArrowLeft") d = d < 0 ? 0 : beside(Math.max(node - 1, 0));
      else if (event.key === "ArrowDown") d = Math.min(d + 1, last);
      else if (event.key === "ArrowUp") d = Math.max(d - 1, 0);
      else if (event.key === "Enter" && d >= 0) { open(state, d); return; }
      else if (event.key === "+" || event.key === "=") { middle(1.5); event.preventDefault(); return; }
      else if (event.key === "-") { middle(1 / 1.5); event.preventDefault(); return; }
      else if (event.key === "0") { middle(0.0001); event.preventDefault(); return; }
      else return;
      event.preventDefault();
      state.cursor = d;
      live.current.textContent = describe(state, d).join(", ");
      redraw();
    };
    const button = (sign, label, act) => e("button", { type: "button", "aria-label": label, title: label, onClick: act }, sign);
    const text = window.flightwatch.text;
    return e("div", { id: props.id, ref: box, className: "fw-map" },
      e("canvas", {
        ref: canvas, tabIndex: 0, role: "application", "aria-label": text("js.map_label"),
        onMouseMove: move,
        onMouseLeave: () => { state.drag = null; D.tip(null); },
        onMouseDown: (event) => { state.moved = false; if (state.camera.k > 1) state.drag = { x: event.clientX, y: event.clientY }; },
        onMouseUp: () => { state.drag = null; },
        onClick: (event) => { const d = at(event); if (d >= 0 && !state.moved) { D.tip(null); open(state, d); } },
        onKeyDown: walk,
        onBlur: () => { state.cursor = -1; redraw(); },
      }),
      e("div", { className: "fw-zoom" },
        button("+", text("js.zoom_in"), () => middle(1.5)),
        button("−", text("js.zoom_out"), () => middle(1 / 1.5)),
        button("⤢", text("js.zoom_all"), () => middle(0.0001))),
      e("div", { ref: live, className: "fw-hidden", "aria-live": "polite" }));
  }

  window.flightwatch_console.FleetMap = FleetMap;
})();
