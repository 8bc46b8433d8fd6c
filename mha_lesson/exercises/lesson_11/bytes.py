"""Exercise 11.bytes."""

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe
from mha_lesson.steps.serving import kv_cache_bytes

mistake = Mistakes()


mistake.edit(
    "keys_only",
    """Layers, heads, width, tokens: all are in. But a value is kept beside each key: times 2.""",
    old="2 * ",
    new="",
)

mistake.edit(
    "queries_too",
    """All factors are in. But it is 2 and not 3: queries are not kept.""",
    old="2 * ",
    new="3 * ",
)

mistake.edit(
    "one_layer",
    """Right for one layer. But each layer has a cache of its own: times layers.""",
    old=" * layers",
    new="",
)

mistake.edit(
    "one_head",
    """Right for one head. But each kv head keeps its own: times kv_heads.""",
    old=" * kv_heads",
    new="",
)

mistake.edit(
    "width_forgotten",
    """All but one factor are in. But a key is a vector of d_head numbers: times d_head.""",
    old=" * d_head",
    new="",
)

mistake.edit(
    "one_token",
    """This is what one token takes. But all of them are kept: times tokens.""",
    old=" * tokens",
    new="",
)

mistake.edit(
    "one_text",
    """Right for one text. But each text of the batch has its own: times batch.""",
    old=" * batch",
    new="",
)

mistake.edit(
    "numbers",
    """These are the numbers that are kept. But bytes are asked for: times bytes_per_number.""",
    old=" * bytes_per_number",
    new="",
)

mistake.edit(
    "bits",
    """All factors are in. But these are bits: bytes_per_number is in bytes already, no 8.""",
    old="2 * ",
    new="16 * ",
)

mistake.edit(
    "gigabytes",
    """All factors are in. But the result is in GiB, and bytes are asked for: do not divide.""",
    old="bytes_per_number\n",
    new="bytes_per_number / 2**30\n",
)

mistake.edit(
    "megabytes",
    """All factors are in. But the result is in MiB, and bytes are asked for: do not divide.""",
    old="bytes_per_number\n",
    new="bytes_per_number / 2**20\n",
)

mistake.edit(
    "decimal_gigabytes",
    """All factors are in. But the result is in GB, and bytes are asked for: do not divide.""",
    old="bytes_per_number\n",
    new="bytes_per_number / 1e9\n",
)

mistake.edit(
    "always_two",
    """Right for float16. But numbers may be longer or shorter: times bytes_per_number, not 2.""",
    old="batch * bytes_per_number\n",
    new="batch * 2\n",
)

mistake.edit(
    "always_four",
    """Right for float32. But numbers may be shorter: times bytes_per_number, not 4.""",
    old="batch * bytes_per_number\n",
    new="batch * 4\n",
)

mistake.edit(
    "tokens_squared",
    """All factors are in. But tokens count once: the cache holds keys and values, not the table of scores.""",
    old=" * tokens",
    new=" * tokens * tokens",
)


@mistake
def scores(layers, kv_heads, d_head, tokens, batch, bytes_per_number):
    """This counts scores, tokens × tokens in each head. But those are not kept: a key and a value of each token are, of
    width d_head."""
    return layers * kv_heads * tokens * tokens * batch * bytes_per_number


BYTES = Exercise(
    id="11.bytes",
    signature="cache_bytes(layers, kv_heads, d_head, tokens, batch, bytes_per_number)",
    solution=kv_cache_bytes,
    probes=lambda: [
        Probe((32, 32, 128, 4096, 1, 2), "Llama 2 7B, one text of 4096 tokens, float16"),
        Probe((80, 8, 128, 8192, 3, 2), "80 layers, 8 kv heads, three texts of 8192 tokens"),
        Probe((3, 5, 7, 11, 13, 4), "all numbers different primes, 4 bytes"),
        Probe((1, 1, 1, 1, 1, 1), "one of everything"),
    ],
    mistakes=mistake.all,
    forms={
        "a float": lambda *args: float(kv_cache_bytes(*args)),
        "NumPy's product": lambda *args: 2 * np.prod(args, dtype=np.int64),
        "an array": lambda *args: np.array(kv_cache_bytes(*args)),
    },
    hints=(
        "Begin with one token in one head of one layer: what is kept, and how many numbers is that?",
        "A key and a value, d_head numbers each. Then: how many heads, layers, tokens, texts?",
        "2 * layers * kv_heads * d_head * tokens * batch * bytes_per_number",
    ),
    well_done="Half a megabyte a token, for a model of 7 billion with full heads.",
)  # fmt: skip
