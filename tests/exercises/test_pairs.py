"""Two mistakes at once: no pair is named that is not there."""

import itertools

from mha_lesson.exercises import check
from tests.exercises.helpers import TESTABLE


def test_a_wrong_pair_is_never_named():
    """For every pair that can be built: its own name, one mistake really in it, or no name."""
    wrong, named_pairs = [], 0
    for e in TESTABLE:
        for pair in itertools.combinations(e.mistakes, 2):
            variant = e.variant(*pair)
            if variant is None or any(m.function for m in pair):
                continue
            result = check(e.id, variant)
            names = {m.name for m in pair}
            known = {m.name for m in e.mistakes}
            said = set(result.mistake.split("+")) & known if result.mistake else set()
            named_pairs += said == names
            if said and said != names and len(said) == 2:
                wrong.append((e.id, names, said))
    assert not wrong
    assert named_pairs > 50
