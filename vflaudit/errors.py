"""What the user got wrong, said in one sentence: the value, what was expected, the nearest valid name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input. Its message is one sentence for the user; the command line prints it and exits with code 2."""


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The valid name most like `name`, or None if nothing is close."""
    close = difflib.get_close_matches(str(name), list(names), n=1, cutoff=0.5)
    return close[0] if close else None


def unknown(kind: str, name: object, names: Iterable[str]) -> InputError:
    """The error for a name that is not one of `names`."""
    names = sorted(names)
    guess = nearest(str(name), names)
    hint = f"did you mean {guess!r}?" if guess else f"expected one of {', '.join(names) or '(none is registered)'}"
    return InputError(f"no {kind} named {str(name)!r}: {hint}")
