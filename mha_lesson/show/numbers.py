"""Print numbers so that every machine prints the same text.

Sums run in another order on another processor, so the last digits of a float differ. A stored
output is compared with a fresh one character by character. Therefore everything is turned into
float64 and rounded to a few decimals, and a rounded minus zero loses its sign.

    say("weights", weights)             one labelled block
    print(number(0.5))                  0.5000
    print(table(weights, rows, columns))
    say_error(error)                    an error's type and message, in lines that fit
"""

import textwrap

import numpy as np

DECIMALS = 4


def number(x, decimals: int = DECIMALS) -> str:
    """One number with fixed decimals; whole numbers and booleans without."""
    if isinstance(x, (bool, np.bool_, int, np.integer)):
        return str(x)
    x = float(x)
    if not np.isfinite(x):
        return str(x)
    # Adding 0.0 turns the -0.0 that rounding may leave into 0.0.
    return f"{round(x, decimals) + 0.0:.{decimals}f}"


def table(array, rows=None, columns=None, decimals: int = 3) -> str:
    """A matrix as aligned text, with names for its rows and columns if given.

    array (n, m), or (m,) for a single row. Booleans print as 1 and ·, the dot easy to see past.
    """
    array = np.atleast_2d(np.asarray(array))
    if array.ndim != 2:
        raise ValueError(f"array: expected 1 or 2 axes, got shape {array.shape}. Choose one, e.g. array[0].")
    cell = (lambda v: "1" if v else "·") if array.dtype == bool else (lambda v: number(v, decimals))
    body = [[cell(v) for v in row] for row in array]
    head = [str(c) for c in columns] if columns is not None else None
    if head is not None and len(head) != array.shape[1]:
        raise ValueError(f"columns: expected {array.shape[1]} names, got {len(head)}.")
    if rows is not None and len(rows) != array.shape[0]:
        raise ValueError(f"rows: expected {array.shape[0]} names, got {len(rows)}.")
    lines = ([head] if head else []) + body
    widths = [max(len(line[j]) for line in lines) for j in range(array.shape[1])]
    names = ([""] if head else []) + [str(r) for r in rows] if rows is not None else None
    margin = max(map(len, names)) + 2 if names else 0
    text = []
    for i, line in enumerate(lines):
        left = names[i].ljust(margin) if names else ""
        text.append(left + "  ".join(v.rjust(w) for v, w in zip(line, widths, strict=True)))
    return "\n".join(line.rstrip() for line in text)


def say(label: str, value, decimals: int = DECIMALS) -> None:
    """Print a label and a value: a number on one line, a vector on one, a matrix on several."""
    array = np.asarray(value)
    if array.ndim == 0 and array.dtype.kind in "OUS":
        print(f"{label}: {value}")
    elif array.ndim == 0:
        print(f"{label}: {number(array[()], decimals)}")
    elif array.ndim == 1:
        print(f"{label}: [{' '.join(number(v, decimals) for v in array)}]")
    elif array.ndim == 2:
        print(f"{label}, shape {array.shape}:\n{table(array, decimals=decimals)}")
    else:
        print(f"{label}, shape {array.shape}:")
        for i in np.ndindex(array.shape[:-2]):
            print(f"[{', '.join(map(str, i))}]\n{table(array[i], decimals=decimals)}")


def say_error(error: Exception) -> None:
    """Print an error that was meant to happen, broken between words."""
    print(textwrap.fill(f"{type(error).__name__}: {error}", 92))
