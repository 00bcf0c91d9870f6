"""The SQL page's examples are the recipes of the documentation, which a test runs."""

from __future__ import annotations

import re
from pathlib import Path

from flightwatch.dashboard.i18n import LANGUAGES
from flightwatch.dashboard.pages.sql_examples import EXAMPLES

RECIPES = Path(__file__).parents[2] / "docs" / "sql.md"


def test_every_recipe_is_an_example_and_every_example_a_recipe() -> None:
    text = RECIPES.read_text(encoding="utf-8").partition("## Recipes")[2]
    recipes = [query.strip() for query in re.findall(r"```sql\n(.*?)```", text, re.DOTALL)]
    assert [query for _, query in EXAMPLES] == recipes


def test_every_example_has_a_title_in_every_language() -> None:
    for key, _ in EXAMPLES:
        assert all(words[f"example.{key}"] for words in LANGUAGES.values())
