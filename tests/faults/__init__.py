"""Do the tests and the stored outputs notice a fault? `python3 -m mha_lesson faults` measures it."""
