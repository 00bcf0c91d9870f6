"""Parsers of recorded output: one file a format, shared by live collectors and `flightwatch inspect`.

A parser is a class with `name`, `recognise(head)`, `parse(stream, context)` and two declarations
read by tests and by the generated page `docs/collectors.md`: `CARRIES` (table to the columns this
format can carry) and `NULL_NOTES` (column to the reason it may be NULL). It is listed once, in
`registry.py`. Importing this package imports nothing.
"""
