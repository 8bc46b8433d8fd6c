"""The steps of lessons 07, 09 and 10: values worked by hand, and plain loops beside them."""

import math

import numpy as np
import pytest

from mha_lesson.exercises import REGISTRY, adopt, check, solution
from mha_lesson.exercises.engine.compare import difference
from mha_lesson.steps.encoder_decoder import cross_attention, cross_cost, encoder_decoder_masks, greedy_decode
from mha_lesson.steps.head_count import cheapest_as_good, layer_parameters, sweep_heads
from mha_lesson.steps.inspection import ablate_heads, find_head, head_distances, induction_scores
from tests.reference import g, loop_softmax, near, read_only, says

# ---------------------------------------------------------------------------- 07 cross-attention


def test_cross_attention_by_hand():
    """Two keys, scores 0 and log(3) * sqrt(E) / sqrt(E): shares 1/4 and 3/4."""
    xd = read_only(np.array([[math.log(3) * 2, 0, 0, 0]]))
    xe = read_only(np.array([[0.0, 8, 4, 0], [1, 0, 4, 8]]))
    near(cross_attention(xd, xe), [[0.75, 2, 4, 6]])


def test_cross_attention_of_the_collected_case():
    xd = np.sin(0.7 * np.arange(6) + 0.3).reshape(2, 3)
    xe = 2 * np.sin(0.9 * np.arange(12) + 0.1).reshape(4, 3)
    np.testing.assert_allclose(cross_attention(xd, xe)[0], [0.012814, 1.203753, 1.483716], atol=1e-6)


@pytest.mark.parametrize("L, S, E", [(2, 5, 3), (7, 3, 2), (1, 1, 5)])
def test_cross_attention_against_loops(L, S, E):
    xd, xe = g((L, E)), g((S, E))[:, ::-1].copy()
    expected = []
    for q in xd.tolist():
        shares = loop_softmax([sum(a * b for a, b in zip(q, k, strict=True)) / E**0.5 for k in xe.tolist()], [True] * S)
        expected.append([sum(w * k[e] for w, k in zip(shares, xe.tolist(), strict=True)) for e in range(E)])
    near(cross_attention(xd, xe), expected)


def test_cross_attention_reads_the_encoder_in_any_order():
    xd, xe = g((3, 5)), g((7, 5))
    near(cross_attention(xd, xe[::-1]), cross_attention(xd, xe))
    assert cross_attention(xd.astype(np.float32), xe.astype(np.float32)).dtype == np.float32


def test_each_attention_gets_its_own_mask():
    encoder, decoder, cross = encoder_decoder_masks([1, 3], 2, 3)
    assert encoder.tolist() == [[[[True, False, False]]], [[[True, True, True]]]]
    assert decoder.tolist() == [[[[True, False], [True, True]]]]
    assert cross.tolist() == encoder.tolist()
    assert [m.shape for m in (encoder, decoder, cross)] == [(2, 1, 1, 3), (1, 1, 2, 2), (2, 1, 1, 3)]
    assert {m.dtype for m in (encoder, decoder, cross)} == {np.dtype(bool)}


def writes(*answer, calls=None):
    """A step whose row i favours answer[i]."""

    def step(prefix):
        if calls is not None:
            calls.append(list(prefix))
        return np.eye(9)[[answer[min(i, len(answer) - 1)] for i in range(len(prefix))]]

    return step


def test_greedy_decoding_by_hand():
    assert greedy_decode(writes(3, 1, 4, 2), 0, 2, 6) == [3, 1, 4]
    assert greedy_decode(writes(3, 1, 4, 2), 0, 2, 3) == [3, 1, 4]
    assert greedy_decode(writes(3, 1, 4, 2), 0, 2, 2) == [3, 1]
    assert greedy_decode(writes(2), 0, 2, 5) == []
    assert greedy_decode(writes(5), 5, 2, 4) == [5, 5, 5, 5], "start may come up as a word"
    assert greedy_decode(writes(5), 0, 2, 0) == []


