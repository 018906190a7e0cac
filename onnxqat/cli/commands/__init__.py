"""Commands; one file is one command, the file name is its name."""
