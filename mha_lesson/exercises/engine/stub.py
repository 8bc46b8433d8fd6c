"""Is an exercise still empty? Its function then has nothing but `raise NotImplementedError`.

PyTorch raises the same error for much else: a module without `forward`, an operation that a type
of numbers lacks. So what counts is where it comes from: a `raise` of the learner's function itself.
"""

import dis
import functools
from types import CodeType, TracebackType
from typing import Any

from mha_lesson.exercises.engine.tricky import asked


def is_stub(function: Any, error: BaseException | None) -> bool:
    """Was the error raised by a line `raise NotImplementedError` of this function?"""
    if type(error) is not NotImplementedError:
        return False
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place is not None and _is_of(function, place.tb_frame.f_code) and _is_a_raise(place)


def _is_a_raise(place: TracebackType) -> bool:
    """Is this instruction a `raise`, not a call of something written in C that failed?"""
    code = place.tb_frame.f_code.co_code
    return dis.opname[code[place.tb_lasti]] == "RAISE_VARARGS"


def _unwrapped(function: Any) -> Any:
    """The function that a decorator has wrapped."""
    for _ in range(100):  # an object with tricks of its own may be wrapped for ever
        within = asked(function, "__wrapped__")
        if not callable(within):
            break
        function = within
    return function


def _is_of(function: Any, code: CodeType) -> bool:
    """Is it the code of this function? It may be wrapped, bound, or an object that can be called."""
    while isinstance(function, functools.partial):
        function = function.func
    own = asked(_unwrapped(function), "__code__") or asked(type(function).__call__, "__code__")
    if own is None:
        return False
    # A copy of the function (a kernel is run with other words) has a code object of its own.
    return (own.co_filename, own.co_firstlineno, own.co_name) == (code.co_filename, code.co_firstlineno, code.co_name)