def test_greedy_decoding_hands_over_all_tokens_and_stops_asking():
    calls = []
    out = greedy_decode(writes(3, 1, 2, calls=calls), 7, 2, 9)
    assert calls == [[7], [7, 3], [7, 3, 1]]
    assert all(type(i) is int for i in out)


def test_the_cost_by_hand():
    """L 2, S 3, E 5: Q 50, K 75, V 75, scores 30, mix 30, output 50."""
    assert cross_cost(2, 3, 5) == 310
    assert cross_cost(1, 1, 1) == 6
    assert cross_cost(100, 100, 1) == 4 * 100 + 2 * 100 * 100


def test_the_cost_counts_the_products_of_the_layer():
    L, S, E = 7, 11, 3
    products = [(L, E, E), (S, E, E), (S, E, E), (L, E, S), (L, S, E), (L, E, E)]
    assert cross_cost(L, S, E) == sum(np.prod(shape) for shape in products)


# ---------------------------------------------------------------------------- 09 inspection


def test_a_head_switched_off_by_hand():
    heads = read_only(np.array([[[1.0], [2]], [[10], [20]]]))
    w_o, b_o = read_only(np.array([[1.0, 2], [3, 5]])), read_only(np.array([100.0, 200]))
    near(ablate_heads(heads, w_o, b_o, [0]), [[130, 250], [160, 300]])
    near(ablate_heads(heads, w_o, b_o, {1}), [[101, 202], [102, 204]])
    near(ablate_heads(heads, w_o, b_o, []), [[131, 252], [162, 304]])
    near(ablate_heads(heads, w_o, b_o, {0, 1}), [[100, 200], [100, 200]])


def test_ablation_is_the_sum_over_the_heads_that_are_left():
    heads, w_o, b_o = g((5, 7, 3)), g((15, 11)), g((11,))
    expected = b_o + sum(heads[h] @ w_o[3 * h : 3 * h + 3] for h in (0, 2, 4))
    near(ablate_heads(heads, w_o, b_o, [3, 1]), expected)


def test_a_head_that_is_not_there_is_refused():
    heads, w_o, b_o = g((2, 3, 5)), g((10, 7)), g((7,))
    for off in ([2], [-1]):
        with pytest.raises(ValueError, match=says("off: expected head numbers from 0 to 1, got", str(off))):
            ablate_heads(heads, w_o, b_o, off)


def test_distances_by_hand():
    """[1, 0] and [0, 1] are 1 apart; [1, 0] and [1/2, 1/2]: middle [3/4, 1/4]."""
    weights = read_only(np.array([[[1.0, 0], [1, 0]], [[0, 1], [0.5, 0.5]]]))
    half = math.sqrt((math.log2(4 / 3) + 0.5 * math.log2(2 / 3) + 0.5 * math.log2(2)) / 2)
    near(head_distances(weights), [[0, (1 + half) / 2], [(1 + half) / 2, 0]])


def test_distances_against_loops():
    weights = np.exp(g((3, 5, 7)))
    weights[:, :, 5:] = 0
    weights[1, :, 0] = 0
    weights /= weights.sum(-1, keepdims=True)
    expected = np.zeros((3, 3))
    for a in range(3):
        for b in range(3):
            for p, q in zip(weights[a].tolist(), weights[b].tolist(), strict=True):
                bits = 0.0
                for x, y in zip(p, q, strict=True):
                    bits += x * math.log2(2 * x / (x + y)) / 2 if x else 0
                    bits += y * math.log2(2 * y / (x + y)) / 2 if y else 0
                expected[a, b] += math.sqrt(max(bits, 0)) / 5
    found = head_distances(weights)
    near(found, expected)
    near(found, found.T)
    assert not np.diag(found).any() and (found <= 1).all()


