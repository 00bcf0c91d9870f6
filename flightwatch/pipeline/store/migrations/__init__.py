"""Numbered, additive migrations: NNNN_name.sql templates (see `store.render`), never edited once released."""
