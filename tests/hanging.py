"""The limit for processes that a test waits for."""

SECONDS = 1_800
"""After which a process that hangs is killed, and its test fails.

Wall time, so far beyond what any of them needs: on a machine whose processors others held, two ranks that take 20 s of
processor time took 7 minutes.
"""

LIMITS = (5, 60, 600)
"""Time limits in seconds of a process that hangs on purpose, each for one more try: on a machine with much else to do, its
own child may not have started when the first one is over."""
