import { EditorState, Compartment } from "@codemirror/state";
import { EditorView, keymap, lineNumbers, drawSelection, highlightActiveLine, highlightSpecialChars } from "@codemirror/view";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { syntaxHighlighting, HighlightStyle, bracketMatching } from "@codemirror/language";
import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap } from "@codemirror/autocomplete";
import { sql, SQLDialect } from "@codemirror/lang-sql";
import { tags } from "@lezer/highlight";

const dialect = SQLDialect.define({
  keywords: "select from where group by order limit having with as and or not in is null like ilike between case when then else end join left right inner full cross asof on using union all distinct any array prewhere sample interval second minute hour day week month year desc asc nulls first last offset fill step window over partition rows range preceding following current row true false",
  types: "string float32 float64 uint8 uint16 uint32 uint64 int8 int16 int32 int64 datetime datetime64 date bool nullable lowcardinality map tuple",
  builtin: "count sum min max avg quantile quantileexact median any anylast argmax argmin uniq uniqexact grouparray countif sumif avgif if multiif ifnull coalesce nullif tostartofminute tostartofhour tostartofinterval todate now now64 datediff round floor ceil abs greatest least concat arrayjoin arraymap arrayfilter lagInFrame stddevpop",
  backslashEscapes: true, identifierQuotes: "`\"", operatorChars: "*+-%<>!=&|~^/?",
});
const colours = (dark) => syntaxHighlighting(HighlightStyle.define([
  { tag: tags.keyword, color: dark ? "#7db4ff" : "#1d56c9", fontWeight: "600" },
  { tag: [tags.string, tags.special(tags.string)], color: dark ? "#9fd8a4" : "#1b6e34" },
  { tag: tags.number, color: dark ? "#f0b775" : "#9a4d00" },
  { tag: [tags.comment], color: dark ? "#8b95a3" : "#5b6675", fontStyle: "italic" },
  { tag: [tags.standard(tags.name), tags.typeName], color: dark ? "#d7a7f5" : "#7a2ba8" },
  { tag: tags.operator, color: dark ? "#c3cbd6" : "#39424e" },
]));
const look = (dark) => [colours(dark), EditorView.theme({}, { dark })];

window.FlightwatchCodeMirror = {
  create(parent, options) {
    const themed = new Compartment();
    const view = new EditorView({
      parent,
      state: EditorState.create({
        doc: options.text,
        extensions: [
          lineNumbers(), history(), drawSelection(), highlightSpecialChars(), bracketMatching(), closeBrackets(), highlightActiveLine(),
          autocompletion(), EditorView.lineWrapping,
          EditorView.contentAttributes.of({ "aria-label": options.label }),
          sql({ dialect, schema: options.schema, upperCaseKeywords: true }),
          keymap.of([{ key: "Mod-Enter", run: () => { options.run(); return true; } },
            { key: "Escape", run: (v) => { v.contentDOM.blur(); return true; } },
            ...closeBracketsKeymap, ...completionKeymap, ...defaultKeymap, ...historyKeymap]),
          EditorView.domEventHandlers({ blur: (event, v) => { options.changed(v.state.doc.toString()); } }),
          themed.of(look(options.dark)),
        ],
      }),
    });
    return {
      text: () => view.state.doc.toString(),
      replace: (text) => view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text } }),
      insert: (text) => { view.dispatch(view.state.replaceSelection(text)); view.focus(); },
      theme: (dark) => view.dispatch({ effects: themed.reconfigure(look(dark)) }),
      destroy: () => view.destroy(),
    };
  },
};
