"""The bus: one contract (`base`), two backends (`local` on SQLite, `kafka`)."""
