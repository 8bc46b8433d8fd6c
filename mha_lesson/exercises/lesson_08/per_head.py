"""Exercise 08.per_head."""

import copy
from collections.abc import Callable

import numpy as np

from mha_lesson.attention import params_from_torch
from mha_lesson.exercises.engine import Exercise, Mistakes, Probe, sandbox
from mha_lesson.exercises.engine.probes import wave
from mha_lesson.exercises.lesson_08.shared import _module, layers, torch
from mha_lesson.steps.masks import causal_mask
from mha_lesson.steps.softmax import masked_softmax


def _keep(L: int):
    """No symmetry, and every query may attend to something."""
    i, j = np.arange(L)[:, None], np.arange(L)
    return torch.as_tensor(((2 * i + 3 * j) % 5 < 3) | (j == 0))


def _asking(layer, x, keep, **options):
    return layer(x, x, x, **{"attn_mask": ~keep, "average_attn_weights": False, **options})


def _wants_no_weights(function: Callable) -> bool:
    """Does this per_head() call its layer with need_weights=False?"""
    asked = []

    def look(module, args, options):
        asked.append(args[4] if len(args) > 4 else options.get("need_weights", True))

    layer, x, keep = copy.deepcopy(PER_HEAD.probe_list[0].args)
    layer.register_forward_pre_hook(look, with_kwargs=True)
    sandbox.call_all(function, [(layer, x, keep)], sandbox.SECONDS)
    return bool(asked) and not any(asked)


def _by_hand(layer, x, keep):
    """Right, without the layer's own call."""
    params = params_from_torch(layer)
    q, k = (x.numpy() @ params[f"w_{n}"] + params[f"b_{n}"] for n in "qk")
    q, k = (a.reshape(*x.shape[:2], layer.num_heads, -1).swapaxes(1, 2) for a in (q, k))
    return masked_softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), keep.numpy())


mistake = Mistakes()


mistake.edit(
    "averaged",
    """The mask is right. But these are the means over the heads, (B, L, L): nn.MultiheadAttention averages unless you
    say average_attn_weights=False.""",
    old=", average_attn_weights=False",
    new="",
)


@mistake
def averaged_with_an_axis(layer, x, keep):
    """The mask is right. But a new axis on the mean of the heads does not bring them back: ask for them with
    average_attn_weights=False."""
    return _asking(layer, x, keep)[1].mean(1, keepdim=True)


@mistake
def averaged_and_copied(layer, x, keep):
    """The mask and the shape are right. But every head shows the same numbers, the mean of all: ask for each one's own
    with average_attn_weights=False."""
    return _asking(layer, x, keep)[1].mean(1, keepdim=True).expand(-1, layer.num_heads, -1, -1)


mistake.edit(
    "mask_not_turned",
    """Each head has its own weights. But True in attn_mask means blocked, and True in keep means 'may attend': pass
    attn_mask=~keep.""",
    old="~keep",
    new="keep",
)

mistake.edit(
    "mask_forgotten",
    """Each head has its own weights. But the mask has no effect: pass attn_mask=~keep.""",
    old="attn_mask=~keep, ",
    new="",
)


@mistake
def mask_forgotten_and_averaged(layer, x, keep):
    """This is the call that everybody copies, layer(x, x, x)[1]. But it averages the heads and knows no mask: pass
    attn_mask=~keep and average_attn_weights=False."""
    return layer(x, x, x)[1]


mistake.edit(
    "mask_transposed",
    """Each head has its own weights, and the mask is turned to True = blocked. But its rows are queries, as in keep:
    pass ~keep, without .T.""",
    old="~keep",
    new="~keep.T",
)

mistake.edit(
    "key_padding_mask",
    """Each head has its own weights. But use attn_mask, not key_padding_mask: that one is (B, S), one row for each
    sequence; keep is (L, L), one row for each query.""",
    old="attn_mask=",
    new="key_padding_mask=",
)


@mistake
def mask_as_numbers(layer, x, keep):
    """Each head has its own weights, and 1 stands where it is blocked. But a float mask is added to the scores, and a 1
    there favours what it should hide: pass the boolean ~keep."""
    return _asking(layer, x, keep, attn_mask=(~keep).to(x.dtype))[1]


@mistake
def keep_as_numbers(layer, x, keep):
    """Each head has its own weights. But keep as floats is added to the scores, which hides nothing: pass the boolean
    ~keep."""
    return _asking(layer, x, keep, attn_mask=keep.to(x.dtype))[1]


