"""Exercise 08.works."""

import copy
from collections.abc import Callable

import numpy as np

from mha_lesson.exercises.engine import Exercise, Mistakes, Probe, Protocol, sandbox
from mha_lesson.exercises.engine.compare import plain
from mha_lesson.exercises.lesson_08.shared import Late, torch

functional = Late("torch.nn.functional")


mutants = Late("mha_lesson.exercises.lesson_08.broken_layers")


layer_checks = Late("mha_lesson.pytorch.layer_checks")


# What is special about a layer, and what to look at if the test misjudges it. Their order is that of
# the probes: the right layers first.
RIGHT = {
    "one_head": (
        "a right layer with one head",
        "Take d_model and num_heads from the layer: here the one head has the whole width.",
    ),
    "two_heads": (
        "a right layer with two heads",
        "Floats round: torch.allclose(a, b, atol=1e-5), not == and not torch.equal. Weights are (B, H, L, S).",
    ),
    "training_mode": (
        "a right layer with dropout, in training mode",
        "In training mode it drops other weights at each call, as it should: call layer.eval() first.",
    ),
    "shared_heads": (
        "a right layer whose four query heads share one key/value head",
        "Its k_proj and v_proj have the width of one head: cut into heads of d_model // num_heads.",
    ),
    "step_by_step": (
        "a right layer that computes step by step",
        "It rounds in other places: torch.allclose(a, b, atol=1e-5), not == and not torch.equal.",
    ),
    "pytorchs": (
        "a right layer that calls what nn.MultiheadAttention calls",
        "It rounds in other places: torch.allclose(a, b, atol=1e-5), not == and not torch.equal.",
    ),
}


WRONG = {
    "no_scale": (
        "a layer that does not divide the scores by sqrt(D)",
        "Its weights add up to 1 and make its output. Compare the output with the formula, worked out from q_proj, "
        "k_proj, v_proj and out_proj.",
    ),
    "softmax_over_queries": (
        "a layer whose softmax runs over the queries",
        "Ask for the weights, with more keys than queries: the shares of one query, a row, have to add up to 1.",
    ),
    "keep_reversed": (
        "a layer that reads keep the other way round",
        "Call it with a keep, and change what stands at the hidden keys: the output must not move.",
    ),
    "causal_upper_left": (
        "a layer whose causal mask is aligned upper-left",
        "Call it with causal=True and more keys than queries: the last query has to see all keys.",
    ),
    "merged_by_reshape": (
        "a layer that joins the heads without swapping axes back",
        "Tokens got mixed: with the queries in another order, the outputs have to come in that order, too.",
    ),
    "weights_averaged": (
        "a layer whose weights are averaged over the heads",
        "Ask for the weights and look at their shape: (B, H, L, S).",
    ),
    "dropout_in_evaluation": (
        "a layer whose dropout goes on in evaluation mode",
        "Call layer.eval(), then call the layer twice: the same output both times.",
    ),
    "value_ignored": (
        "a layer that takes its values from the key",
        "Pass three different things as query, key and value. In self-attention nothing shows.",
    ),
    "nan_in_empty_rows": (
        "a layer that gives NaN where nothing may be attended to",
        "Hide all keys from one query: it gets 0, then the output bias, and no NaN.",
    ),
    "weights_change_the_output": (
        "a layer that forgets causal when it is asked for weights",
        "Call it with causal=True, once with need_weights and once without: the same output.",
    ),
}


_PRINT = "Print each condition of your test for a right layer, say MultiHeadAttention(8, 2): which one is False?"


def _versions() -> list[Probe]:
    right, wrong = mutants.right_layers(), mutants.wrong_layers()
    return [
        *(Probe((right[name],), f"given {what}", f"{look} {_PRINT}") for name, (what, look) in RIGHT.items()),
        *(Probe((wrong[name],), f"given {what}") for name, (what, _) in WRONG.items()),
    ]


def _lets_pass(*faults: str) -> Callable:
    """A test that is right but for these faults, which it does not see."""
    return lambda layer: layer.fault in ("", *faults)


def _finds(*faults: str) -> Callable:
    """A test that sees these faults and no others."""
    return lambda layer: layer.fault not in faults


def _one_width(layer) -> bool:
    """Compares with the formula, as if there were one head."""
    query, key, value = layer_checks.inputs(layer)
    found = functional.scaled_dot_product_attention(layer.q_proj(query), layer.k_proj(key), layer.v_proj(value))
    return layer_checks.close(layer(query, key, value), layer.out_proj(found))


def _shape_of_second(layer) -> bool:
    """Looks at [1] of what a plain call gives."""
    return layer(*layer_checks.inputs(layer))[1].shape == (3, layer.num_heads, 5, 7)


