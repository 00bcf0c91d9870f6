/* RankHeat: rows of ranks over columns of steps, one colour a bin; the server has done the binning.
 *
 * data: {rows, columns, v (base64 float32, row by row), low, high, ramp, unit, row_labels, row_first, column_labels,
 * label}. Pointer: tooltip, click opens the row. Keyboard: arrows move, Enter opens.
 */
(function () {
  "use strict";
  const D = window.flightwatch_draw;
  const LEFT = 92;
  const BOTTOM = 18;

  function geometry(data, width, height) {
    return { left: LEFT, cellX: (width - LEFT) / data.columns, cellY: (height - BOTTOM) / data.rows };
  }

  function draw(context, state, width, height) {
    const { data, v, cursor } = state;
    const g = geometry(data, width, height);
    const colours = D.table(data.ramp);
    const unknown = D.ink("cell");
    const gap = g.cellY >= 6 ? 1 : 0;
    for (let r = 0; r < data.rows; r++) {
      const top = Math.round(r * g.cellY);
      const high = Math.max(1, Math.round((r + 1) * g.cellY) - top - gap);
      for (let c = 0; c < data.columns; c++) {
        const s = D.shade(v[r * data.columns + c], data.low, data.high);
        context.fillStyle = s < 0 ? unknown : colours[s];
        const from = Math.round(g.left + c * g.cellX);
        context.fillRect(from, top, Math.max(1, Math.round(g.left + (c + 1) * g.cellX) - from), high);
      }
    }
    context.fillStyle = D.ink("dim");
    context.font = "11px " + getComputedStyle(document.body).fontFamily;
    context.textBaseline = "middle";
    context.textAlign = "right";
    const every = Math.max(1, Math.ceil(13 / g.cellY));
    for (let r = 0; r < data.rows; r += every) {
      const shown = data.row_labels[r] || "";
      context.fillText(shown.length > 15 ? "…" + shown.slice(-14) : shown, g.left - 6, (r + 0.5) * g.cellY, LEFT - 8);
    }
    context.textAlign = "center";
    const step = Math.max(1, Math.ceil(data.columns / Math.max(2, Math.floor((width - LEFT) / 90))));
    for (let c = 0; c < data.columns; c += step) {
      const x = Math.min(width - 28, Math.max(LEFT + 20, g.left + (c + 0.5) * g.cellX));
      context.fillText(data.column_labels[c] || "", x, height - BOTTOM / 2 + 2);
    }
    if (cursor) {
      context.strokeStyle = D.ink("accent");
      context.lineWidth = 2;
      context.strokeRect(g.left + cursor.c * g.cellX, cursor.r * g.cellY, Math.max(3, g.cellX), Math.max(3, g.cellY));
    }
  }

  function describe(state, r, c) {
    const { data, v } = state;
    return [data.row_labels[r] || "", (data.column_titles || data.column_labels)[c] || "",
      data.label + ": " + D.number(v[r * data.columns + c], data.unit)];
  }

  function RankHeat(props) {
    const React = window.React;
    const e = React.createElement;
    const box = React.useRef(null);
    const canvas = React.useRef(null);
    const live = React.useRef(null);
    const state = React.useRef({ data: null, v: null, cursor: null, height: 200 }).current;

    const redraw = React.useCallback(() => {
      if (!box.current || !state.data || !box.current.clientWidth) return;
      const started = performance.now();
      const width = box.current.clientWidth;
      draw(D.prepare(canvas.current, width, state.height), state, width, state.height);
      box.current.dataset.drawMs = (performance.now() - started).toFixed(2);
    }, []);
    React.useEffect(() => {
      if (!props.data) return;
      state.data = props.data;
      state.v = D.unpack(props.data.v, "f4");
      state.height = Math.max(props.height || 200, Math.min(900, (props.data.row_px || 0) * props.data.rows + BOTTOM));
      if (state.cursor && (state.cursor.r >= props.data.rows || state.cursor.c >= props.data.columns)) state.cursor = null;
      redraw();
    }, [props.data, props.height]);
    React.useEffect(() => D.watch(box.current, redraw), []);

    const at = (event) => {
      if (!state.data) return null;
      const area = canvas.current.getBoundingClientRect();
      const g = geometry(state.data, area.width, state.height);
      const r = Math.floor((event.clientY - area.top) / g.cellY);
      const c = Math.floor((event.clientX - area.left - g.left) / g.cellX);
      return r < 0 || r >= state.data.rows || c >= state.data.columns ? null : { r, c: Math.max(0, c) };
    };
    const open = (r) => {
      if (!props.href) return;
      window.flightwatch.go(window.flightwatch.base + props.href.replace("{}", encodeURIComponent(state.data.row_first[r])));
    };
    const walk = (event) => {
      const data = state.data;
      if (!data) return;
      const now = state.cursor || { r: 0, c: 0 };
      const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
      if (event.key === "Enter" && state.cursor) { open(now.r); return; }
      if (!moves[event.key]) return;
      event.preventDefault();
      const by = state.cursor ? moves[event.key] : [0, 0];
      state.cursor = {
        r: Math.min(data.rows - 1, Math.max(0, now.r + by[0])), c: Math.min(data.columns - 1, Math.max(0, now.c + by[1])),
      };
      live.current.textContent = describe(state, state.cursor.r, state.cursor.c).join(", ");
      redraw();
    };
    return e("div", { id: props.id, ref: box, className: "fw-heat" },
      e("canvas", {
        ref: canvas, tabIndex: 0, role: "application", "aria-label": window.flightwatch.text("js.heat_label"),
        onMouseMove: (event) => {
          const found = at(event);
          canvas.current.style.cursor = found && props.href ? "pointer" : "default";
          D.tip(found ? describe(state, found.r, found.c) : null, event.clientX, event.clientY);
        },
        onMouseLeave: () => D.tip(null),
        onClick: (event) => { const found = at(event); if (found) { D.tip(null); open(found.r); } },
        onKeyDown: walk,
        onBlur: () => { state.cursor = null; redraw(); },
      }),
      e("div", { ref: live, className: "fw-hidden", "aria-live": "polite" }));
  }

  window.flightwatch_console.RankHeat = RankHeat;
})();
