"""The one factory of large tables: ag-grid with the console's look and language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dash_ag_grid as dag

from flightwatch.dashboard.i18n import language

#: Words of the grid's own controls, where it has any of ours.
_CHINESE = {
    "noRowsToShow": "没有可显示的行",
    "loadingOoo": "加载中…",
    "page": "页",
    "of": "/",
    "to": "至",
    "more": "更多",
    "next": "下一页",
    "last": "末页",
    "first": "首页",
    "previous": "上一页",
    "pageSizeSelectorLabel": "每页行数：",
    "filterOoo": "筛选…",
    "contains": "包含",
    "notContains": "不包含",
    "equals": "等于",
    "notEqual": "不等于",
    "startsWith": "开头是",
    "endsWith": "结尾是",
    "blank": "为空",
    "notBlank": "非空",
    "andCondition": "且",
    "orCondition": "或",
    "lessThan": "小于",
    "greaterThan": "大于",
    "lessThanOrEqual": "小于等于",
    "greaterThanOrEqual": "大于等于",
    "inRange": "区间",
    "ariaFilterInput": "筛选输入",
    "ariaFilterColumn": "按 CTRL ENTER 打开筛选",
    "ariaColumn": "列",
}


def grid(
    grid_id: str,
    columns: Sequence[Mapping[str, Any]],
    *,
    height_px: int = 420,
    rows: Sequence[Mapping[str, Any]] = (),
    row_id: str | None = None,
    filters: bool = False,
    options: Mapping[str, Any] | None = None,
) -> dag.AgGrid:
    """Return a table.

    Parameters
    ----------
    columns: ag-grid column definitions.
    row_id: expression of a row's identity (`params.data.key`), so that a refresh keeps scroll and selection.
    filters: a filter below each column's name.
    """
    settings: dict[str, Any] = {
        "animateRows": False,
        "suppressCellFocus": False,
        "rowHeight": 30,
        "headerHeight": 32,
        "floatingFiltersHeight": 32,
        "enableCellTextSelection": True,
        "ensureDomOrder": True,
        "localeText": _CHINESE if language() == "zh" else {},
        **(options or {}),
    }
    more = {"getRowId": row_id} if row_id else {}
    return dag.AgGrid(
        id=grid_id,
        columnDefs=list(columns),
        rowData=list(rows),
        defaultColDef={
            "sortable": True,
            "minWidth": 72,
            "resizable": True,
            "filter": filters,
            "floatingFilter": filters,
        },
        dashGridOptions=settings,
        columnSize="responsiveSizeToFit",
        className="ag-theme-quartz fw-grid",
        style={"height": f"{height_px}px"},
        **more,
    )


def link_column(field: str, title: str, **more: Any) -> dict[str, Any]:
    """Return a column of links: a cell is Markdown made by `link`."""
    return {"field": field, "headerName": title, "cellRenderer": "markdown", **more}


def link(words: str, href: str) -> str:
    """Return a Markdown link; signs that Markdown would read are escaped."""
    escaped = "".join(f"\\{sign}" if sign in "\\`*_{}[]()#+!|<>" else sign for sign in words)
    return f"[{escaped}]({href})"


def number_column(field: str, title: str, digits: int = 1, **more: Any) -> dict[str, Any]:
    """Return a column of numbers, set right; what is unknown is a dash."""
    shown = f"params.value == null ? '—' : d3.format(',.{digits}f')(params.value)"
    return {
        "field": field,
        "headerName": title,
        "type": "rightAligned",
        "valueFormatter": {"function": shown},
        **more,
    }
