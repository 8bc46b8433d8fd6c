"""A widget about memory: what the keys and values of a served model take.

    bytes = 2 · layers · kv_heads · d_head · tokens · batch · bytes_per_number

The 2 is for a key and a value. kv_heads is the one factor that a model's makers choose freely: as many
as there are query heads (MHA), one for all (MQA), or one for each group of query heads (GQA).
"""

from math import floor, log10

from mha_lesson.show import markup
from mha_lesson.show.palette import LINE_COLOURS
from mha_lesson.show.widgets.base import WIDE, LessonWidget, ipywidgets

GIB = 2**30
UNITS = (("TiB", 2**40), ("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10))
LENGTHS = tuple(2**p for p in range(8, 21))  # 256 to about a million tokens
CARDS = (24, 80, 141)  # GiB of memory, from a desktop's card to a data centre's


def cache_facts(model, tokens, batch, bytes_per_number):
    """Numbers about the cache of a model with `layers`, `heads`, `kv_heads`, `d_head`, `window`; sizes in bytes.

    kept: tokens of each text that are kept; token: one token of one text; total: the whole cache;
    full: the same with a key head for each query head; saved: full / total;
    by_heads: {number of key heads: total}, the most first, and fits: {number of key heads: {GiB of a card: texts
    that fit if the card holds nothing else}}.
    """
    if min(tokens, batch, bytes_per_number) <= 0:
        numbers = (tokens, batch, bytes_per_number)
        raise ValueError(f"tokens, batch, bytes_per_number: expected numbers above 0, got {numbers}.")
    kept = min(tokens, model.window) if model.window else tokens

    def size(kv_heads, tokens=kept, batch=batch):
        return 2 * model.layers * kv_heads * model.d_head * tokens * batch * bytes_per_number

    choices = head_choices(model.heads, model.kv_heads)
    return {
        "kept": kept,
        "token": size(model.kv_heads, 1, 1),
        "total": size(model.kv_heads),
        "full": size(model.heads),
        "saved": model.heads / model.kv_heads,
        "by_heads": {n: size(n) for n in choices},
        "fits": {n: {card: int(card * GIB // size(n, batch=1)) for card in CARDS} for n in choices},
    }


def head_choices(heads, kv_heads):
    """Numbers of key heads worth comparing, the most first: one each, groups, one for all.

    Groups are the model's own, or, where it has none, 8 key heads or the largest number below that divides `heads`.
    """
    groups = kv_heads if 1 < kv_heads < heads else max(n for n in range(1, 9) if heads % n == 0)
    return sorted({heads, groups, 1}, reverse=True)


def choice_name(n, heads):
    """The name of having n key heads for so many query heads."""
    if n == heads:
        return f"{n}, each head its own (MHA)" if n > 1 else "1 head"
    return "1, shared by all (MQA)" if n == 1 else f"{n}, shared in groups (GQA)"


def size_text(size):
    """Bytes in the unit that reads well, with three digits."""
    for unit, factor in UNITS:
        if size >= factor:
            value = size / factor
            text = f"{value:,.{max(0, 2 - floor(log10(value)))}f}"
            return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {unit}"
    return f"{size:,.0f} bytes"


def cache_text(model, tokens, batch, bytes_per_number):
    """The cache in a few sentences."""
    found = cache_facts(model, tokens, batch, bytes_per_number)
    text = (
        f"{model.name}, {batch} {'text' if batch == 1 else 'texts'} of {tokens:,} tokens, "
        f"{bytes_per_number} {'byte' if bytes_per_number == 1 else 'bytes'} a number: "
        f"{size_text(found['total'])}, of which one token takes {size_text(found['token'])}."
    )
    if found["saved"] > 1:
        text += (
            f" With a key head for each of its {model.heads} query heads it would be {found['saved']:g} times as much, "
            f"{size_text(found['full'])}."
        )
    if found["kept"] < tokens:
        text += f" Its window keeps the last {found['kept']:,} of each text."
    if tokens > model.context:
        text += f" (It was made for texts up to {model.context:,}.)"
    return text


def cache_html(model, tokens, batch, bytes_per_number):
    """HTML: the size for each choice of key heads, how many texts fit a card, and the sentences."""
    found = cache_facts(model, tokens, batch, bytes_per_number)
    sizes, fits = found["by_heads"], found["fits"]
    built = ["◀ as built" if n == model.kv_heads else "" for n in sizes]
    cards = [(f"in {card} GiB", [f"{fits[n][card]:,}" for n in sizes]) for card in CARDS]
    return markup.page(
        markup.side_by_side(  # in it, bars are shorter
            markup.bar_table(
                [choice_name(n, model.heads) for n in sizes],
                [size / found["total"] for size in sizes.values()],
                f"Bytes of the cache, by key heads ({model.heads} query heads)",
                more=[("size", [size_text(size) for size in sizes.values()]), ("", built), *cards],
                digits=2,
                heading="times",
            )
        ),
        "<p>The last three columns: how many texts of this length fit into so much memory, "
        "if it held nothing but the cache. The weights need room too.</p>",
        markup.sentence(cache_text(model, tokens, batch, bytes_per_number)),
    )


class KVCacheCalculator(LessonWidget):
    """Choose a model, a length, how many texts at once: what does the cache take?

    models: objects with name, layers, heads, kv_heads, d_head, context and window.
    model: the name of the one to begin with; None: the first.
    """

    def __init__(self, models, model=None):
        self.models = {m.name: m for m in models}
        if not self.models:
            raise ValueError("models is empty: pass mha_lesson.steps.serving.PUBLISHED.")
        model = next(iter(self.models)) if model is None else model
        if model not in self.models:
            raise ValueError(f"model: expected one of {', '.join(self.models)}, got {model!r}.")
        tokens = max(n for n in LENGTHS if n <= max(self.models[model].context, LENGTHS[0]))
        super().__init__({"model": model, "tokens": tokens, "batch": 1, "bytes_per_number": 2})

    def controls_for(self, start):
        wide = ipywidgets.Layout(width="340px")
        return {
            "model": ipywidgets.Dropdown(
                options=list(self.models), value=start["model"], description="model", style=WIDE
            ),
            "tokens": ipywidgets.SelectionSlider(
                options=[(f"{n:,}", n) for n in LENGTHS], value=start["tokens"], description="tokens of a text",
                style=WIDE, layout=wide,
            ),
            "batch": ipywidgets.IntSlider(
                start["batch"], min=1, max=128, description="texts at once", style=WIDE, layout=wide
            ),
            "bytes_per_number": ipywidgets.Dropdown(
                options=[("4 (float32)", 4), ("2 (float16)", 2), ("1 (int8, fp8)", 1)],
                value=start["bytes_per_number"], description="bytes a number", style=WIDE,
            ),
        }  # fmt: skip

    def describe(self, model, tokens, batch, bytes_per_number):
        return cache_text(self.models[model], tokens, batch, bytes_per_number)

    def render(self, model, tokens, batch, bytes_per_number):
        return cache_html(self.models[model], tokens, batch, bytes_per_number)

    def picture(self):
        from matplotlib.figure import Figure

        fig = Figure(figsize=(7.8, 0.9 + 0.36 * len(self.models)), facecolor="white", layout="constrained")
        axes = fig.subplots()
        facts = {name: cache_facts(m, m.context, 1, 2) for name, m in self.models.items()}
        for place, found in enumerate(facts.values()):
            full, own = found["full"], found["total"]
            label = size_text(own) + (f", not {size_text(full)}" if own < full else "")
            axes.barh(place, full / GIB, color="#dddddd", hatch="//", edgecolor="#999999")
            axes.barh(place, own / GIB, color=LINE_COLOURS[0])
            axes.text(full / GIB, place, f"  {label}", va="center", fontsize=9)
        for bar, name in zip(axes.patches, ("a key head for each query head", "as built"), strict=False):
            bar.set_label(name)
        axes.set_yticks(range(len(facts)), [f"{n}, {self.models[n].context:,} tokens" for n in facts], fontsize=9)
        axes.invert_yaxis()
        axes.set_xlabel("GiB for one text of full length, 2 bytes a number", fontsize=10)
        axes.margins(x=0.22)  # room for the text behind the longest bar
        axes.tick_params(labelsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        fig.legend(fontsize=9, frameon=False, loc="outside upper right", ncols=2)
        return fig

    def picture_alt(self):
        parts = (f"{name} {size_text(cache_facts(m, m.context, 1, 2)['total'])}" for name, m in self.models.items())
        return "The cache of one text of full length, 2 bytes a number: " + ", ".join(parts) + "."
