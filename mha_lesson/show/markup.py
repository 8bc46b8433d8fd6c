"""Small pieces of HTML for the widgets: a sentence, bars, a coloured table.

Text takes the colours of the notebook's theme, light or dark. A coloured cell brings its own
text colour. Nothing is said by colour alone.
"""

from html import escape

import numpy as np

from mha_lesson.show.palette import ink_on

BAR, BEST_BAR = "#0072b2", "#d55e00"

STYLE = """<style>
.mha-lesson {color: var(--jp-ui-font-color1, inherit); font-size: 13px; line-height: 1.4;
  max-width: 900px; overflow-x: auto;}
.mha-lesson p {margin: 6px 0;}
.mha-lesson table {border-collapse: separate; border-spacing: 2px; width: auto; margin: 4px 0;
  border: none; background: transparent; color: inherit; font-size: 13px;}
.mha-lesson caption {text-align: left; font-weight: 600; padding: 2px 0; color: inherit;
  caption-side: top;}
.mha-lesson tr, .mha-lesson td, .mha-lesson th {border: none; background: transparent;
  color: inherit; line-height: 1.3; padding: 1px 6px; vertical-align: middle; max-width: none;}
.mha-lesson th {font-weight: normal; text-align: right; white-space: nowrap;}
.mha-lesson thead th {text-align: center;}
.mha-lesson td.number {text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap;}
.mha-lesson .track {width: 240px; height: 14px;}
.mha-lesson .side .track {width: 150px;}
.mha-lesson .best {font-weight: 700;}
.mha-lesson .note {border-left: 4px solid #d55e00; padding-left: 8px;}
.mha-lesson .side {display: flex; flex-wrap: wrap; gap: 8px 28px; align-items: flex-start;}
.mha-lesson svg {display: block; max-width: 100%; height: auto;}
.mha-lesson svg text {fill: currentColor; font-size: 12px;}
</style>"""


def page(*parts):
    """The value of an HTML widget: the style and the parts, one below the other."""
    return STYLE + '<div class="mha-lesson">' + "".join(parts) + "</div>"


def side_by_side(*parts):
    return '<div class="side">' + "".join(f"<div>{part}</div>" for part in parts) + "</div>"


def sentence(text):
    """What the picture shows, in words; screen readers speak it when it changes."""
    return f'<p role="status" aria-live="polite">{escape(text)}</p>'


def note(text):
    """A remark with a mark at its side, for warnings and reasons."""
    return f'<p class="note">{escape(text)}</p>'


def error_box(error):
    """An exception, told kindly."""
    kind, message = type(error).__name__, str(error) or "no message"
    return page(
        '<p class="note" role="alert"><strong>This could not be drawn.</strong> '
        f"{escape(kind)}: {escape(message)}<br>"
        "The controls still work: choose something else, or run the cell again.</p>"
    )


def bar_table(labels, values, caption="", best=None, more=(), digits=3, heading="score"):
    """One row a label: its name, a bar, the number, then further columns of text.

    values (n,): the bars start at 0, which lies inside the row if numbers are negative.
    best: index of the row to be marked. more: (heading, n texts) for each further column;
    then `heading` names the column of numbers.
    """
    values = np.asarray(values, dtype=float)
    low, high = _ends(values)
    top = ""
    if more:
        names = ["", "", heading, *(name for name, _ in more)]
        cells = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
        top = f"<thead><tr>{cells}</tr></thead>"
    rows = []
    for index, (label, value) in enumerate(zip(labels, values, strict=True)):
        marked = index == best
        further = "".join(f'<td class="number">{escape(texts[index])}</td>' for _, texts in more)
        rows.append(
            f"<tr{' class=best' if marked else ''}>"
            f'<th scope="row">{escape(str(label))}</th>'
            f'<td><div class="track">{_bar(value, low, high, marked)}</div></td>'
            f'<td class="number">{number(value, digits)}</td>{further}'
            f"<td>{'◀ highest' if marked else ''}</td></tr>"
        )
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{title}{top}<tbody>{''.join(rows)}</tbody></table>"


