"""Episodes of a run, made readable for a person.

episodes   which episodes, read from ledger and kept payloads
choice     which of them were asked for
config     what the run's configuration says of them
dialogue   token columns become parts with a speaker
facts      what is said of an episode, a trajectory and a token beside their text
text       parts as plain text, coloured on a terminal
html       the same as one self-contained page
json_lines each episode as an object for a program
saved      the episodes of a file that a run was told to save
"""
