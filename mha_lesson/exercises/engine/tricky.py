"""Questions to a stranger's thing that may raise when it is asked: an answer, a function, an error."""

from collections.abc import Callable
from typing import Any


def asked(thing: Any, name: str, otherwise: Any = None) -> Any:
    """The attribute of that name; `otherwise` if there is none, or if asking raises."""
    try:
        return getattr(thing, name, otherwise)
    except Exception:
        return otherwise


def said(thing: Any, how: Callable[[Any], str] = str) -> str:
    """The thing as text; its type, if it cannot say more."""
    try:
        return how(thing)
    except Exception:
        return f"a value of type {type(thing).__name__}"
