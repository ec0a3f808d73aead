"""Services that a run's metrics go to beside its own files: a module for each, of its package's name.

base    what a service is: its flags, a session, the axes of its curves
run     `TrackedRun`: all that is the same for each of them
"""
