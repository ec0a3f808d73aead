"""Episodes of a run, made readable for a person.

episodes   which episodes, read from ledger and kept payloads
choice     which of them were asked for
config     what the run's configuration says of them
dialogue   token columns become parts with a speaker
text       parts as plain text, coloured on a terminal
html       the same as one self-contained page
visible    text of a model or tool without control characters
"""
