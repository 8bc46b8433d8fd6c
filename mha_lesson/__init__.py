"""A course on multi-head attention: the code behind the notebooks.

Read the package as a part of the course, in this order:

1. `steps/`       one file an idea: embeddings, projections, scores, masks, softmax, heads, and on
2. `attention.py` the steps put together; `blocked.py`, the same without a large array
3. `pytorch/`     the same layer in PyTorch, on a core of your choice: fused, tiles, a window, a kernel, a ring
4. `models/`      a trained transformer that runs on it
5. `exercises/`   what `check("03.scores", ...)` says: `lesson_03/scores.py`; how it knows: `engine/`
6. `show/`        printing, figures and widgets
7. `course/`      the command line, `python3 -m mha_lesson`

Importing `mha_lesson` alone loads nothing heavy. Import what you need:

    from mha_lesson.attention import MultiHeadAttention
    from mha_lesson.exercises import check, hint, solution
"""

__version__ = "0.2.0"
