"""What the ranks found: the processes are started once for all tests of this folder."""

import pytest


@pytest.fixture(scope="session")
def two():
    return all_of_it(2)


@pytest.fixture(scope="session")
def four():
    return all_of_it(4)


@pytest.fixture(params=["two", "four"])
def found(request):
    return request.getfixturevalue(request.param)


def all_of_it(world):
    """What every rank saw."""
    from mha_lesson.pytorch import parallel  # here: there may be no torch
    from tests.pytorch.parallel import workers

    return parallel.run(workers.all_of_it, world)
