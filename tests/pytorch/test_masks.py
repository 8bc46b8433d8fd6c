"""Masks in PyTorch: those of the NumPy half, and its words."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from mha_lesson.pytorch.masks import causal_mask, check_keep  # noqa: E402
from tests.pytorch.helpers import lower_right  # noqa: E402


@pytest.mark.parametrize("L", range(6))
@pytest.mark.parametrize("S", range(6))
def test_the_causal_mask_is_the_numpy_one(L, S):
    from mha_lesson.steps.masks import causal_mask as numpy_causal_mask

    np.testing.assert_array_equal(causal_mask(L, S).numpy(), numpy_causal_mask(L, S))
    np.testing.assert_array_equal(causal_mask(L, S).numpy(), lower_right(L, S).reshape(L, S))


def test_the_same_words_as_the_numpy_half():
    """One who has met an error in lesson 04 knows it again here."""
    from mha_lesson.steps.masks import check_keep as numpy_check_keep

    for keep in (np.ones((3, 4), bool), np.ones((2, 3, 5), bool), np.ones((3, 5)), np.where(np.eye(3, 5), 0, -np.inf)):
        messages = []
        for check, mask in ((numpy_check_keep, keep), (check_keep, torch.from_numpy(keep))):
            with pytest.raises(ValueError) as caught:
                check(mask, (2, 2, 3, 5))
            messages.append(str(caught.value).replace("torch.", "").replace("keep.astype(bool)", "keep.bool()"))
        assert messages[0] == messages[1]