def test_distances_are_quiet_about_zeros_and_empty_rows():
    weights = np.zeros((2, 3, 5))
    with np.errstate(all="raise"):
        near(head_distances(weights), np.zeros((2, 2)))
    assert head_distances(weights.astype(np.float32)).dtype == np.float32


def test_the_head_is_found_from_query_to_key():
    weights = np.zeros((2, 3, 5, 7))
    weights[1, 2, 4, 0], weights[0, 1, 0, 4], weights[0, 2, 4, 1] = 0.4, 0.9, 0.8
    assert find_head(weights, 4, 0) == (1, 2)
    assert find_head(weights, 0, 4) == (0, 1)
    assert find_head(weights, 4, 1) == (0, 2)
    assert [type(i) for i in find_head(weights, 4, 0)] == [int, int]


def test_no_mean_and_no_other_word_hides_the_head():
    weights = np.zeros((2, 3, 5, 7))
    weights[:, :, 4, 0] = [[0.0, 0.8, 0.7], [0.9, 0.2, 0.3]]
    weights[0, 2, 3, 0] = 0.95
    assert find_head(weights, 4, 0) == (1, 0)


def test_induction_by_hand():
    """a b a b: position 2 looks after the first a (at 1), position 3 after the first b (at 2)."""
    weights = np.zeros((2, 4, 4))
    weights[0, 2, 1], weights[0, 3, 2] = 0.75, 0.25
    weights[1, 2, 0], weights[1, 3, 1], weights[1, 1, 1] = 1, 1, 1
    near(induction_scores(weights, [7, 8, 7, 8]), [0.5, 0])


def test_induction_adds_up_over_copies_and_counts_doubled_tokens():
    weights = np.zeros((1, 4, 4))
    weights[0, 1, 1], weights[0, 2, 1], weights[0, 2, 2] = 0.5, 0.25, 0.5
    near(induction_scores(weights, [3, 3, 3, 4]), [(0.5 + 0.75) / 2])


def test_induction_against_the_definition():
    weights, tokens = g((3, 7, 7)), [2, 5, 2, 2, 5, 0, 2]
    for head, score in zip(weights, induction_scores(weights, tokens), strict=True):
        sums = []
        for i in range(7):
            if tokens[i] in tokens[:i]:
                sums.append(sum(head[i, j] for j in range(1, i + 1) if tokens[j - 1] == tokens[i]))
        near(score, sum(sums) / len(sums))


def test_without_a_repeat_the_induction_score_is_zero():
    none = induction_scores(g((3, 5, 5)).astype(np.float32), [1, 2, 3, 4, 5])
    assert none.tolist() == [0, 0, 0] and none.dtype == np.float32


# ---------------------------------------------------------------------------- 10 choice


def test_parameters_by_hand():
    """Width 6, 3 heads of width 2: Q 42, O 42; one head of keys and values: 2 * 14."""
    assert layer_parameters(6, 3, 1) == 112
    assert layer_parameters(6, 3, 3) == 4 * 42
    assert layer_parameters(6, 1, 1) == layer_parameters(6, 6, 6) == 168
    assert layer_parameters(512, 8, 8) == 1_050_624


def test_parameters_are_those_of_the_torch_layer():
    torch = pytest.importorskip("torch")
    for heads in (1, 5):
        layer = torch.nn.MultiheadAttention(35, heads)
        assert layer_parameters(35, heads, heads) == sum(p.numel() for p in layer.parameters())


def test_the_sweep_by_hand():
    scores = {(2, 5): 0.5, (2, 6): 0.9, (2, 9): 0.4, (1, 5): 0.25, (1, 6): 0.75, (1, 9): 0.5}
    table = sweep_heads(lambda heads, seed: scores[heads, seed], [2, 1], [5, 6, 9])
    near(table, [[2, 0.6, 0.4, 0.9], [1, 0.5, 0.25, 0.75]])
    assert table.dtype == float


