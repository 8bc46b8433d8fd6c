"""Attention layers for exercise 08.works: right ones, and wrong ones with one edit each. Needs torch.

Each has a `fault`: the name under which lesson_08.py describes it, "" for a right one.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

from mha_lesson.pytorch.heads import merge_heads, share_heads, split_heads
from mha_lesson.pytorch.layer import MultiHeadAttention
from mha_lesson.pytorch.masks import clear_padding, joint_mask, open_empty_rows


class Fused(MultiHeadAttention):
    """The course's own layer, right."""

    fault = ""


class StepByStep(MultiHeadAttention):
    """The layer without SDPA, right: one method a step, so that a wrong layer overrides one."""

    fault = ""

    def _attend(self, query, key, value, keep, causal, need_weights):
        mask = self.mask(keep, causal, query.shape[-2], key.shape[-2])
        if mask is not None:
            key, value = clear_padding(key, mask), clear_padding(value, mask)
        q, k, v = self.project(query, key, value)  # (B, H, L or S, D)
        weights = self.weigh(self.scale(q @ k.mT), mask)  # (B, H, L, S)
        output = self.out_proj(self.merge(self.drop(weights) @ v))  # (B, L, E)
        return output, self.report(weights) if need_weights else None

    def project(self, query, key, value):
        q = split_heads(self.q_proj(query), self.num_heads)
        k = split_heads(self.k_proj(key), self.num_kv_heads)
        v = split_heads(self.v_proj(value), self.num_kv_heads)
        return q, share_heads(k, self.num_heads), share_heads(v, self.num_heads)

    def mask(self, keep, causal, L, S):
        return joint_mask(keep, causal, L, S)

    def scale(self, scores):
        return scores / math.sqrt(self.d_model // self.num_heads)

    def weigh(self, scores, mask):
        if mask is None:
            return scores.softmax(dim=-1)
        mask, empty = open_empty_rows(mask)
        return scores.masked_fill(~mask, -math.inf).softmax(dim=-1).masked_fill(empty, 0)

    def drop(self, weights):
        return F.dropout(weights, self.dropout, self.training)

    def merge(self, context):
        return merge_heads(context)

    def report(self, weights):
        return weights


class PyTorchs(MultiHeadAttention):
    """What nn.MultiheadAttention calls inside, behind this course's way of calling. Right."""

    fault = ""

    def _attend(self, query, key, value, keep, causal, need_weights):
        L, S, E = query.shape[-2], key.shape[-2], self.d_model
        mask = joint_mask(keep, causal, L, S)
        mask = torch.ones(L, S, dtype=torch.bool) if mask is None else mask
        mask, empty = open_empty_rows(mask.expand(len(query), self.num_heads, L, S))
        if keep is not None:
            key, value = clear_padding(key, keep), clear_padding(value, keep)
        context, weights = F.multi_head_attention_forward(
            *(x.transpose(0, 1) for x in (query, key, value)), E, self.num_heads, None,
            torch.cat([self.q_proj.bias, self.k_proj.bias, self.v_proj.bias]), None, None, False,
            self.dropout, torch.eye(E).to(query), torch.zeros(E).to(query), training=self.training,
            attn_mask=~mask.flatten(0, 1), average_attn_weights=False, use_separate_proj_weight=True,
            q_proj_weight=self.q_proj.weight, k_proj_weight=self.k_proj.weight, v_proj_weight=self.v_proj.weight,
        )  # fmt: skip
        found = split_heads(context.transpose(0, 1), self.num_heads).masked_fill(empty, 0)
        return self.out_proj(merge_heads(found)), weights.masked_fill(empty, 0) if need_weights else None


# ------------------------------------------------------------------------------ one edit each


class NoScale(StepByStep):
    fault = "no_scale"

    def scale(self, scores):
        return scores


class SoftmaxOverQueries(StepByStep):
    fault = "softmax_over_queries"

    def weigh(self, scores, mask):
        return super().weigh(scores.mT, None if mask is None else mask.expand(scores.shape).mT).mT


class KeepReversed(StepByStep):
    fault = "keep_reversed"

    def mask(self, keep, causal, L, S):
        return super().mask(None if keep is None else ~keep, causal, L, S)


class CausalUpperLeft(StepByStep):
    fault = "causal_upper_left"

    def mask(self, keep, causal, L, S):
        triangle = torch.ones(L, S, dtype=torch.bool).tril()
        if not causal:
            return keep
        return triangle if keep is None else keep & triangle


class MergedByReshape(StepByStep):
    fault = "merged_by_reshape"

    def merge(self, context):
        return context.reshape(context.shape[0], context.shape[2], -1)


class WeightsAveraged(StepByStep):
    fault = "weights_averaged"

    def report(self, weights):
        return weights.mean(dim=1)


class DropoutInEvaluation(StepByStep):
    fault = "dropout_in_evaluation"

    def drop(self, weights):
        return F.dropout(weights, self.dropout)


class ValueIgnored(StepByStep):
    fault = "value_ignored"

    def project(self, query, key, value):
        return super().project(query, key, key)


class NaNInEmptyRows(StepByStep):
    fault = "nan_in_empty_rows"

    def weigh(self, scores, mask):
        return (scores if mask is None else scores.masked_fill(~mask, -math.inf)).softmax(dim=-1)


class WeightsChangeTheOutput(StepByStep):
    fault = "weights_change_the_output"

    def _attend(self, query, key, value, keep, causal, need_weights):
        return super()._attend(query, key, value, keep, causal and not need_weights, need_weights)


# ------------------------------------------------------------------------------ made


def right_layers() -> dict[str, nn.Module]:
    with torch.random.fork_rng(devices=[]):  # making a layer draws numbers: the notebook's stay as they were
        return {
            "one_head": _filled(Fused(6, 1)),
            "two_heads": _filled(Fused(8, 2), size=1.3),
            "training_mode": _filled(Fused(12, 4, dropout=0.5)),
            "shared_heads": _filled(Fused(8, 4, 1)),
            "step_by_step": _filled(StepByStep(10, 5)),
            "pytorchs": _filled(PyTorchs(6, 3)),
        }


def wrong_layers() -> dict[str, nn.Module]:
    with torch.random.fork_rng(devices=[]):
        made = (
            NoScale(8, 2), SoftmaxOverQueries(12, 4), KeepReversed(8, 2), CausalUpperLeft(12, 4),
            MergedByReshape(8, 2), WeightsAveraged(12, 4), DropoutInEvaluation(8, 2, dropout=0.5),
            ValueIgnored(12, 4), NaNInEmptyRows(8, 2), WeightsChangeTheOutput(12, 4),
        )  # fmt: skip
        return {layer.fault: _filled(layer) for layer in made}


@torch.no_grad()
def _filled(layer: nn.Module, size: float = 1.0) -> nn.Module:
    """With fixed random numbers everywhere: a bias of 0 would hide mistakes."""
    draw = torch.Generator().manual_seed(layer.d_model)
    for parameter in layer.parameters():
        numbers = torch.randn(parameter.shape, generator=draw)
        parameter.copy_(numbers * size / math.sqrt(layer.d_model) if parameter.dim() == 2 else numbers / 3)
    return layer
