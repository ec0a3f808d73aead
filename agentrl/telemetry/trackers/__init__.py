"""Services that a run goes to beside its own files, each a module that has the name of its package.

base    what a service is: its flags, a session, the axes of its curves
run     `TrackedRun`: all that is the same for each of them
"""
