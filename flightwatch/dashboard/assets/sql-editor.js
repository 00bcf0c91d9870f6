/* SqlEditor: CodeMirror 6, fetched from this server when the first editor is shown. */
(function () {
  "use strict";
  const file = new URL("codemirror.bundle.js", document.currentScript.src).href;
  let loading = null;

  function load() {
    if (!loading) {
      loading = new Promise((resolve, reject) => {
        const script = document.createElement("script");
        script.src = file;
        script.onload = () => resolve(window.FlightwatchCodeMirror);
        script.onerror = () => { loading = null; reject(new Error("codemirror")); };
        document.head.appendChild(script);
      });
    }
    return loading;
  }

  function SqlEditor(props) {
    const React = window.React;
    const e = React.createElement;
    const box = React.useRef(null);
    const state = React.useRef({ editor: null, runs: 0 }).current;
    const latest = React.useRef(props);
    latest.current = props;

    React.useEffect(() => {
      let gone = false;
      load().then((kit) => {
        if (gone) return;
        state.editor = kit.create(box.current, {
          text: latest.current.value || "",
          schema: latest.current.schema || {},
          label: latest.current.label || "SQL",
          dark: window.flightwatch.dark(),
          changed: (value) => latest.current.setProps({ value }),
          run: () => { state.runs += 1; box.current.classList.add("fw-ran"); latest.current.setProps({ value: state.editor.text(), run: state.runs }); },
        });
      });
      const themed = () => { if (state.editor) state.editor.theme(window.flightwatch.dark()); };
      window.addEventListener("fw-theme", themed);
      /* The list of completions is for who types: it goes when the query runs, and comes with the next key. */
      const typing = (event) => { if (!event.ctrlKey && !event.metaKey) box.current.classList.remove("fw-ran"); };
      box.current.addEventListener("keydown", typing, true);
      return () => { gone = true; window.removeEventListener("fw-theme", themed); if (state.editor) state.editor.destroy(); };
    }, []);
    React.useEffect(() => {
      if (state.editor && props.value !== undefined && props.value !== state.editor.text()) state.editor.replace(props.value);
    }, [props.value]);
    React.useEffect(() => {
      if (state.editor && props.insert) state.editor.insert(props.insert.text);
    }, [props.insert]);
    return e("div", { id: props.id, ref: box, className: "fw-editor" });
  }

  window.flightwatch_console.SqlEditor = SqlEditor;
})();
