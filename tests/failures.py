"""Prints what failed in a run of ctest, in a few lines after everything that its tests printed.

    tests/failures.py build/cpu/Testing/Temporary/LastTest.log

It names each failed GoogleTest with its first failed expectations. For another program that failed, or one that ended
in the middle of a test, it shows the last lines.
"""

import re
import sys

EXPECTATIONS = 3  # shown of a test
LINES = 12  # shown of an expectation
ENDING = 15  # lines shown of a program that ended otherwise
FINISHED = re.compile(r"\[       OK \]|\[  SKIPPED \]|\[  FAILED  \]|\[-----")


def entries(log):
    """(name, what it printed, whether it failed) of each entry of ctest."""
    for part in re.split(r"^\d+/\d+ Testing: ", log, flags=re.MULTILINE)[1:]:
        name, _, rest = part.partition("\n")
        printed, _, ending = rest.partition("<end of output>")
        printed = printed.partition("Output:\n" + "-" * 58 + "\n")[2]
        yield name.strip(), printed.splitlines(), "Test Passed." not in ending and "Test Skipped." not in ending


def tests(printed):
    """(name, lines, whether it came to its end) of each test of a program."""
    name, lines = None, []
    for line in printed:
        if begun := re.match(r"\[ RUN      \] (\S+)", line):
            name, lines = begun[1], []
        elif name and FINISHED.match(line):
            yield name, lines, True
            name = None
        elif name:
            lines.append(line)
    if name:
        yield name, lines, False


def expectations(lines):
    """The failed expectations: a list of lines for each."""
    found = []
    for line in lines:
        if re.search(r":\d+: Failure$|^unknown file: Failure$", line):
            found.append([])
        if found:
            found[-1].append(line)
    return found


def failures(printed):
    """The lines that say what failed."""
    shown = []
    for name, lines, ended in tests(printed):
        found = expectations(lines)
        if not ended:
            shown += [f"{name}: the program ended in this test; last it printed", *lines[-ENDING:]]
        elif found:
            shown.append(name)
            for lines in found[:EXPECTATIONS]:
                shown += lines[:LINES] + ["…"] * (len(lines) > LINES)
            if len(found) > EXPECTATIONS:
                shown.append(f"and {len(found) - EXPECTATIONS} more")
    return shown or printed[-ENDING:] or ["it printed nothing"]


def main():
    with open(sys.argv[1], errors="replace") as file:
        log = file.read()
    for name, printed, failed in entries(log):
        if failed:
            print(f"\n== {name} failed")
            print("\n".join(failures(printed)))


if __name__ == "__main__":
    main()
