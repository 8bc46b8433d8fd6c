"""The hints of lesson 08 say enough."""

import pytest

from mha_lesson.exercises import REGISTRY, check, hint
from mha_lesson.exercises.lesson_08 import BLOCKED, LOAD, WORKS
from mha_lesson.exercises.lesson_08 import scoreboard as board_file

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from mha_lesson.exercises.lesson_08 import broken_layers  # noqa: E402

pytestmark = pytest.mark.torch


def test_the_hints_are_there():
    hints = REGISTRY["08.works"].hints
    assert f"1 of {len(hints)}" in repr(hint("08.works")) and callable(board_file.scoreboard)
    assert max(map(len, hints)) < 600 and "np.split(layer.in_proj_weight.detach().numpy(), 3)" in LOAD.hints[1]
    assert "k.repeat_interleave(H // kv_heads, dim=1)" in "".join(hints) and "(B, 1, 1, S)" in "".join(hints)
    assert "the padding is the other side, places >= length" in BLOCKED.hints[1]


def test_the_code_in_a_hint_runs_and_is_a_check():
    code = next(h for h in WORKS.hints if "```python" in h).split("```python\n")[1].split("```")[0]
    names = {"torch": torch}
    exec(code, names)
    assert all(names["works"](layer) for layer in broken_layers.right_layers().values())
    assert not names["works"](broken_layers.wrong_layers()["weights_change_the_output"])


def test_the_hints_together_find_all_ten():
    """Each line below is what one hint says, and no more."""

    def works(layer):
        layer.eval()
        L, S, H, D = 5, 7, layer.num_heads, layer.d_model // layer.num_heads
        query, key, value = (torch.randn(2, n, layer.d_model) for n in (L, S, S))
        output, weights = layer(query, key, value, need_weights=True)
        causal = layer(query, key, value, causal=True)
        keep = (torch.arange(S) < torch.tensor([7, 3])[:, None])[:, None, None, :]
        hidden = ~keep[:, 0, 0, :, None]
        changed = layer(query, key.masked_fill(hidden, 5), value.masked_fill(hidden, 5), keep)
        last = value.clone()
        last[:, -1] += 1
        moved = (layer(query, key, last, causal=True) - causal).abs().amax((0, 2)) > 1e-4
        empty = torch.ones(L, S, dtype=torch.bool)
        empty[1] = False
        q, k, v = (
            x.unflatten(-1, (-1, D)).transpose(1, 2)
            for x in (layer.q_proj(query), layer.k_proj(key), layer.v_proj(value))
        )
        kv_heads = k.shape[1]
        k, v = k.repeat_interleave(H // kv_heads, dim=1), v.repeat_interleave(H // kv_heads, dim=1)
        context = F.scaled_dot_product_attention(q, k, v)
        near = lambda a, b: torch.allclose(a, b, atol=1e-5)  # noqa: E731
        return all([
            weights.shape == (2, H, L, S) and near(weights.sum(-1), torch.ones(2, H, L)),
            near(output, layer(query, key, value)) and near(layer(query.flip(1), key, value), output.flip(1)),
            near(layer(query, key, value, keep), changed),
            moved.tolist() == [False] * 4 + [True],
            near(layer(query, key, value, empty)[:, 1], layer.out_proj(torch.zeros(layer.d_model))),
            near(output, layer.out_proj(context.transpose(1, 2).flatten(2))),
            near(causal, layer(query, key, value, causal=True, need_weights=True)[0]),
        ])  # fmt: skip

    assert check("08.works", works).status == "correct"
