"""The small models that the lessons load or train. One model a file; nothing loads before you ask.

    minilm.py         a real pretrained transformer in NumPy, six layers of twelve heads
    minilm_torch.py   the same model in PyTorch
"""
