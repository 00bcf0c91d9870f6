/* FlameGraph: nested frames by their share of time; search, zoom, difference colours.
 *
 * frames: {names, parent (base64 int32, -1 for roots), total, self (base64 float32), delta (base64 float32 in -1..1,
 * NaN: only here) or nothing}; a parent stands before its children. Click or Enter zooms, Escape zooms out.
 */
(function () {
  "use strict";
  const D = window.flightwatch_draw;
  const ROW = 18;
  /* A third more or less than the peer has the full colour. */
  const DIFF = 0.33;

  function unfold(frames) {
    const parent = D.unpack(frames.parent, "i4");
    const total = D.unpack(frames.total, "f4");
    const n = parent.length;
    const depth = new Uint16Array(n);
    const left = new Float64Array(n);
    const filled = new Float64Array(n);
    let sum = 0;
    let deepest = 0;
    for (let i = 0; i < n; i++) {
      const p = parent[i];
      if (p < 0) { left[i] = sum; sum += total[i]; }
      else { depth[i] = depth[p] + 1; left[i] = left[p] + filled[p]; filled[p] += total[i]; }
      deepest = Math.max(deepest, depth[i]);
    }
    return { names: frames.names, parent, total, self: D.unpack(frames.self, "f4"),
      delta: frames.delta ? D.unpack(frames.delta, "f4") : null, depth, left, sum, deepest };
  }

  function hue(name) {
    let h = 0;
    for (let i = 0; i < name.length; i++) h = (h * 31 + name.charCodeAt(i)) >>> 0;
    return h;
  }

  /* Communication, copies, the rest: families are told apart before names are. */
  function colour(tree, i) {
    if (tree.delta) {
      const d = tree.delta[i];
      return d !== d ? D.ink("cell") : D.table("diff")[D.shade(d, -DIFF, DIFF)];
    }
    const name = tree.names[i];
    const h = hue(name) % 24;
    const dark = window.flightwatch.dark();
    const light = (dark ? 46 : 68) + (h % 6);
    if (/nccl|all_?reduce|all_?gather|reduce_?scatter|broadcast|gloo|send|recv|barrier/i.test(name)) return `hsl(${205 + h / 2},55%,${light}%)`;
    if (/memcpy|memset|copy_|DataLoader|dataloader/i.test(name)) return `hsl(${150 + h / 2},35%,${light}%)`;
    return `hsl(${18 + h},70%,${light + 4}%)`;
  }

  function draw(context, state, width) {
    const { tree, focus, search } = state;
    const from = focus < 0 ? 0 : tree.left[focus];
    const scale = width / ((focus < 0 ? tree.sum : tree.total[focus]) || 1);
    const up = new Set();
    for (let p = focus < 0 ? -1 : tree.parent[focus]; p >= 0; p = tree.parent[p]) up.add(p);
    context.font = "11px ui-monospace, 'DejaVu Sans Mono', monospace";
    context.textBaseline = "middle";
    state.shown = [];
    for (let i = 0; i < tree.names.length; i++) {
      let x = (tree.left[i] - from) * scale;
      let w = tree.total[i] * scale;
      if (up.has(i)) { x = 0; w = width; }
      if (w < 0.5 || x + w < 0 || x > width) continue;
      x = Math.max(0, x);
      w = Math.min(w, width - x);
      const y = tree.depth[i] * ROW;
      const found = !search || tree.names[i].toLowerCase().includes(search);
      context.globalAlpha = up.has(i) ? 0.55 : found ? 1 : 0.22;
      context.fillStyle = colour(tree, i);
      context.fillRect(x, y, Math.max(0.7, w - (w > 3 ? 1 : 0)), ROW - 1);
      state.shown.push([i, x, y, w]);
      if (w > 34) {
        const letters = Math.floor((w - 8) / 6.7);
        const name = tree.names[i];
        const pale = tree.delta && !(Math.abs(tree.delta[i]) > DIFF * 0.6);
        context.fillStyle = pale ? D.ink("ink") : "#101418";
        context.fillText(name.length > letters ? name.slice(0, Math.max(1, letters - 1)) + "…" : name, x + 4, y + ROW / 2);
      }
      if (i === state.cursor) {
        context.strokeStyle = D.ink("ink");
        context.lineWidth = 2;
        context.strokeRect(x + 1, y + 1, Math.max(2, w - 2), ROW - 3);
      }
    }
    context.globalAlpha = 1;
  }

  function describe(state, i, unit) {
    const { tree } = state;
    const text = window.flightwatch.text;
    const share = ((100 * tree.total[i]) / (tree.sum || 1)).toFixed(2) + " %";
    const lines = [tree.names[i], text("js.total") + " " + D.number(tree.total[i], unit) + " · " + share,
      text("js.self") + " " + D.number(tree.self[i], unit)];
    if (tree.delta) {
      const d = tree.delta[i];
      lines.push(d !== d ? text("js.only_here") : text("js.against_peer") + " " + (d > 0 ? "+" : "") + (100 * d).toFixed(1) + " %");
    }
    return lines;
  }

  function FlameGraph(props) {
    const React = window.React;
    const e = React.createElement;
    const box = React.useRef(null);
    const canvas = React.useRef(null);
    const live = React.useRef(null);
    const state = React.useRef({ tree: null, focus: -1, cursor: -1, shown: [], search: "" }).current;

    const redraw = React.useCallback(() => {
      if (!box.current || !state.tree || !box.current.clientWidth) return;
      const started = performance.now();
      const width = box.current.clientWidth;
      const height = Math.max(props.height || 80, (state.tree.deepest + 1) * ROW + 2);
      draw(D.prepare(canvas.current, width, height), state, width);
      box.current.dataset.drawMs = (performance.now() - started).toFixed(2);
      box.current.dataset.frames = state.tree.names.length;
    }, []);
    React.useEffect(() => {
      if (!props.frames) return;
      state.tree = unfold(props.frames);
      state.focus = -1;
      state.cursor = -1;
      redraw();
    }, [props.frames]);
    React.useEffect(() => { state.search = (props.search || "").toLowerCase(); redraw(); }, [props.search]);
    React.useEffect(() => D.watch(box.current, redraw), []);

    const zoom = (i) => {
      state.focus = i;
      redraw();
      if (props.setProps) props.setProps({ focus: i });
    };
    const at = (event) => {
      const area = canvas.current.getBoundingClientRect();
      const x = event.clientX - area.left;
      const y = event.clientY - area.top;
      for (let s = state.shown.length - 1; s >= 0; s--) {
        const [i, left, top, wide] = state.shown[s];
        if (x >= left && x < left + wide && y >= top && y < top + ROW) return i;
      }
      return -1;
    };
    const walk = (event) => {
      const tree = state.tree;
      if (!tree || !tree.names.length) return;
      const now = state.cursor;
      let next = now;
      const siblings = (i, by) => {
        for (let j = i + by; j >= 0 && j < tree.names.length; j += by) if (tree.parent[j] === tree.parent[i]) return j;
        return i;
      };
      if (event.key === "Escape") { zoom(-1); return; }
      if (event.key === "Enter") { if (now >= 0) zoom(now === state.focus ? -1 : now); return; }
      if (event.key === "ArrowDown") next = now < 0 ? 0 : Math.max(now, tree.parent.indexOf(now));
      else if (event.key === "ArrowUp") next = now < 0 ? 0 : Math.max(0, tree.parent[now]);
      else if (event.key === "ArrowRight") next = now < 0 ? 0 : siblings(now, 1);
      else if (event.key === "ArrowLeft") next = now < 0 ? 0 : siblings(now, -1);
      else return;
      event.preventDefault();
      state.cursor = next;
      live.current.textContent = describe(state, next, props.unit).join(", ");
      redraw();
    };
    return e("div", { id: props.id, ref: box, className: "fw-flame" },
      e("canvas", {
        ref: canvas, tabIndex: 0, role: "application", "aria-label": window.flightwatch.text("js.flame_label"),
        onMouseMove: (event) => {
          const i = state.tree ? at(event) : -1;
          canvas.current.style.cursor = i >= 0 ? "pointer" : "default";
          D.tip(i >= 0 ? describe(state, i, props.unit) : null, event.clientX, event.clientY);
        },
        onMouseLeave: () => D.tip(null),
        onClick: (event) => { const i = at(event); zoom(i >= 0 && i !== state.focus ? i : -1); },
        onKeyDown: walk,
      }),
      e("div", { ref: live, className: "fw-hidden", "aria-live": "polite" }));
  }

  window.flightwatch_console.FlameGraph = FlameGraph;
})();
