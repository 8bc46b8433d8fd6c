"""Public reports of faults that the tests keep out of the course: @reported("owner/repository#number").

`python3 -m pytest -m reported` runs these tests alone. tests/test_reports.py holds list and tests together.
"""

import pytest

# What went wrong there, in one sentence of our own.
REPORTS = {
    "Graylab/DL4Proteins-notebooks#12": "Scores were divided by the root of the model's width, not of a head's.",
    "NVIDIA/apex#1105": "A fill of -1e10 for hidden scores does not fit into half precision.",
    "SamLynnEvans/Transformer#25": "Sine and cosine of one pair of channels had two frequencies, and both exponents "
    "were doubled.",
    "getalp/Flaubert#45": "Dividing queries before the product was taken for a fault, and is the same.",
    "hyprstream/hyprstream#1521": "With a cache a chunk of several new tokens saw next to nothing of what was before.",
    "jsbaan/transformer-from-scratch#6": "Heads were joined by a reshape alone, which mixes tokens.",
    "karpathy/nanochat#264": "Rotary positions pair channels as halves in one model and as neighbours in another.",
    "line/lighthouse#77": "A mask for each sample was tiled where all heads of a sample must stand together.",
    "nerminnuraydogan/vision-transformer#1": "Softmax ran over the wrong axis.",
    "om-ai-lab/OmDet#19": "The batch came first, nn.MultiheadAttention took it for the tokens, and samples mixed.",
    "onnx/onnx#7274": "Key/value heads were tiled over the query heads, where neighbours should share one.",
    "pytorch/pytorch#34537": "nn.MultiheadAttention gave the mean of the weights over heads and nothing else.",
    "pytorch/pytorch#41508": "A query that may see nothing makes all gradients of nn.MultiheadAttention NaN.",
    "pytorch/pytorch#42929": "The weights that come back while training are those after dropout, whose sum is not 1.",
    "pytorch/pytorch#101967": "A NaN in a place that is masked out still makes the output NaN.",
    "pytorch/pytorch#103082": "With fewer queries than keys, is_causal puts its triangle in the upper left corner.",
    "pytorch/pytorch#118972": "is_causal of nn.MultiheadAttention alone is refused: it is a hint beside a mask.",
    "pytorch/pytorch#124464": "scaled_dot_product_attention drops in evaluation, too, if it is given dropout_p.",
    "pytorch/pytorch#136816": "A float mask of 0 and 1 is added to the scores, which hides nothing.",
    "pytorch/pytorch#160064": "One head that may see nothing makes the output of all heads NaN.",
    "pytorch/pytorch#177482": "A mask (B, L, S) falls on the axis of the heads, without a word if B = H.",
    "rasbt/LLMs-from-scratch#1061": "A mask in which True hides was given to a function in which True shows.",
    "skyzh/tiny-llm#41": "A text had matrices as (in, out), its code as (out, in).",
}


def link(reference: str) -> str:
    """The address of a report; GitHub leads on from there if it is a pull request."""
    repository, number = reference.split("#")
    return f"https://github.com/{repository}/issues/{number}"


def reported(reference: str):
    """Marks a test of what a public report is about: @reported("pytorch/pytorch#103082")."""
    if reference not in REPORTS:
        raise ValueError(f"reported: expected a report listed in tests/reports.py, got {reference!r}. Add it there.")
    return pytest.mark.reported(reference, link(reference))