def test_the_sweep_trains_each_once_with_the_same_seeds():
    calls = []
    sweep_heads(lambda heads, seed: calls.append((heads, seed)) or 1, [4, 8], [3, 7])
    assert calls == [(4, 3), (4, 7), (8, 3), (8, 7)]


NAMES = ["baseline", "1 head", "8 heads"]


def choose(*scores, costs=(1, 2, 3)):
    return cheapest_as_good(NAMES, np.array(scores), np.array(costs))


def test_the_cheapest_that_is_as_good_is_chosen():
    assert choose([0.5, 0.6], [0.7, 0.8], [0.75, 0.85]) == "1 head"
    assert choose([0.5, 0.8], [0.7, 0.8], [0.75, 0.85]) == "baseline", "the plain baseline wins"
    assert choose([0.5, 0.6], [0.6, 0.7], [0.75, 0.85]) == "8 heads"
    assert choose([0.5, 0.8], [0.7, 0.8], [0.75, 0.85], costs=(3, 1, 2)) == "1 head"
    assert choose([0.9, 0.8], [0.1, 0.2], [0.3, 0.4], costs=(3, 1, 2)) == "baseline"


def test_ranges_that_touch_overlap_and_the_mean_sets_the_bar():
    assert choose([0.5, 0.75], [0.7, 0.7], [0.75, 0.85]) == "baseline"
    assert choose([0.1, 0.99], [0.7, 0.7], [0.75, 0.85], costs=(3, 1, 2)) == "8 heads"


# ---------------------------------------------------------------------------- answers in many shapes


def test_masks_may_come_in_any_shape_that_broadcasts():
    def masks(source_lengths, L, S):
        padding = np.arange(S) < source_lengths[:, None]
        return [padding[:, None, None], np.tri(L, dtype=bool), np.repeat(padding[:, None, None], L, axis=2)]

    assert check("07.masks", masks).status == "correct"
    found = adopt("07.masks", masks)(np.array([1, 3]), 2, 3)
    assert [m.shape for m in found] == [(2, 1, 3, 3), (2, 1, 2, 2), (2, 1, 2, 3)]


@pytest.mark.parametrize(
    "answer, said",
    [
        (lambda source_lengths, L, S: np.True_, "expected three masks, got a value of type"),
        (lambda source_lengths, L, S: (np.True_, None), "expected three masks (encoder, decoder, cross), got 2"),
        (lambda source_lengths, L, S: ("a", None, None), "no array of True and False"),
    ],
)
def test_what_is_no_mask_is_said(answer, said):
    result = check("07.masks", answer)
    assert result.mistake == "wrong_type" and said in result.message


def test_numbers_for_masks_are_told():
    def masks(source_lengths, L, S):
        return tuple(m.astype(float) for m in encoder_decoder_masks(source_lengths, L, S))

    result = check("07.masks", masks)
    assert result.mistake == "wrong_dtype" and "result 1 of 3" in result.message


def test_decoded_ids_are_read_as_whole_numbers():
    def decode(step, start, stop, longest):
        return np.array(greedy_decode(step, start, stop, longest), dtype=float)

    def half(step, start, stop, longest):
        return decode(step, start, stop, longest) + 0.5

    def word(step, start, stop, longest):
        return "abc"

    assert check("07.decode", decode).status == "correct"
    assert check("07.decode", half).mistake == "different"
    assert "a list of token ids, got a value of type str" in check("07.decode", word).message
    assert adopt("07.decode", decode)(writes(2), 0, 2, 5).dtype.kind == "i"


def test_the_sweep_may_be_a_dictionary_and_comes_back_as_the_table():
    form = REGISTRY["10.sweep"].forms["a dictionary"]
    table = adopt("10.sweep", form)(lambda heads, seed: float(heads * seed), [2, 1], seeds=[1, 3])
    near(table, [[1, 2, 1, 3], [2, 4, 2, 6]])
    assert "got a value of type str" in check("10.sweep", lambda train, head_counts, seeds: "best").message