def _takes_sample_for_weights(function: Callable) -> bool:
    """Would this works() accept a right layer if [1] of a plain call gave the weights?"""

    class Output(torch.Tensor):
        def __getitem__(self, at):
            weights = isinstance(at, int) and at == 1 and getattr(self, "weights", None)
            return super().__getitem__(at) if weights is None or weights is False else weights

        def __iter__(self):
            return iter((self, self.weights)) if hasattr(self, "weights") else super().__iter__()

    def add_weights(module, args, options, output):
        if isinstance(output, tuple):
            return output
        output = output.as_subclass(Output)
        output.weights = module.forward(*args, **{**options, "need_weights": True})[1]
        return output

    layers = [(copy.deepcopy(p.args[0]),) for p in WORKS.probe_list[: len(RIGHT)]]
    for (layer,) in layers:
        layer.register_forward_hook(add_weights, with_kwargs=True)
    answers = sandbox.call_all(function, layers, sandbox.SECONDS)
    return any(isinstance(o.value, bool | np.bool_ | torch.Tensor) and bool(np.all(plain(o.value))) for o in answers)


def _needs_full_width(layer) -> bool:
    """Cuts the keys into num_heads parts of d_model // num_heads."""
    layer.k_proj(torch.zeros(1, layer.d_model)).view(layer.num_heads, layer.d_model // layer.num_heads)
    return not layer.fault


mistake = Mistakes()


mistake.function(
    "cannot_fail",
    """It accepts every right layer. But it accepts the wrong ones too, so it tests nothing: the shape of the output is
    right in all of them. Take one property that has to hold, and compare numbers.""",
    _finds(),
)

mistake.function(
    "always_false",
    "It rejects every wrong layer. But it rejects all six right ones too, from the first, a right layer with one head. "
    f"{_PRINT} Often it is == or torch.equal (floats round: torch.allclose(a, b, atol=1e-5)), or weights that are "
    "expected in another shape than (B, H, L, S).",
    lambda layer: False,
)


@mistake(when=lambda function: _takes_sample_for_weights(function))
def weights_not_asked(layer):
    """Looking at the weights is right. But without need_weights=True the layer gives the output alone, and [1] takes
    sample 1 of it: ask for the weights, _, weights = layer(query, key, value, need_weights=True)."""
    return _shape_of_second(layer)


@mistake
def inverted(layer):
    """It tells right from wrong perfectly. But it answers the other way round: True must mean 'right'."""
    return layer.fault != ""


@mistake
def expects_averaged(layer):
    """Asking for the weights and looking at their shape is right. But you expect their mean over the heads, (B, L, S),
    the habit of nn.MultiheadAttention; here each head has its own, (B, H, L, S)."""
    return layer.fault == "weights_averaged"


mistake.function(
    "one_head",
    """The formula is a good thing to compare with. But you take the whole width as one head: cut q, k and v into
    layer.num_heads parts first.""",
    _one_width,
)

mistake.function(
    "shared_heads_crash",
    """It finds every wrong layer. But it crashes on a right one whose query heads share a key/value head, where k_proj
    is narrower: cut into heads of d_model // num_heads, however many they are, and repeat them.""",
    _needs_full_width,
)


@mistake
def training_mode(layer):
    """It finds every wrong layer. But it rejects a right one with dropout: in training mode its outputs have to differ.
    Call layer.eval() before anything else."""
    return not (layer.fault or (layer.training and layer.dropout))


mistake.function(
    "shape_of_weights",
    """It accepts every right layer, and finds weights that are averaged. But a shape is right in all the other wrong
    ones: compare numbers, too.""",
    _finds("weights_averaged"),
)

mistake.function(
    "sums_only",
    """That rows add up to 1 is a good check, and it finds a softmax over the wrong axis. But it does not look at the
    output, nor at masks: add a check for each.""",
    _finds("softmax_over_queries"),
)

mistake.function(
    "shares_only",
    """Shape and row sums of the weights are good checks. But the output may have nothing to do with them: work it out
    from weights and values, and compare; then the masks.""",
    _finds("softmax_over_queries", "weights_averaged"),
)

mistake.function(
    "formula_only",
    """Comparing with the formula finds what is wrong in the middle of the layer. But masks, the weights that come back,
    and a call that asks for them are not tried yet.""",
    _lets_pass(
        "keep_reversed",
        "causal_upper_left",
        "weights_averaged",
        "nan_in_empty_rows",
        "weights_change_the_output",
    ),
)

mistake.function(
    "formula_of_self_attention",
    """Comparing with the formula finds most of what is wrong in the middle. But you call the layer with x alone: give
    it a key and a value of their own, longer than the query; then masks and weights.""",
    _finds(
        "no_scale",
        "softmax_over_queries",
        "merged_by_reshape",
        "dropout_in_evaluation",
    ),
)

mistake.function(
    "self_attention_only",
    """It finds nearly all. But you call the layer with x alone. Give it a key and a value of their own, and more keys
    than queries: two wrong layers are right only in self-attention.""",
    _lets_pass("causal_upper_left", "value_ignored"),
)

mistake.function(
    "without_keep",
    """It finds nearly all. But you never pass keep. Hide some keys and change what stands there; and hide all keys from
    one query.""",
    _lets_pass("keep_reversed", "nan_in_empty_rows"),
)

mistake.function(
    "without_causal",
    """It finds nearly all. But you never pass causal=True: with more keys than queries, and once with and once without
    need_weights.""",
    _lets_pass("causal_upper_left", "weights_change_the_output"),
)

mistake.function(
    "without_masks",
    """Everything without masks is tested well. But you pass neither keep nor causal, and four of the wrong layers are
    right without.""",
    _lets_pass("keep_reversed", "causal_upper_left", "nan_in_empty_rows", "weights_change_the_output"),
)

mistake.function(
    "without_weights",
    """It finds nearly all. But you never ask for the weights: look at their shape, and whether asking changes the
    output.""",
    _lets_pass("weights_averaged", "weights_change_the_output"),
)

for name, (what, look) in WRONG.items():
    mistake.function(
        f"misses_{name}",
        f"It accepts every right layer and finds nine wrong ones. But one gets through: {what}. {look}",
        _lets_pass(name),
    )


WORKS = Exercise(
    id="08.works",
    needs_torch=True,
    signature="works(layer)",
    solution="mha_lesson.pytorch.layer_checks:works",
    helpers=tuple(
        f"mha_lesson.pytorch.layer_checks:{name}"
        for name in (
            "weights_are_shares", "formula_holds", "weights_make_the_output", "order_is_free", "padding_is_hidden",
            "future_is_hidden", "empty_rows_are_zero", "answers_stay_the_same", "inputs", "heads", "joined", "close",
        )
    ),
    probes=_versions,
    # The layers are made for the test: layer.eval() is what the hints advise.
    protocol=Protocol(spared=("mode", "setting", "grad")),
    advice="This is the first one only: scoreboard(works) shows how your test judges each layer, and where to look.",
    mistakes=mistake.all,
    forms={
        "against a second implementation": lambda layer: _like_step_by_step(layer),
        "a tensor": lambda layer: torch.tensor(layer_checks.works(layer)),
        "nested lists": lambda layer: [layer_checks.works(layer)][0],
        "NumPy's bool": lambda layer: np.bool_(layer_checks.works(layer)),
    },
    hints=(
        "You get a layer. Call layer.eval(), make a query (B, L, E), a key and a value (B, S, E) with torch.randn, E = "
        "layer.d_model, all sizes different, and look at what comes back.",
        "One check is a function of its own, and works(layer) says whether all hold. For example, check 8:\n"
        "```python\n"
        "def same_again(layer):                    # True if the layer passes\n"
        "    x = torch.randn(3, 5, layer.d_model)\n"
        "    output = layer(x, causal=True)        # without need_weights: the output alone\n"
        "    asked, weights = layer(x, causal=True, need_weights=True)   # with it: two things\n"
        "    return torch.allclose(output, asked, atol=1e-5)\n"
        "\n"
        "def works(layer):\n"
        "    layer.eval()\n"
        "    return all([same_again(layer)])       # the next check goes into this list\n"
        "```",
        "The weights are (B, H, L, S), one map for each head, and each row adds up to 1.",
        "The output stays the same when you call twice. And with the queries in another order, say query.flip(1), the "
        "outputs come in that order: output.flip(1).",
        "Padding: keep = (torch.arange(S) < torch.tensor(lengths)[:, None])[:, None, None, :] is (B, 1, 1, S), True = "
        "may attend. Change key and value where keep is False: no output may move.",
        "Causal, with more keys than queries: the last query sees all keys, the one before it all but the last key. "
        "Change one value, and see which outputs move.",
        "An empty row: keep (L, S), all of row 1 False. That query gets layer.out_proj of zeros, and nothing is NaN.",
        "Properties do not see a missing scale: work the output out. q, k and v are q_proj(query), k_proj(key) and "
        "v_proj(value), each cut into heads of D = layer.d_model // layer.num_heads: x.unflatten(-1, (-1, "
        "D)).transpose(1, 2), so (B, heads, L or S, D).",
        "Shared key/value heads are fewer: H = layer.num_heads, kv_heads = k.shape[1], and k = k.repeat_interleave(H "
        "// kv_heads, dim=1) brings H of them; v likewise.",
        "context = torch.nn.functional.scaled_dot_product_attention(q, k, v) is (B, H, L, D). Join the heads, "
        "context.transpose(1, 2).flatten(2), and then layer.out_proj. Compare with torch.allclose(a, b, atol=1e-5).",
    ),
    well_done="All ten found, and no right layer rejected. Keep this test: it works for any attention layer.",
)  # fmt: skip


def _like_step_by_step(layer) -> bool:
    """Right: the same answers as a second layer with the same weights, in all ways of calling."""
    layer.eval()
    other = mutants.StepByStep(layer.d_model, layer.num_heads, layer.num_kv_heads)
    other.load_state_dict(layer.state_dict())
    query, key, value = layer_checks.inputs(layer)
    keep = torch.arange(7) < torch.tensor([7, 4, 0])[:, None, None, None]
    ways = [{}, {"keep": keep}, {"causal": True}, {"keep": keep, "causal": True}]
    for way in (w | {"need_weights": asked} for w in ways for asked in (False, True)):
        have, want = layer(query, key, value, **way), other.eval()(query, key, value, **way)
        pairs = zip(have, want, strict=True) if way["need_weights"] else [(have, want)]
        if not all(layer_checks.close(a, b) for a, b in pairs):
            return False
    return True
