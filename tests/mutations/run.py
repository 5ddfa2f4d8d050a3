"""Applies the mutations of the tables in this folder one by one and checks that the tests named there fail.

    ./dev mutate                    # all of them: about an hour of processor time
    ./dev mutate clip norm          # those whose names contain one of these words
    ./dev mutate --sample 10        # ten, drawn by the commit
    ./dev mutate --part 1/2         # the first half, of the files in order; the other half can run next to it
    ./dev mutate --check            # only whether each still finds its place and its test

A mutation is a replacement in one source file. The file is compiled as build/cpu compiles it, but less
optimised, and linked before the libraries, so that it replaces its twin there: sources and
build are not changed. README.md says how to write one.
"""

import argparse
import fnmatch
import json
import os
import pathlib
import random
import re
import resource
import shlex
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = ROOT / "tests" / "mutations"
KEYS = ("in", "replace", "with", "test", "lives")
SAFETY = 300  # seconds; a mutation that needs it counts as not caught


class Mutation:
    def __init__(self, table, lines):
        self.table, self.name = table, lines[0].strip()
        self.values = {}
        for line in lines[1:]:
            key, _, value = line.strip().partition(" ")
            if key not in KEYS or key in self.values:
                sys.exit(f"{table}: {self.name}: unexpected line: {line.strip()}")
            self.values[key] = value.strip()
        missing = [key for key in KEYS[:4] if key not in self.values]
        if missing:
            sys.exit(f"{table}: {self.name}: no {', '.join(missing)}")
        self.source = ROOT / self.values["in"]
        self.program, _, self.filter = self.values["test"].partition(" ")
        self.lives = self.values.get("lives")

    def apply(self):
        """The mutated text; a mistake in the table ends the program. White space counts as one space."""
        text = self.source.read_text()
        pattern = r"\s*".join(re.escape(word) for word in words_of(self.values["replace"]))
        found = list(re.finditer(pattern, text))
        if len(found) != 1:
            raise LookupError(f"{self.table}: {self.name}: found {len(found)} times in {self.values['in']}: "
                              f"{self.values['replace']}")
        begin, end = found[0].span()
        return text[:begin] + self.values["with"] + text[end:]


def words_of(text):
    """Identifiers and single signs: what may have white space, or a line's end, between them."""
    return re.findall(r'"[^"]*"|\w+|[^\w\s]', text)


def read_tables():
    mutations = []
    for table in sorted(HERE.glob("*.txt")):
        blocks = re.split(r"\n\s*\n", table.read_text())
        for block in blocks:
            lines = [line for line in block.splitlines() if line.strip() and not line.startswith("#")]
            if lines:
                mutations.append(Mutation(table.name, lines))
    names = [m.name for m in mutations]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        sys.exit(f"names used twice: {', '.join(sorted(twice))}")
    return mutations


def tests_in(files):
    return [found for file in files
            for found in re.findall(r"\b(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", file.read_text())]


def tests_of(program):
    """(suite, test) of all tests in the program's folder below tests/, or in headers; None if it has no
    such folder."""
    name, tests = program.removesuffix("_tests"), ROOT / "tests"
    folder = next((f for f in tests.glob("**/") if f.relative_to(tests).as_posix().replace("/", "_") == name), None)
    if folder is None:
        return None
    files = folder.glob("**/*_test.cpp" if name == "checkpoint" else "*_test.cpp")
    return tests_in([*files, *tests.glob("**/*.h")])


def selects(test_filter, tests):
    """Whether a gtest filter finds one of them; what is around TEST_P's names isn't looked at."""
    for pattern in test_filter.partition("-")[0].split(":"):
        suite, _, test = pattern.partition(".")
        suite, test = suite.split("/")[-1], test.split("/")[0] or "*"
        if any(fnmatch.fnmatchcase(s, suite) and fnmatch.fnmatchcase(t, test) for s, t in tests):
            return True
    return False


def check(mutations):
    errors = []
    tests = {program: tests_of(program) for program in {m.program for m in mutations}}
    for mutation in mutations:
        known = tests[mutation.program]
        if known is not None and not selects(mutation.filter, known):
            errors.append(f"{mutation.table}: {mutation.name}: {mutation.program} has no test {mutation.filter}")
        if mutation.source.suffix != ".cpp":
            errors.append(f"{mutation.table}: {mutation.name}: in {mutation.values['in']}, which isn't a .cpp file")
        try:
            mutation.apply()
        except (LookupError, OSError) as error:
            errors.append(str(error))
    for error in errors:
        print(error, file=sys.stderr)
    return not errors