@pytest.mark.parametrize(
    "answer, said",
    [
        (lambda names, scores, costs: 3, "got a whole number; names[i] is the name of option i"),
        (lambda names, scores, costs: "9 heads", "got 9 heads"),
        (lambda names, scores, costs: {"name": names[0]}, "got a value of type dict"),
        (lambda names, scores, costs: names[3], "expected mean of the words, got 4 heads"),
    ],
)
def test_a_wrong_name_is_told_by_its_name(answer, said):
    result = check("10.choose", answer)
    assert result.status == "incorrect" and said in result.message


def test_an_adopted_choice_is_a_word():
    form = REGISTRY["10.choose"].forms["a loop"]
    assert adopt("10.choose", form)(NAMES, np.array([[1.0], [2], [3]]), np.array([1, 2, 3])) == "8 heads"


def test_the_entropy_form_of_the_distance_passes_in_single_precision():
    """Its diagonal is the root of a rounding error."""
    d = REGISTRY["09.similarity"]

    def similarity(weights):
        out = head_distances(weights)
        return out + np.eye(len(out), dtype=out.dtype) * np.float32(4e-4)

    assert check(d.id, similarity).status == "correct"


PRACTICE = [e for e in REGISTRY.values() if e.id[:2] in ("07", "09", "10") and e.id != "10.choose"]


@pytest.mark.parametrize("fill", [0.0, 1.0, np.nan])
@pytest.mark.parametrize("e", PRACTICE, ids=lambda e: e.id)
def test_a_stub_that_returns_one_number_everywhere_is_no_known_mistake(e, fill):
    """It has the right shape, and nobody made the mistake that happens to come out so."""

    def stub(*args):
        out = e.solution(*args)
        if isinstance(out, tuple):
            return tuple(np.full(np.shape(o), fill) for o in out)
        return np.full(np.shape(out), fill)

    assert check(e.id, stub).mistake in ("different", "nan", "wrong_dtype", "wrong_type")


def test_whole_numbers_pass_where_the_answer_is_made_of_them():
    zeros, halves = np.zeros(3), np.array([0.5, 1, 2])
    assert difference(zeros, [0, 0, 0]) is None and difference(np.array([2.0, 5]), (2, 5)) is None
    assert difference(zeros, [0, 1, 0]).kind == "wrong_dtype"
    assert difference(halves, [0, 1, 2]).kind == "wrong_dtype"
    assert difference(np.array([np.nan, 1]), [0, 1]).kind == "wrong_dtype"


def distances(term, end):
    """The formula of the lesson with the sum in place of the middle, or with other terms."""

    def similarity(weights):
        p, q = weights[:, None], weights[None]
        both = (term(p, p + q).sum(-1) + term(q, p + q).sum(-1)) / 2
        return end(both).mean(-1)

    return similarity


def test_the_sum_for_the_middle_is_named_by_what_it_gives_and_not_by_zeros():
    def term(p, m):
        return np.where(p > 0, p * np.log2(p / m), 0)

    def clamped(bits):
        return np.sqrt(np.maximum(bits, 0))

    assert check("09.similarity", distances(term, np.sqrt)).mistake == "middle_is_the_sum"
    assert check("09.similarity", distances(term, clamped)).mistake == "different", "nothing but zeros"
    assert check("09.similarity", distances(lambda p, m: term(p, m / 2), clamped)).status == "correct"


def test_two_mistakes_about_distances_are_named_together():
    def similarity(weights):
        p, q = weights[:, None], weights[None]
        return np.where(p > 0, p * np.log2(2 * p / (p + q)), 0).sum(-1).mean(-1)

    assert check("09.similarity", similarity).mistake == "no_root+half_of_it"


@pytest.mark.parametrize("answer, got", [("L1H2", "a str"), ({"layer": 1}, "a dict")])
def test_a_place_is_two_numbers(answer, got):
    said = check("09.find", lambda weights, query, key: answer).message
    assert f"expected two numbers, (layer, head), got {got}" in said


