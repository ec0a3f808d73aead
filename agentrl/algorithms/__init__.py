"""How a run learns: one file for each algorithm, and what all of them are (`base`).

Nothing is imported here: what an algorithm needs is asked where no torch is.
"""
