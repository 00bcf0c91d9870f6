/* Dragging over a chart of time chooses the page's time range: the address gets `from` and `to`, "back" takes it away.
 *
 * A chart takes part when it stands in `.fw-brush` and its axis is time. The finger scrolls, the mouse and the pen
 * choose. Plotly's own zoom is off: it would outlive the range that the page shows.
 */
(function () {
  "use strict";
  /* A shorter drag is a click. */
  const SHORTEST_PX = 6;
  let drag = null;

  function plotOf(target) {
    const plot = target.closest && target.closest(".fw-brush .js-plotly-plot");
    const axis = plot && plot._fullLayout && plot._fullLayout.xaxis;
    return axis && axis.type === "date" ? plot : null;
  }

  /* Where the axis lies on the screen. */
  function span(plot) {
    const axis = plot._fullLayout.xaxis;
    const left = plot.getBoundingClientRect().left + axis._offset;
    return { left: left, right: left + axis._length };
  }

  function draw() {
    const box = document.getElementById("fw-brush") || document.body.appendChild(document.createElement("div"));
    const area = drag.plot.getBoundingClientRect();
    box.id = "fw-brush";
    box.style.top = area.top + "px";
    box.style.height = area.height + "px";
    box.style.left = Math.min(drag.from, drag.to) + "px";
    box.style.width = Math.abs(drag.to - drag.from) + "px";
  }

  function stop() {
    const box = document.getElementById("fw-brush");
    if (box) box.remove();
    drag = null;
  }

  /* The axis has times of the zone shown, without zone; the address reads them so. */
  function moment(plot, x) {
    const axis = plot._fullLayout.xaxis;
    return String(axis.p2d(x - span(plot).left)).replace(" ", "T").slice(0, 19);
  }

  document.addEventListener("pointerdown", (event) => {
    if (event.button || event.pointerType === "touch") return;
    const plot = plotOf(event.target);
    if (!plot) return;
    const where = span(plot);
    if (event.clientX < where.left || event.clientX > where.right) return;
    drag = { plot: plot, from: event.clientX, to: event.clientX };
  }, true);

  document.addEventListener("pointermove", (event) => {
    if (!drag) return;
    if (!(event.buttons & 1)) { stop(); return; }
    const where = span(drag.plot);
    drag.to = Math.max(where.left, Math.min(where.right, event.clientX));
    if (Math.abs(drag.to - drag.from) >= SHORTEST_PX) draw();
  }, true);

  document.addEventListener("pointerup", () => {
    if (!drag) return;
    const chosen = drag;
    stop();
    if (Math.abs(chosen.to - chosen.from) < SHORTEST_PX) return;
    const ends = [chosen.from, chosen.to].sort((one, two) => one - two).map((x) => moment(chosen.plot, x));
    if (ends[0] !== ends[1]) window.flightwatch.set({ from: ends[0], to: ends[1], range: null }, true);
  }, true);

  document.addEventListener("keydown", (event) => {
    if (drag && event.key === "Escape") { stop(); event.preventDefault(); }
  }, true);
})();
