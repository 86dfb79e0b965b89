"""Vocabularies as bytes, their intersection, and retokenization; no model and no I/O."""