def test_what_the_shown_helpers_call_is_shown_too():
    assert "def project(" in solution("09.ablate").text


# ---------------------------------------------------------------------------- 07, what a newcomer wrote


def padded(source_lengths, S):
    return (np.arange(S) < source_lengths[:, None])[:, None, None, :]


def triangle(n, k=0):
    return np.tri(n, n, k, dtype=bool)


def with_decoder_mask(source_lengths, L, S):
    padding = padded(source_lengths, S)
    return padding, triangle(L), padding & triangle(L)


NEWCOMER_MASKS = {
    "decoder_mask_on_cross": lambda source_lengths, L, S: (padded(source_lengths, S), triangle(L), triangle(L)),
    "decoder_mask_too_on_cross": with_decoder_mask,
    "decoder_first": lambda source_lengths, L, S: (
        triangle(L), np.repeat(padded(source_lengths, S), S, axis=2), padded(source_lengths, S)
    ),
    "sees_the_next": lambda source_lengths, L, S: (
        padded(source_lengths, S), triangle(L, k=1)[None, None], padded(source_lengths, S)
    ),
    "one_key_too_many": lambda source_lengths, L, S: (
        padded(source_lengths + 1, S), triangle(L)[None, None], padded(source_lengths + 1, S)
    ),
    "keys_on_heads": lambda source_lengths, L, S: (
        padded(source_lengths, S).swapaxes(1, 3), triangle(L), padded(source_lengths, S).swapaxes(1, 3)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NEWCOMER_MASKS)
def test_the_masks_of_a_newcomer_are_named(name):
    assert check("07.masks", NEWCOMER_MASKS[name]).mistake == name


def test_three_masks_are_not_asked_for_where_three_came():
    def one_wrong(source_lengths, L, S):
        encoder, _, cross = encoder_decoder_masks(source_lengths, L, S)
        return encoder, np.eye(L, dtype=bool), cross

    result = check("07.masks", one_wrong)
    assert result.mistake == "different" and "with commas between" not in result.message
    assert "2 the decoder's" in result.message and "result 2 of 3" in result.message
    assert "with commas between" in check("07.masks", lambda source_lengths, L, S: (True, True)).message
    assert any("from mha_lesson.steps.masks import causal_mask, padding_mask" in h for h in REGISTRY["07.masks"].hints)


def best_of(scores):
    return int(np.argmax(scores[-1]))


def filtering(step, start, stop, longest):
    tokens = [start]
    while len(tokens) <= longest and tokens[-1] != stop:
        tokens.append(best_of(step(tokens)))
    return [t for t in tokens if t not in (start, stop)]


def filtering_all(step, start, stop, longest):
    tokens = [start]
    for _ in range(longest):
        tokens.append(best_of(step(tokens)))
    return [t for t in tokens if t != start and t != stop]


def never_growing(step, start, stop, longest):
    prefix, out = [start], []
    while len(out) < longest:
        best = best_of(step(prefix))
        if best == stop:
            break
        out.append(best)
    return out


def first_row(step, start, stop, longest):
    tokens = [start]
    while len(tokens) <= longest and (best := best_of(step(tokens)[:1])) != stop:
        tokens.append(best)
    return tokens[1:]


def keeping_nothing(step, start, stop, longest):
    tokens = [start]
    for _ in range(longest):
        best = best_of(step(tokens))
        if best == stop:
            break
    return tokens[1:]


def returning_inside(step, start, stop, longest):
    tokens = [start]
    for _ in range(longest):
        best = best_of(step(tokens))
        if best == stop:
            break
        tokens.append(best)
        return tokens[1:]


def returning_twice_inside(step, start, stop, longest):
    tokens = [start]
    for _ in range(longest):
        best = best_of(step(tokens))
        if best != stop:
            tokens.append(best)
        return tokens[1:]


def returning_at_stop(step, start, stop, longest):
    tokens = [start]
    for _ in range(longest):
        best = best_of(step(tokens))
        if best == stop:
            return tokens[1:]
        tokens.append(best)


@pytest.mark.parametrize(
    "answer, name",
    [
        (filtering, "filters_start"),
        (filtering_all, "filters_both"),
        (never_growing, "prefix_never_grows"),
        (first_row, "first_row"),
        (keeping_nothing, "nothing_appended"),
        (returning_inside, "return_in_loop"),
        (returning_twice_inside, "first_token_alone"),
        (returning_at_stop, "returns_at_stop_only"),
    ],
)
def test_the_loops_of_a_newcomer_are_named(answer, name, capsys):
    def decode(step, start, stop, longest):
        print("a turn")
        return answer(step, start, stop, longest)

    result = check("07.decode", decode)
    assert result.mistake == name, result
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("nothing", [lambda start: [], lambda start: [start]])
def test_an_answer_that_never_asks_the_model_is_no_known_mistake(nothing):
    assert check("07.decode", lambda step, start, stop, longest: nothing(start)).mistake in ("wrong_shape", "different")


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda ids: [str(i) for i in ids], "one that holds text: item 0 is '3'"),
        (lambda ids: np.array([str(i) for i in ids]), "one that holds text: item 0 is '3'"),
        (lambda ids: [*ids, None], "item 3 is a value of type NoneType"),
        (lambda ids: [[1, 2], [3]], "item 0 is a value of type list"),
    ],
)
def test_what_is_in_a_list_that_is_none_of_ids_is_said(change, said):
    result = check("07.decode", lambda step, start, stop, longest: change(greedy_decode(step, start, stop, longest)))
    assert result.mistake == "wrong_type" and said in result.message


