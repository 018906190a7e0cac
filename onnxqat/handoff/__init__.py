"""Hand-off to compilers; one file is one compiler, the file name is the backend's name."""
