"""Wrong answers that people give, each one runnable, with the words that the learner reads.

    mistake = Mistakes()

    @mistake                                  a function: its docstring is what the learner reads
    def by_d_model(q, k):
        \"\"\"The form is right. But you scaled with the whole model width. ...\"\"\"
        return q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[0] * q.shape[-1])

    mistake.edit(                             the solution with one edit of its source
        "no_scale",
        \"\"\"Dot products are right. But the dot products are not divided by sqrt(d). ...\"\"\",
        old=" / math.sqrt(d_head)",
        new="",
    )

    Exercise(..., mistakes=mistake.all)

Words: first what is right about the answer, then the one thing to change. They may be broken into
lines anywhere: white space counts as one space.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Mistake:
    """A wrong answer we know: one edit of the solution (`old` becomes `new`), or a `function`.

    say: first what is right about it, then the one thing to change.
    when: looks at the learner's function where answers alone do not tell; if it says yes, this
          mistake is meant and not another one with the same answers
    """

    name: str
    say: str
    old: str = ""
    new: str = ""
    function: Callable | None = None
    when: Callable[[Callable], bool] | None = None


class Mistakes:
    """The mistakes of one exercise, in the order in which they are written down."""

    def __init__(self) -> None:
        self._list: list[Mistake] = []

    @property
    def all(self) -> tuple[Mistake, ...]:
        return tuple(self._list)

    def __call__(self, function: Callable | None = None, *, when: Callable | None = None) -> Callable:
        """Decorator: this function is a mistake of its name (less an underscore at the end)."""
        if function is None:
            return lambda decorated: self(decorated, when=when)
        self.function(function.__name__.rstrip("_"), function.__doc__ or "", function, when)
        return function

    def function(self, name: str, say: str, function: Callable, when: Callable | None = None) -> None:
        """A mistake that is a function made elsewhere."""
        self._list.append(Mistake(name, _one_line(say), function=function, when=when))

    def edit(self, name: str, say: str, old: str, new: str, when: Callable | None = None) -> None:
        """The solution with `new` in the place of `old`, which its source has exactly once."""
        self._list.append(Mistake(name, _one_line(say), old, new, when=when))

    def extend(self, mistakes: Iterable[Mistake]) -> None:
        self._list.extend(mistakes)


def _one_line(text: str) -> str:
    return " ".join(text.split())