def split_after_includes(text):
    """The lines up to the last #include of a header, and the #endif that it may need; and the rest."""
    lines = text.split("\n")
    cut = max(i for i, line in enumerate(lines) if line.startswith("#include") and ".inc" not in line) + 1
    depth = sum(line.startswith("#if") - line.startswith("#endif") for line in lines[:cut])
    while depth > 0:
        depth += lines[cut].startswith("#if") - lines[cut].startswith("#endif")
        cut += 1
    return "\n".join(lines[:cut]), "\n".join(lines[cut:])


def run(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def includes_of(batch):
    return re.findall(r'^#include "(.*)"$', pathlib.Path(batch).read_text(), re.MULTILINE)


class Workshop:
    """Compiles, links and runs; everything lies in one folder that is emptied as it goes."""

    def __init__(self, build, folder):
        self.build = build
        self.folder = build / folder
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self.commands = {entry["file"]: entry for entry in json.loads((build / "compile_commands.json").read_text())}
        # A file of a batch has the batch's command (cmake/batches.cmake).
        self.batches = {str(ROOT / source): pathlib.Path(batch) for batch in self.commands if "/batches/" in batch
                        for source in includes_of(batch)}
        self.links = {}
        self.prefix = None
        self.rest = None, []
        self.gold = ["-fuse-ld=gold"] if shutil.which("ld.gold") else []

    def compile(self, mutation, text):
        """What a file includes is most of its cost, so that is compiled once for all mutations of the file."""
        prefix, rest = split_after_includes(text)
        header = self.folder / "includes.h"
        if self.prefix != (mutation.source, prefix):
            header.write_text(prefix)
            self.run_compiler(mutation, header, self.folder / "includes.h.gch", ["-x", "c++-header"])
            self.prefix = (mutation.source, prefix)
        source, target = self.folder / mutation.source.name, self.folder / "mutation.o"
        source.write_text(f'#include "includes.h"\n{rest}')
        self.run_compiler(mutation, source, target, [])
        return target

    def rest_of_batch(self, mutation):
        """The other files of its batch, compiled once for all mutations of the file: the library's own object has
        the file, too."""
        if self.rest[0] != mutation.source:
            batch = self.batches.get(str(mutation.source))
            own = str(mutation.source.relative_to(ROOT))
            others = [source for source in includes_of(batch) if source != own] if batch else []
            objects = []
            if others:
                rest = self.folder / "batches" / "rest.cpp"
                rest.parent.mkdir(exist_ok=True)
                rest.write_text("".join(f'#include "{source}"\n' for source in others))
                objects = [self.folder / "rest.o"]
                self.run_compiler(mutation, rest, objects[0], [])
            self.rest = mutation.source, objects
        return self.rest[1]

    def run_compiler(self, mutation, source, target, options):
        entry = self.commands[str(self.batches.get(str(mutation.source), mutation.source))]
        words = shlex.split(entry["command"])
        while pathlib.Path(words[0]).name in ("compile.sh", "ccache"):
            del words[0]
        words[words.index("-o") + 1] = str(target)
        words[words.index("-c") + 1] = str(source)
        words = [{"-O3": "-O1", "-g1": "-g0"}.get(word, word) for word in words]
        done = run([ROOT / "cmake/compile.sh", words[0], *options, *words[1:], "-w"], cwd=entry["directory"])
        if done.returncode != 0:
            raise RuntimeError(f"{mutation.name} doesn't compile:\n{done.stdout}")

    def link(self, program, compiled, source):
        if program not in self.links:
            listed = run(["ninja", "-C", str(self.build), "-t", "commands", program]).stdout.splitlines()
            link = [line for line in listed if f"-o tests/{program} " in line]
            if len(link) != 1:
                raise RuntimeError(f"no test program {program}")
            self.links[program] = shlex.split(link[0].removeprefix(": && ").split(" && ")[0])
        # Where the program has the file's own object, and not a library, that makes way.
        words = [word for word in self.links[program] if not word.endswith(f"/{source}.o")]
        target = self.folder / program
        words[words.index("-o") + 1] = str(target)
        first_object = next(i for i, word in enumerate(words) if word.endswith(".o"))
        done = run(words[:first_object] + [str(o) for o in compiled] + words[first_object:] + self.gold, cwd=self.build)
        if done.returncode != 0:
            raise RuntimeError(f"doesn't link:\n{done.stdout}")
        return target

    def passes(self, program, test_filter):
        """True or False; None if it had to be stopped. What it printed comes with it."""
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        try:
            done = run([str(program), f"--gtest_filter={test_filter}", "--gtest_brief=1", "--gtest_fail_fast"],
                       cwd=self.build, env=environment, timeout=SAFETY)
        except subprocess.TimeoutExpired as expired:
            return None, str(expired.stdout)
        if re.search(r"^\[=+\] (Running )?0 tests", done.stdout, re.MULTILINE):
            sys.exit(f"{program.name} has no test that is called {test_filter}")
        return done.returncode == 0, done.stdout


def try_out(workshop, mutation):
    """'caught', 'lives' or 'hangs'."""
    compiled = [workshop.compile(mutation, mutation.apply()), *workshop.rest_of_batch(mutation)]
    program = workshop.link(mutation.program, compiled, mutation.values["in"])
    result, output = workshop.passes(program, mutation.filter)
    program.unlink()
    return {True: "lives", False: "caught", None: "hangs"}[result], output


def build_programs(build, mutations):
    programs = sorted({m.program for m in mutations})
    done = run(["cmake", "--build", str(build), "--target", *programs])
    if done.returncode != 0:
        sys.exit(f"{done.stdout[-3000:]}\nthe test programs don't build")


def check_unmutated(workshop, mutations):
    for program, test_filter in sorted({(m.program, m.filter) for m in mutations}):
        result, output = workshop.passes(workshop.build / "tests" / program, test_filter)
        if not result:
            sys.exit(f"{output[-2000:]}\n{program} {test_filter} fails without any mutation")


def judge(mutations, workshop):
    counts = {"caught": 0, "lives": 0, "hangs": 0}
    wrong = []
    for mutation in mutations:
        begin = time.monotonic()
        outcome, output = try_out(workshop, mutation)
        counts[outcome] += 1
        expected = "lives" if mutation.lives else "caught"
        note = "" if outcome == expected else "  <-- " + ("it is caught now" if mutation.lives else "NOT CAUGHT")
        print(f"{outcome:7} {time.monotonic() - begin:5.1f} s  {mutation.name}{note}", flush=True)
        if note:
            wrong.append(mutation.name)
    share = 100.0 * counts["caught"] / len(mutations)
    print(f"{counts['caught']} of {len(mutations)} caught ({share:.1f} %), {counts['lives']} live, "
          f"{counts['hangs']} hang")
    if wrong:
        print(f"not as the tables say: {', '.join(wrong)}")
    return not wrong


def chosen(mutations, args):
    if args.words:
        mutations = [m for m in mutations if any(word in m.name or word in m.table for word in args.words)]
    if args.sample:
        seed = args.seed or run(["git", "rev-parse", "HEAD"], cwd=ROOT).stdout.strip()
        print(f"seed {seed}")
        mutations = random.Random(seed).sample(mutations, min(args.sample, len(mutations)))
    mutations.sort(key=lambda m: m.values["in"])
    if args.part:
        part, parts = args.part
        mutations = mutations[(part - 1) * len(mutations) // parts:part * len(mutations) // parts]
    return mutations


def part_of_all(text):
    part, parts = (int(number) for number in text.split("/"))
    if not 1 <= part <= parts:
        raise ValueError(text)
    return part, parts


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="*", help="only mutations whose name, or table's name, contains one of these")
    parser.add_argument("--sample", type=int, help="only SAMPLE of them, drawn by --seed")
    parser.add_argument("--seed", help="default: the commit")
    parser.add_argument("--part", type=part_of_all, metavar="I/N", help="only part I of N equal parts")
    parser.add_argument("--check", action="store_true", help="only look whether each still finds its place and its test")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "cpu")
    args = parser.parse_args()
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    mutations = read_tables()
    if not check(mutations):
        sys.exit(1)
    if args.check:
        print(f"all {len(mutations)} find their place")
        return
    mutations = chosen(mutations, args)
    build_programs(args.build, mutations)
    workshop = Workshop(args.build, f"mutations_{args.part[0]}" if args.part else "mutations")
    check_unmutated(workshop, mutations)
    sys.exit(0 if judge(mutations, workshop) else 1)


if __name__ == "__main__":
    main()
