"""A widget about memory: what the keys and values of a served model take."""

from . import markup
from .palette import LINE_COLOURS
from .widget_base import WIDE, LessonWidget, ipywidgets

GIB = 2**30
LENGTHS = tuple(2**p for p in range(8, 21))  # 256 to about a million tokens


def cache_facts(model, tokens, batch, bytes_per_number):
    """Numbers about the cache of a model with `layers`, `heads`, `kv_heads`, `d_head`; sizes in bytes.

    total: the whole cache; token: one token of one text; by_heads: the total if the model had as many
    key/value heads as query heads, its own number, or one; kept: tokens of each text that are kept.
    """
    kept = min(tokens, model.window) if model.window else tokens

    def size(kv_heads, tokens, batch):
        return 2 * model.layers * kv_heads * model.d_head * tokens * batch * bytes_per_number

    choices = {
        f"each head its own ({model.heads})": model.heads,
        f"as built ({model.kv_heads})": model.kv_heads,
        "one for all (1)": 1,
    }
    return {
        "kept": kept,
        "token": size(model.kv_heads, 1, 1),
        "total": size(model.kv_heads, kept, batch),
        "by_heads": {name: size(n, kept, batch) for name, n in choices.items()},
    }


def size_text(size):
    """Bytes in the unit that reads well."""
    for unit, factor in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:,.3g} {unit}" if size < 1000 * factor else f"{size / factor:,.0f} {unit}"
    return f"{size:,.0f} bytes"


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
                options=LENGTHS, value=start["tokens"], description="tokens of a text", style=WIDE, layout=wide
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
        shape = self.models[model]
        found = cache_facts(shape, tokens, batch, bytes_per_number)
        text = (
            f"{model}, {batch} {'text' if batch == 1 else 'texts'} of {tokens:,} tokens, "
            f"{bytes_per_number} {'byte' if bytes_per_number == 1 else 'bytes'} a number: "
            f"{size_text(found['total'])}, of which one token takes {size_text(found['token'])}."
        )
        if found["kept"] < tokens:
            text += f" Its window keeps the last {found['kept']:,} of each text."
        if tokens > shape.context:
            text += f" (It was made for texts up to {shape.context:,}.)"
        return text

    def render(self, model, tokens, batch, bytes_per_number):
        """HTML: the sizes with full, its own and a single key/value head, and a sentence."""
        found = cache_facts(self.models[model], tokens, batch, bytes_per_number)
        sizes = found["by_heads"]
        return markup.page(
            markup.bar_table(
                list(sizes),
                [size / GIB for size in sizes.values()],
                "The cache, by key/value heads",
                more=[("size", [size_text(size) for size in sizes.values()])],
                heading="GiB",
            ),
            markup.sentence(self.describe(model, tokens, batch, bytes_per_number)),
        )

    def picture(self):
        from matplotlib.figure import Figure

        fig = Figure(figsize=(7.6, 0.6 + 0.42 * len(self.models)), facecolor="white", layout="constrained")
        axes = fig.subplots()
        facts = {name: cache_facts(m, m.context, 1, 2) for name, m in self.models.items()}
        for place, found in enumerate(facts.values()):
            full, own, _ = found["by_heads"].values()
            axes.barh(place, full / GIB, color="#dddddd", hatch="//", edgecolor="#999999",
                      label="each head its own" if place == 0 else None)  # fmt: skip
            axes.barh(place, own / GIB, color=LINE_COLOURS[0], label="as built" if place == 0 else None)
            axes.text(max(full, own) / GIB, place, f"  {size_text(own)}", va="center", fontsize=9)
        axes.set_yticks(range(len(facts)), [f"{n}, {self.models[n].context:,} tokens" for n in facts], fontsize=9)
        axes.invert_yaxis()
        axes.set(xlabel="GiB for one text of full length, 2 bytes a number")
        axes.margins(x=0.16)
        axes.legend(fontsize=9, frameon=False, loc="upper right")
        axes.spines[["top", "right"]].set_visible(False)
        return fig

    def picture_alt(self):
        parts = (f"{name} {size_text(cache_facts(m, m.context, 1, 2)['total'])}" for name, m in self.models.items())
        return "The cache of one text of full length, 2 bytes a number: " + ", ".join(parts) + "."