def colour_table(texts, colours, row_names=None, column_names=None, caption="", strong=None):
    """A table of coloured cells. texts, colours: lists of rows of strings.

    strong: booleans of the same shape; those cells get a frame and bold text.
    """
    head = ""
    if column_names is not None:
        corner = "<td></td>" if row_names is not None else ""
        cells = "".join(f'<th scope="col">{escape(str(name))}</th>' for name in column_names)
        head = f"<thead><tr>{corner}{cells}</tr></thead>"
    body = []
    for row, (row_texts, row_colours) in enumerate(zip(texts, colours, strict=True)):
        cells = []
        if row_names is not None:
            cells.append(f'<th scope="row">{escape(str(row_names[row]))}</th>')
        for column, (text, colour) in enumerate(zip(row_texts, row_colours, strict=True)):
            framed = strong is not None and strong[row][column]
            # Around the cell, in the colour of the theme's text: seen on a light and on a dark page.
            frame = "outline:2px solid var(--jp-ui-font-color1, #000);font-weight:700;"
            cells.append(
                f'<td style="background:{colour};color:{ink_on(colour)};text-align:center;min-width:32px;'
                f'{frame if framed else ""}">{escape(text)}</td>'
            )
        body.append(f"<tr>{''.join(cells)}</tr>")
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{title}{head}<tbody>{''.join(body)}</tbody></table>"


def column_chart(values, label, best=None, size=(640, 110), ends=None):
    """Upright bars as a drawing, for many values (n,). label: what it shows, in words.

    best: index of the bar in another colour. ends: texts below the first and the last bar.
    """
    values = np.asarray(values, dtype=float)
    width, height = size
    low, high = _ends(values)
    step, span = width / len(values), high - low
    zero = height * high / span
    bars = []
    for index, value in enumerate(values):
        if not np.isfinite(value):
            continue
        tall = height * abs(value) / span
        top = zero - tall if value > 0 else zero
        bars.append(
            f'<rect x="{index * step + step * 0.1:.1f}" y="{top:.1f}" width="{step * 0.8:.1f}" '
            f'height="{max(tall, 0.5):.1f}" fill="{BEST_BAR if index == best else BAR}"/>'
        )
    words = "".join(
        f'<text x="{x}" y="{height + 16}" text-anchor="{anchor}">{escape(text)}</text>'
        for text, x, anchor in zip(ends or (), (0, width), ("start", "end"), strict=False)
    )
    return (
        f'<svg role="img" aria-label="{escape(label)}" width="{width}" height="{height + 22}" '
        f'viewBox="0 0 {width} {height + 22}">{"".join(bars)}'
        f'<line x1="0" x2="{width}" y1="{zero:.1f}" y2="{zero:.1f}" stroke="currentColor" '
        f'stroke-opacity="0.5"/>{words}</svg>'
    )


def colour_strip(colours, label, size=(640, 24)):
    """A row of coloured cells as a drawing. label: what it shows, in words."""
    width, height = size
    step = width / len(colours)
    cells = "".join(
        f'<rect x="{index * step:.1f}" y="0" width="{step + 0.2:.1f}" height="{height}" fill="{colour}"/>'
        for index, colour in enumerate(colours)
    )
    return (
        f'<svg role="img" aria-label="{escape(label)}" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">{cells}</svg>'
    )


def number(value, digits=3):
    """A number with a fixed count of decimals, never -0; inf and nan by name."""
    value = float(value)
    if not np.isfinite(value):
        return str(value).replace("-", "−")
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")


def _ends(values):
    """The lowest and the highest value a bar may reach; 0 is always between."""
    finite = values[np.isfinite(values)]
    low, high = min(0.0, *finite, 0.0), max(0.0, *finite, 0.0)
    return (low, high) if high > low else (0.0, 1.0)


def _bar(value, low, high, marked):
    if not np.isfinite(value):
        return ""
    start, length = (min(value, 0.0) - low) / (high - low), abs(value) / (high - low)
    return (
        f'<div style="margin-left:{100 * start:.1f}%;width:{100 * length:.1f}%;height:100%;'
        f'background:{BEST_BAR if marked else BAR}"></div>'
    )