def test_the_softmax_and_the_divisor_of_a_newcomer_are_named():
    def whole(xd, xe):
        e = np.exp(xd @ xe.T / np.sqrt(xd.shape[1]))
        return e / e.sum() @ xe

    def by_tokens(xd, xe):
        e = np.exp(xd @ xe.T / np.sqrt(xd.shape[0]))
        return e / e.sum(-1, keepdims=True) @ xe

    assert check("07.cross", whole).mistake == "whole_matrix"
    assert check("07.cross", by_tokens).mistake == "by_queries"
    said = check("07.cross", lambda xd, xe: xd + cross_attention(xd, xe))
    assert said.mistake == "residual" and "residual" not in said.message and "block" not in said.message


@pytest.mark.parametrize(
    "answer, name",
    [
        (lambda L, S, E: 2 * (L + S) * E**2, "projections_only"),
        (lambda L, S, E: 4 * S * E**2 + 2 * S * S * E, "encoder_self_attention"),
        (lambda L, S, E: 6 * L * E**2 + 2 * L * L * E + 2 * S * E**2 + 2 * L * S * E, "self_and_cross"),
        (lambda L, S, E: 2 * L * E ^ 2 + 2 * S * E ^ 2 + 2 * L * S * E, "caret_doubled"),
        (lambda L, S, E: 2 * E ^ 2 * (L + S) + 2 * L * S * E, "different"),
        (lambda L, S, E: [1, 2], "wrong_shape"),
    ],
)
def test_the_counts_of_a_newcomer_are_named(answer, name):
    result = check("07.cost", answer)
    assert result.mistake == name
    if name.startswith(("caret", "different")):
        assert "E**2" in result.message


def test_a_count_may_come_in_an_array():
    for wrap in (lambda n: np.array([n]), lambda n: [n], lambda n: np.array([[float(n)]])):
        answer = lambda L, S, E, wrap=wrap: wrap(cross_cost(L, S, E))  # noqa: E731
        assert check("07.cost", answer).status == "correct"
        assert adopt("07.cost", answer)(2, 3, 5) == 310
