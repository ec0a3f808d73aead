"""The processes of a run: each module hands one room what it needs and runs it."""
