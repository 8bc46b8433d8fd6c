"""Do the tests and the stored outputs notice a fault? `python3 -m tests.mutation` measures it."""