for dtype in ("float64", "float32"):
    for name, effect in (
        ("mask", "a 1 there favours what it should hide"),
        ("keep", "1 and 0 hide nothing"),
    ):
        mistake.function(
            f"{name}_as_{dtype}",
            f"Each head has its own weights. But a float mask is added to the scores, and {effect}; if its type is not "
            "the layer's, PyTorch raises. Pass the boolean ~keep.",
            lambda layer, x, keep, name=name, dtype=dtype: _asking(
                layer, x, keep, attn_mask=(keep if name == "keep" else ~keep).to(getattr(torch, dtype))
            )[1],
        )


@mistake
def training_mode(layer, x, keep):
    """Mask and options are right. But you call layer.train(), and then dropout sets weights to 0: leave the layer in
    the mode in which it comes."""
    return _asking(layer.train(), x, keep)[1]


@mistake(when=lambda function: _wants_no_weights(function))
def not_asked(layer, x, keep):
    """The call gives two things, and the second is the one. But with need_weights=False it is None: leave that option
    out."""
    return _asking(layer, x, keep, need_weights=False)[1]


@mistake
def output(layer, x, keep):
    """The call is right. But it gives two things, (output, weights), and you return the first."""
    return _asking(layer, x, keep)[0]


@mistake
def both(layer, x, keep):
    """The call is right. But it gives two things, (output, weights), and only the weights are asked for: the second."""
    return _asking(layer, x, keep)


mistake.edit(
    "first_head",
    """The mask is right. But this is head 0 alone: keep the axis of the heads, (B, H, L, L).""",
    old="return weights",
    new="return weights[:, 0]",
)


@mistake
def first_sequence(layer, x, keep):
    """The mask is right, and each head has its own weights. But this is the first sequence alone: keep the axis of the
    batch, (B, H, L, L)."""
    return _asking(layer, x, keep)[1][0]


@mistake
def heads_first(layer, x, keep):
    """Each head has its own weights. But the batch comes first: (B, H, L, L), as the layer gives them."""
    return _asking(layer, x, keep)[1].transpose(0, 1)


@mistake
def rows_and_columns(layer, x, keep):
    """Each head has its own weights. But rows are queries and columns are keys, as the layer gives them: each row adds
    up to 1."""
    return _asking(layer, x, keep)[1].mT


@mistake
def batch_transposed(layer, x, keep):
    """Mask and options are right. But this layer has batch_first=True, so x goes in as it is. Transposed, its tokens
    attend across sequences; where B = L no shape shows it."""
    return _asking(layer, x.transpose(0, 1), keep)[1]


PER_HEAD = Exercise(
    id="08.per_head",
    needs_torch=True,
    signature="per_head(layer, x, keep)",
    solution="mha_lesson.pytorch.interop:head_weights",
    probes=lambda: [
        Probe((_module(10, 5), torch.as_tensor(wave(3, 4, 10)), torch.as_tensor(causal_mask(4, 4))),
              "B 3, L 4, d_model 10, 5 heads, a causal keep"),
        Probe((_module(6, 2, dropout=0.3), torch.as_tensor(wave(3, 5, 6, step=1.9)), _keep(5)),
              "B 3, L 5, d_model 6, 2 heads, a keep without pattern"),
        Probe((_module(12, 3, "float32"), torch.as_tensor(wave(2, 7, 12, step=0.9, dtype=np.float32)), _keep(7)),
              "B 2, L 7, d_model 12, 3 heads, float32"),
        Probe((_module(8, 2), torch.as_tensor(wave(3, 3, 8, step=1.3)), _keep(3)), "B = L = 3, 2 heads"),
    ],
    mistakes=mistake.all,
    forms={
        "a float mask of 0 and -inf": lambda layer, x, keep: _asking(
            layer, x, keep, attn_mask=torch.zeros_like(keep, dtype=x.dtype).masked_fill(~keep, -torch.inf)
        )[1],
        "one mask for each head": lambda layer, x, keep: _asking(
            layer, x, keep, attn_mask=(~keep).repeat(len(x) * layer.num_heads, 1, 1)
        )[1],
        "without gradients": lambda layer, x, keep: torch.no_grad()(_asking)(layer, x, keep)[1],
        "by hand in NumPy": _by_hand,
        "by the course's layer": lambda layer, x, keep: layers.MultiHeadAttention.from_torch(layer)(
            x, keep=keep, need_weights=True
        )[1],
        "nested lists": lambda layer, x, keep: _asking(layer, x, keep)[1].tolist(),
    },
    hints=(
        "Self-attention is layer(x, x, x, ...). It gives two things: (output, weights).",
        "Its attn_mask says True = blocked; keep says True = may attend.",
        "One option brings the heads apart: average_attn_weights=False.",
        "_, weights = layer(x, x, x, attn_mask=~keep, average_attn_weights=False)",
    ),
    well_done="One matrix for each head. Their mean would have hidden what makes them different.",
)  # fmt: skip
