"""Run native code on a stranger's model in a child process first, so that a crash, an endless run or a bomb ends there."""
