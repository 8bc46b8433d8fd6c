"""What `faults` found unguarded beside the layer: one test for each such fault."""

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from mha_lesson.pytorch import MultiHeadAttention, layer_checks  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("num_kv_heads", [2, 3])
def test_layers_with_some_shared_heads_are_trusted(num_kv_heads):
    """With one key/value head, 0 0 0 0 and 0 0 0 0 in another order are the same: here they are not."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(12, 6, num_kv_heads)
    assert [check.__name__ for check in layer_checks.CHECKS if not check(layer)] == []
    assert layer_checks.works(layer)


def test_a_layer_that_gives_nan_passes_no_check_of_its_output():
    """Twice NaN is not twice the same output."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(8, 2)
    torch.nn.init.constant_(layer.v_proj.bias, math.nan)
    assert [check.__name__ for check in layer_checks.CHECKS if check(layer)] == ["weights_are_shares"]
    assert not layer_checks.works(layer)
