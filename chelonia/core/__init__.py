"""Value types, messages, ports, errors and pure policy: what every part of Chelonia agrees on.

Nothing in here imports anything else of ours and nothing does I/O: no clock, socket, thread, file or randomness.
"""
