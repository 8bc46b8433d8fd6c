"""The spine of the course: one file an idea, plain functions on NumPy arrays.

Names and shapes are the same in every file:

    B        batch, the number of sequences worked on at once
    L        number of queries, the tokens that look
    S        number of keys, the tokens that are looked at (S = L in self-attention)
    E        model width, `d_model`
    H        number of heads, `num_heads`
    D        head width, `d_head` = E / H
    keep     boolean mask, True = this query may attend to this key

`...` in a shape stands for any leading axes, for example (B, H).
Weight matrices are (in, out) and are applied as `x @ w`.
"""
