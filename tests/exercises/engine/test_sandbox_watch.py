"""One call of a stranger's function, and what is noted down about it."""

from mha_lesson.exercises.engine import sandbox
from mha_lesson.exercises.engine.changes import Change
from tests.exercises.engine.helpers import exercise


def test_what_became_of_the_arguments_is_noted_unless_nobody_asks():
    given = ([1], [2])
    for seconds in (None, 2.0):
        (watched,) = sandbox.call_all(lambda a, b: b.append(3), [given], seconds)
        (other,) = sandbox.call_all(lambda a, b: b.append(3), [given], seconds, watch=False)
        assert watched.changed == ((1, Change("", "list")),) and other.changed == ()
    assert given == ([1], [2]), "what it gets are copies"


def test_an_exercise_asks_for_the_answers_of_the_solution_and_the_learner_alone():
    def solution(x):
        return x.pop()

    e = exercise(solution, ([1, 2],))
    assert e.expected[0].changed and e.answers(solution)[0].changed
    assert not e.answers(solution, watch=False)[0].changed
    assert e.diagnose(lambda x: x.pop()).status == "correct", "what the course's own function does is allowed"
