"""Figures: functions that take arrays and give a matplotlib Figure. Tests look at what was drawn."""
