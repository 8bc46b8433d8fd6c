"""The layer in NumPy against public reports of what goes wrong elsewhere."""

import numpy as np
import pytest

from mha_lesson.attention import MultiHeadAttention, scaled_dot_product_attention
from mha_lesson.steps.embeddings import rotary
from mha_lesson.steps.masks import causal_mask, from_torch_mha, to_torch_mha
from mha_lesson.steps.softmax import softmax
from tests.helpers import make_layer, run_torch, to_tensor
from tests.reference import g, near, numpy_layout_params, read_only, says, torch_layout_params
from tests.reports import reported

try:
    import torch
except ImportError:
    torch = None


@pytest.fixture(scope="module")
def report_layer():
    """The weights that all tests of public reports use, two heads."""
    return MultiHeadAttention.from_params(numpy_layout_params(4), num_heads=2)


# --------------------------------------------------------------------------- public reports


@reported("pytorch/pytorch#34537")
def test_weights_come_back_for_each_head(report_layer):
    x = g((1, 3, 4))
    output, weights = report_layer(x)
    assert weights.shape == (1, 2, 3, 3)
    near(weights[0, :, 0], [[0.606527, 0.015655, 0.377818], [0.590313, 0.021853, 0.387834]], 1e-6)
    near(weights.mean(1)[0, 0], [0.598420, 0.018754, 0.382826], 1e-6)
    value = x @ report_layer.w_v + report_layer.b_v
    rebuilt = weights.mean(1) @ value @ report_layer.w_o + report_layer.b_o
    near(np.abs(rebuilt - output).max(), 0.036551, 1e-6)


@reported("pytorch/pytorch#34537")
@pytest.mark.torch
def test_torch_agrees_on_both(report_layer):
    module = torch.nn.MultiheadAttention(4, 2, batch_first=True, dtype=torch.float64)
    module.load_state_dict({name: to_tensor(a) for name, a in torch_layout_params(4).items()})
    x = to_tensor(g((1, 3, 4)))
    output, weights = report_layer(g((1, 3, 4)))
    near(module(x, x, x)[0].detach().numpy(), output, 1e-14)
    near(module(x, x, x)[1].detach().numpy(), weights.mean(1), 1e-14)
    near(module(x, x, x, average_attn_weights=False)[1].detach().numpy(), weights, 1e-14)
    near(MultiHeadAttention.from_torch(module)(g((1, 3, 4)))[0], output, 1e-15)


