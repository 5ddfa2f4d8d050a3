"""python -m sherd: the program `sherd`, which is inside this package."""

import os
import pathlib
import sys


def main():
    """Becomes the program: its signals and its exit code are those of this process."""
    program = pathlib.Path(__file__).resolve().parent / "bin" / "sherd"
    os.execv(program, [str(program), *sys.argv[1:]])


if __name__ == "__main__":
    main()
