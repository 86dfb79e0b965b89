"""Drafting inside other engines: drivers of ``vocab`` and ``methods``, one package a host."""
