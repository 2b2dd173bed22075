"""SHELL. The same machines on a disk that lies, in a world made of one dice: a seed is a bug report."""
