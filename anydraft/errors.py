"""Errors that a user can cause: one line each, with what to do next.

The command line prints the message of an :class:`AnyDraftError` without a traceback and exits with
its ``exit_code``; a Python caller catches the class.
"""

from __future__ import annotations


class AnyDraftError(Exception):
    """Something failed that the user can act on: a file, a model, a pair of models."""

    exit_code = 1


class UsageError(AnyDraftError, ValueError):
    """What was asked makes no sense: an unknown name, contradictory or out-of-range parameters."""

    exit_code = 2


class ModelError(AnyDraftError):
    """A model or its tokenizer cannot be loaded or is of a kind that cannot be served losslessly."""


class TokenizerError(ModelError):
    """The bytes of a tokenizer's tokens cannot be had."""


class PairError(AnyDraftError):
    """This method cannot work with this pair of vocabularies."""


class TooManyRowsError(AnyDraftError):
    """An exact probability takes more draft rows than are allowed."""
