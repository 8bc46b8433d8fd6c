"""What `faults` found unguarded in the small models: one test for each such fault."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from mha_lesson.models.translation import Translator  # noqa: E402


@pytest.mark.torch
def test_encoder_and_decoder_have_positions_of_their_own():
    """The two tables have the same shape: to read the wrong one changes no shape, and trains, too."""
    torch.manual_seed(0)
    model = Translator("012abc", "012xyz", d_model=8, num_heads=2).double().eval()
    source, target = torch.tensor([[3, 4, 5, 3]]), torch.tensor([[1, 3, 4]])
    with torch.no_grad():
        memory = model.encode(source)
        logits = model.decode(target, memory, source)
        model.source_positions.weight.mul_(2)
        assert torch.equal(model.decode(target, memory, source), logits)
        assert not torch.allclose(model.encode(source), memory)

        memory = model.encode(source)
        logits = model.decode(target, memory, source)
        model.target_positions.weight.mul_(2)
        assert torch.equal(model.encode(source), memory)
        assert not torch.allclose(model.decode(target, memory, source), logits)


def test_ctrl_c_says_how_to_go_on(monkeypatch, capsys):
    from mha_lesson.models import command

    def stopped(options):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "train_one", stopped)
    assert command.main(["speech"]) == 130
    assert "goes on from the last hundred steps" in capsys.readouterr().err
