"""The pretrained encoder in PyTorch gives what the one in NumPy gives."""

import numpy as np
import pytest

from mha_lesson.data import load_minilm_layers
from mha_lesson.models.minilm import MiniLMEncoder


@pytest.mark.torch
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-10)])
def test_the_torch_model_gives_the_same(dtype, tolerance):
    import torch

    encoder = MiniLMEncoder(dtype)
    model = encoder.to_torch().eval()
    for sentence in load_minilm_layers().references:
        found = encoder(sentence)
        with torch.no_grad():
            hidden, weights = model(torch.tensor(encoder.entrance.ids(found.tokens)))
        assert hidden.numpy().dtype == weights.numpy().dtype == dtype
        np.testing.assert_allclose(hidden.numpy(), found.hidden, rtol=0, atol=tolerance)
        np.testing.assert_allclose(weights.numpy(), found.weights, rtol=0, atol=tolerance)


@pytest.mark.torch
def test_the_torch_model_takes_padded_batches_and_trains(encoder, encoding):
    import torch

    model = encoder.to_torch()
    short = encoder("Birds sing at dawn.")
    sequences = [torch.tensor(encoder.entrance.ids(e.tokens)) for e in (encoding, short)]
    ids = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)  # (B, L), 0 is [PAD]
    keep = (ids != 0)[:, None, None, :]  # (B, 1, 1, L)
    hidden, weights = model(ids, keep)
    assert hidden.shape == (7, 2, 14, 384)
    assert weights.shape == (6, 2, 12, 14, 14)
    for place, one in enumerate((encoding, short)):
        L = len(one.tokens)
        np.testing.assert_allclose(hidden[:, place, :L].detach(), one.hidden, rtol=0, atol=1e-10)
        np.testing.assert_allclose(weights[:, place, :, :L, :L].detach(), one.weights, rtol=0, atol=1e-10)
    assert (weights[:, 1, :, :, len(short.tokens) :] == 0).all()
    hidden[-1, 0].sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    # The two models share no memory.
    with torch.no_grad():
        model.layers[0].linear_1.weight.zero_()
    assert encoder.layers[0].w_1.any()
    with pytest.raises(ValueError, match="only 32 position vectors"):
        model(torch.zeros(1, 33, dtype=torch.long))
