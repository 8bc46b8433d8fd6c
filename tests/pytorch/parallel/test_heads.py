"""Heads shared out over processes, as far as one process can tell: who has which. The rest: test_ranks.py."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (it has no build for this machine)")

from mha_lesson.pytorch.parallel import heads  # noqa: E402
from tests.pytorch.parallel import workers  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("case", workers.UNEVEN, ids=str)
def test_each_rank_has_the_key_heads_that_its_query_heads_read(case):
    num_heads, num_kv_heads, _ = case
    layer, mine = SimpleNamespace(num_heads=num_heads, num_kv_heads=num_kv_heads), num_heads // 4
    for rank, wanted in enumerate(workers.UNEVEN[case]):
        query_heads = list(range(rank * mine, (rank + 1) * mine))
        read = heads._heads_they_read(query_heads, layer)
        assert read == wanted
        each = mine // len(read)  # neighbours share, here as in the whole
        assert [read[i // each] for i in range(mine)] == [h * num_kv_heads // num_heads for h in query_heads]
