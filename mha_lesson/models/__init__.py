"""The small models that the lessons load or train. One idea a file; nothing loads before you ask.

    minilm.py         a real pretrained transformer in NumPy, six layers of twelve heads
    minilm_torch.py   the same model in PyTorch

    blocks.py         the transformer block around the course's layer; tools that look inside
    training.py       one training loop for all tasks below; trained weights kept and loaded
    induction.py      two layers of attention alone learn to copy        (made-up sequences)
    recall.py         the value beside a key, by full, windowed, linear attention (made-up sequences)
    char_lm.py        a language model, letter by letter                 (Moby Dick)
    translation.py    an encoder and a decoder: spelling to sound, and dates of many languages
    classifier.py     one class for a sequence: pictures of digits, and spoken digits
    series.py         a forecast: how many bikes the next day
    results.py        what comparing their variants gave, recorded
    command.py        the command line

`python3 -m mha_lesson train` lists the tasks; `python3 -m mha_lesson train NAME` trains one.
"""

from importlib import import_module

_HOME = {
    "induction": "induction.Induction",
    "moby": "char_lm.MobyDick",
    "spelling": "translation.Spelling",
    "dates": "translation.Dates",
    "digits": "classifier.Digits",
    "speech": "classifier.Speech",
    "bikes": "series.Bikes",
    "recall": "recall.Recall",
}

TASK_NAMES = tuple(_HOME)


def get_task(name: str):
    """The task of this name: `get_task("speech")`. Needs PyTorch."""
    if name not in _HOME:
        raise ValueError(f"name: expected one of {', '.join(TASK_NAMES)}, got {name!r}.")
    module, task = _HOME[name].split(".")
    return getattr(import_module(f".{module}", __name__), task)()


def load(name: str, **options):
    """(model, facts): a trained model that came with the course. See `training.load`."""
    from mha_lesson.models import training

    return training.load(name, **options)


def sweep(name: str) -> dict:
    """What comparing the variants of a task gave, recorded. See `results`."""
    from mha_lesson.models import results

    return results.sweep(name)


def sweep_rows(name: str) -> list[dict]:
    """One entry for each training run of that comparison. See `results`."""
    return sweep(name)["rows"]


def summary(name: str, metric: str | None = None) -> list:
    """Its variants, each over its seeds. See `results`."""
    from mha_lesson.models import results

    return results.summary(name, metric)
