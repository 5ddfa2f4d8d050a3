"""Prints what failed in a run of ctest, in a few lines behind everything that its tests printed.

    tests/failures.py build/cpu/Testing/Temporary/LastTest.log

A test of GoogleTest is named with what it expected; of another program that failed, or of one that ended in the
middle of a test, the last lines are shown.
"""

import re
import sys

EXPECTATION = 12  # lines shown of one expectation that failed
ENDING = 15  # lines shown of a program that ended otherwise


def entries(log):
    """(name, what it printed, whether it failed) of each entry of ctest."""
    for part in re.split(r"^\d+/\d+ Testing: ", log, flags=re.MULTILINE)[1:]:
        name, _, rest = part.partition("\n")
        printed, _, ending = rest.partition("<end of output>")
        printed = printed.partition("Output:\n" + "-" * 58 + "\n")[2]
        yield name.strip(), printed.splitlines(), "Test Passed." not in ending and "Test Skipped." not in ending


def failures(printed):
    """What GoogleTest's tests expected in vain, under each test's name."""
    test, shown, left = None, [], 0
    for line in printed:
        if begun := re.match(r"\[ RUN      \] (\S+)", line):
            test, named = begun[1], False
        elif re.match(r"\[       OK \]|\[  SKIPPED \]|\[  FAILED  \]|\[-----", line):
            test, left = None, 0
        elif re.search(r":\d+: Failure$|^unknown file: Failure$", line):
            if test and not named:
                shown.append(test)
                named = True
            left = EXPECTATION
        if left > 0:
            shown.append(f"  {line}")
            left -= 1
    if test:  # the program ended before this test did
        shown += [f"{test}: the program ended in this test; last it printed"]
        shown += [f"  {line}" for line in printed[-ENDING:]]
    return shown or printed[-ENDING:]


def main():
    with open(sys.argv[1], errors="replace") as file:
        log = file.read()
    for name, printed, failed in entries(log):
        if failed:
            print(f"\n== {name} failed")
            print("\n".join(failures(printed)))


if __name__ == "__main__":
    main()
