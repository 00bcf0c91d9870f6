/* The SQL page: running puts the query into the address; downloads go through the API, with the same guard. */
(function () {
  "use strict";

  function editorText() {
    const lines = document.querySelectorAll("#sql-editor .cm-line");
    return [...lines].map((line) => line.textContent).join("\n");
  }

  function csrf() {
    const found = document.cookie.split("; ").find((part) => part.startsWith("_csrf_token="));
    return found ? decodeURIComponent(found.slice(12)) : "";
  }

  async function download(format) {
    const query = window.flightwatch.params().query || editorText();
    const answer = await fetch(window.flightwatch.base + "/api/v1/sql", {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-CSRFToken": csrf() },
      body: JSON.stringify({ query, format }),
    });
    if (!answer.ok) {
      const told = await answer.json().catch(() => null);
      window.flightwatch.toast(told && told.error ? told.error.message : String(answer.status));
      return;
    }
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await answer.blob());
    link.download = "flightwatch." + format;
    document.body.appendChild(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  document.addEventListener("click", (event) => {
    const element = event.target.closest("[data-action]");
    if (!element) return;
    if (element.dataset.action === "sql-download") download(element.dataset.format);
    if (element.dataset.action === "sql-example") {
      window.dash_clientside.set_props("sql-editor", { value: element.dataset.text });
      window.flightwatch.set({ query: element.dataset.text });
      window.dash_clientside.set_props("sql-query", { data: element.dataset.text });
    }
  });

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    flightwatch_sql: {
      run: (clicks, runs, value) => {
        if (!clicks && !runs) return window.dash_clientside.no_update;
        const text = editorText().trim() ? editorText() : value;
        window.flightwatch.set({ query: text });
        return text;
      },
    },
  });
})();