@reported("rasbt/LLMs-from-scratch#1061")
def test_keep_means_may_attend():
    q, k = np.array([[[1.0, 0.0]]]), np.array([[[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]])
    v = np.array([[[10.0], [20.0], [30.0]]])
    pad = np.array([[[False, False, True]]])
    output, weights = scaled_dot_product_attention(q, k, v, ~pad)
    near(weights, [[[0.669762, 0.330238, 0]]], 1e-6)
    near(output, [[[13.302385]]], 1e-6)
    near(scaled_dot_product_attention(q, k, v, pad)[0], [[[30]]], 1e-6)
    near(scaled_dot_product_attention(q, k, v, from_torch_mha(pad))[0], output)
    q, k, v = g((1, 1, 3, 2)), g((1, 1, 3, 2), 0.9, 0.1), np.array([1.0, 2, 3]).reshape(1, 1, 3, 1)
    triu = np.triu(np.ones((3, 3), bool), 1)
    near(scaled_dot_product_attention(q, k, v, causal_mask(3, 3))[0].ravel(), [1, 1.587016, 2.263402], 1e-6)
    near(scaled_dot_product_attention(q, k, v, triu)[0].ravel(), [2.249920, 3, 0], 1e-6)
    near(scaled_dot_product_attention(q, k, v, from_torch_mha(triu))[0].ravel(), [1, 1.587016, 2.263402], 1e-6)


@reported("pytorch/pytorch#41508")
def test_an_empty_row_gives_the_output_bias(report_layer):
    keep = np.array([[True] * 3, [False] * 3])[:, None, None, :]
    output, weights = report_layer(g((2, 3, 4)), keep=keep)
    assert (weights[1] == 0).all()
    near(output[1], [[0.047943, 0.099957, 0.042738, -0.061186]] * 3, 1e-6)
    near(output[:1], report_layer(g((2, 3, 4))[:1])[0])


@reported("pytorch/pytorch#160064")
def test_one_head_may_be_empty(report_layer):
    x = g((1, 3, 4))
    keep = np.array([True, False])[None, :, None, None]
    output, weights = report_layer(x, keep=keep)
    assert (weights[:, 1] == 0).all()
    near(weights[:, 0], report_layer(x)[1][:, 0])
    first = weights[0, 0] @ (x[0] @ report_layer.w_v + report_layer.b_v)[:, :2]
    near(output[0], first @ report_layer.w_o[:2] + report_layer.b_o)


@reported("NVIDIA/apex#1105")
def test_half_precision_hides_a_large_key():
    q, k = np.array([[1.0, 1.0]], np.float16), np.array([[1, 0], [1, 1], [200, 200]], np.float16)
    v = np.array([[1], [2], [1000]], np.float16)
    output, weights = scaled_dot_product_attention(q, k, v, np.array([[True, True, False]]))
    assert output.dtype == weights.dtype == np.float16
    share = 1 / (1 + np.exp(1 / np.sqrt(2)))
    near(weights.astype(float), [[share, 1 - share, 0]], 1e-3)
    near(output.astype(float), [[2 - share]], 2e-3)


@reported("line/lighthouse#77")
def test_each_sample_has_its_own_mask(report_layer):
    ignore = np.broadcast_to(np.array([[[False] * 3], [[False, True, True]]]), (2, 3, 3))
    output, _ = report_layer(g((2, 3, 4)), keep=~ignore[:, None])
    near(output[1, 0], [0.311214, -0.516696, 0.423263, 0.158194], 1e-6)
    near(output[0, 0], [0.100731, 0.920312, -0.866514, 0.067734], 1e-6)
    if torch is not None:
        module = torch.nn.MultiheadAttention(4, 2, batch_first=True, dtype=torch.float64)
        module.load_state_dict({name: to_tensor(a) for name, a in torch_layout_params(4).items()})
        x = g((2, 3, 4))
        near(run_torch(module, x, x, x, attn_mask=to_torch_mha(~ignore[:, None], 2, 2))[0], output)
        tiled = np.tile(ignore, (2, 1, 1))
        wrong = run_torch(module, x, x, x, attn_mask=tiled)[0]
        near(np.abs(wrong - output).max(), 1.283092, 1e-6)


@reported("pytorch/pytorch#118972")
def test_causal_is_a_mask_not_a_hint(report_layer):
    x = g((1, 3, 4))
    near(report_layer(x, keep=causal_mask(3, 3))[0][0, 0], [0.173517, 0.946186, -0.966313, 0.146051], 1e-6)
    near(report_layer(x)[0][0, 0], [0.100731, 0.920312, -0.866514, 0.067734], 1e-6)
    near(report_layer(x, keep=np.ones((3, 3), bool))[0], report_layer(x)[0])


@reported("pytorch/pytorch#103082")
def test_causal_is_aligned_lower_right():
    q, k, v = np.array([[[[1.0, 0.0]]]]), g((1, 1, 4, 2)), np.array([1.0, 2, 4, 8]).reshape(1, 1, 4, 1)
    near(scaled_dot_product_attention(q, k, v, causal_mask(1, 4))[0].ravel(), [2.801998], 1e-6)
    q, k, v = g((1, 1, 2, 2), 0.5, 0.2), g((1, 1, 5, 2)), 2.0 ** np.arange(5).reshape(1, 1, 5, 1)
    near(scaled_dot_product_attention(q, k, v, causal_mask(2, 5))[0].ravel(), [2.786643, 4.006895], 1e-6)
    upper_left = np.tril(np.ones((2, 5), bool))
    near(scaled_dot_product_attention(q, k, v, upper_left)[0].ravel(), [1, 1.584771], 1e-6)


@reported("pytorch/pytorch#124464")
def test_two_calls_give_the_same():
    q = read_only(g((1, 1, 4, 2)))
    first, second = (scaled_dot_product_attention(q, q, q)[0] for _ in range(2))
    assert np.array_equal(first, second)
    near(first.ravel()[:4], [0.397803, 0.390268, 0.525268, 0.465253], 1e-6)


@reported("om-ai-lab/OmDet#19")
def test_the_batch_comes_first(report_layer):
    x = g((2, 3, 4))
    output, weights = report_layer(x)
    assert weights.shape == (2, 2, 3, 3)
    changed = x.copy()
    changed[1] += 1
    assert np.array_equal(report_layer(changed)[0][0], output[0])
    assert np.abs(report_layer(changed)[0][1] - output[1]).max() > 0.1


@reported("pytorch/pytorch#136816")
@pytest.mark.parametrize("dtype", [float, np.int64])
def test_a_mask_of_0_and_1_is_refused(report_layer, dtype):
    x, mask = g((1, 3, 4)), np.array([[1, 1, 0]], dtype)
    wanted = says("keep: expected a boolean mask", "holding only 0 and 1", "keep.astype(bool)")
    with pytest.raises(ValueError, match=wanted):
        report_layer(x, keep=mask)
    with pytest.raises(ValueError, match=wanted):
        scaled_dot_product_attention(x, x, x, mask)
    near(report_layer(x, keep=mask.astype(bool))[1][0, 0, 0], [0.974839, 0.025161, 0], 1e-6)


@reported("pytorch/pytorch#177482")
def test_a_mask_for_each_sample_needs_an_axis_for_the_heads():
    q, k, v = g((2, 2, 3, 2)), g((2, 2, 3, 2), 0.9, 0.1), g((2, 2, 3, 1), 0.4, 0.2)
    keep = np.ones((2, 3, 3), bool)
    keep[1, :, 1:] = False
    wanted = says("keep: expected 2 axes (L, S) or 4 axes", "got 3 axes (2, 3, 3)", "keep[:, None]")
    with pytest.raises(ValueError, match=wanted):
        scaled_dot_product_attention(q, k, v, keep)
    right = scaled_dot_product_attention(q, k, v, keep[:, None])[0]
    near(right[1, 0, :, 0], [0.515501] * 3, 1e-6)
    near(right[0, 1, :, 0], [0.916641, 0.934146, 0.946804], 1e-6)
    on_heads = scaled_dot_product_attention(q, k, v, keep[None])[0]
    near(on_heads[1, 0, :, 0], [0.022605, 0.345116, 0.320078], 1e-6)
    near(on_heads[0, 1, :, 0], [0.985450] * 3, 1e-6)


QUERY, KEY = np.array([[1.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 1.0]])
VALUE, KEEP = np.array([[5.0, 6.0], [7.0, 8.0]]), np.array([[True, False]])


@reported("pytorch/pytorch#101967")
@pytest.mark.parametrize("rubbish", [np.nan, np.inf, -np.inf, 1e10])
def test_a_forbidden_key_counts_for_nothing(rubbish):
    key = KEY.copy()
    key[1, 0] = rubbish
    near(scaled_dot_product_attention(QUERY, key, VALUE, KEEP)[0], [[5, 6]])


@reported("pytorch/pytorch#101967")
@pytest.mark.parametrize("rubbish", [np.nan, np.inf, -np.inf, 1e300])
def test_a_forbidden_value_counts_for_nothing(rubbish):
    value = VALUE.copy()
    value[1, 0] = rubbish
    with np.errstate(invalid="ignore"):
        near(scaled_dot_product_attention(QUERY, KEY, value, KEEP)[0], [[5, 6]])


@reported("pytorch/pytorch#101967")
def test_a_forbidden_value_does_not_warn():
    value = np.array([[5.0, 6.0], [np.inf, 8.0]])
    near(scaled_dot_product_attention(QUERY, KEY, value, KEEP)[0], [[5, 6]])


@reported("pytorch/pytorch#101967")
def test_a_huge_forbidden_key_does_not_warn():
    key = np.array([[1.0, 0.0], [6e4, 6e4]], np.float16)
    query = np.array([[2.0, 2.0]], np.float16)
    output, _ = scaled_dot_product_attention(query, key, VALUE.astype(np.float16), KEEP)
    near(output, [[5, 6]])


@reported("pytorch/pytorch#101967")
def test_a_nan_that_may_be_attended_to_is_never_hidden():
    value = np.array([[5.0, 6.0], [np.nan, 8.0]])
    output, weights = scaled_dot_product_attention(QUERY, KEY, value)
    assert np.isnan(output[0, 0])
    near(output[0, 1], weights[0] @ [6, 8])
    output, _ = scaled_dot_product_attention(QUERY[[0, 0]], KEY, value, np.tri(2, 2, dtype=bool))
    near(output[0], [5, 6])
    assert np.isnan(output[1, 0])


@reported("karpathy/nanochat#264")
def test_rotary_scores_depend_on_the_distance_alone():
    x = np.random.default_rng(0).standard_normal((2, 5, 4))
    here, there = (
        scaled_dot_product_attention(rotary(x, at), rotary(x, at), x, causal_mask(5, 5))[0]
        for at in (np.arange(5), np.arange(5) + 7)
    )
    near(here, there)
    assert np.abs(here - scaled_dot_product_attention(x, x, x, causal_mask(5, 5))[0]).max() > 0.01


@reported("hyprstream/hyprstream#1521")
def test_a_chunk_sees_the_cache_and_itself():
    q, k, v = g((1, 1, 5, 2)), g((1, 1, 5, 2), 0.9, 0.1), 2.0 ** np.arange(5).reshape(1, 1, 5, 1)
    chunk = scaled_dot_product_attention(q[:, :, 3:], k, v, causal_mask(2, 5))[0]
    near(chunk.ravel(), [4.688096, 6.239676], 1e-6)
    whole = scaled_dot_product_attention(q, k, v, causal_mask(5, 5))[0]
    near(chunk, whole[:, :, 3:])


@reported("hyprstream/hyprstream#1521")
@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
def test_chunked_equals_full(chunk):
    rng = np.random.default_rng(3)
    layer, x = make_layer(rng, 6, 3), rng.standard_normal((2, 7, 6))
    whole, _ = layer(x, keep=causal_mask(7, 7))
    for start in range(0, 7, chunk):
        seen = min(start + chunk, 7)
        part, _ = layer(x[:, start:seen], x[:, :seen], keep=causal_mask(seen - start, seen))
        near(part, whole[:, start:seen])


@reported("jsbaan/transformer-from-scratch#6")
def test_no_token_gets_heads_of_another():
    """With each token attending to itself alone, and unit matrices, the layer changes nothing."""
    eye = np.eye(6)
    layer = MultiHeadAttention(eye, eye, eye, eye, 3)
    x = g((2, 5, 6))
    near(layer(x, keep=np.eye(5, dtype=bool))[0], x)


@reported("nerminnuraydogan/vision-transformer#1")
def test_weights_are_shares_of_the_keys():
    query, key, value = g((2, 3, 2)), g((2, 5, 2), 0.9), g((2, 5, 4), 0.4)
    _, weights = scaled_dot_product_attention(query, key, value)
    near(weights.sum(-1), np.ones((2, 3)))
    assert np.abs(weights.sum(-2) - 1).min() > 1e-3


@reported("Graylab/DL4Proteins-notebooks#12")
def test_the_scale_is_of_the_head_not_of_the_model():
    q, k = np.array([[3.0, 0.0]]), np.array([[3.0, 0.0], [0.0, 3.0]])
    near(scaled_dot_product_attention(q, k, k)[1], [[0.998280, 0.001720]], 1e-6)
    eye = np.eye(8)
    layer = MultiHeadAttention(eye, eye, eye, eye, num_heads=4)
    near(layer(np.tile(q, 4), np.tile(k, (1, 4)))[1], [[[0.998280, 0.001720]]] * 4, 1e-6)
    near(softmax((q / 2**0.5) @ k.T), scaled_dot_product_attention(q, k, k)[1], 1e-15)


@reported("skyzh/tiny-llm#41")
@pytest.mark.torch
def test_a_torch_weight_is_out_in():
    module = torch.nn.MultiheadAttention(2, 1, batch_first=True, dtype=torch.float64)
    stored = np.arange(1.0, 13.0).reshape(6, 2)
    with torch.no_grad():
        module.in_proj_weight.copy_(to_tensor(stored))
    layer = MultiHeadAttention.from_torch(module)
    near(np.eye(2) @ layer.w_q, [[1, 3], [2, 4]])
    near(layer.w_k, [[5, 7], [6, 8]])
    near(layer.w_v, [[9, 11], [10, 12]])
