"""Which files cmake/batches.py compiles together: python3 tests/layering/batches_test.py."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "cmake/batches.py"


def hidden(text):
    return f"namespace sherd {{\nnamespace {{\n{text}\n}}  // namespace\n}}  // namespace sherd\n"


class Batches(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name)

    def batches(self, size=8, **files):
        """The names of files that are compiled together, sorted; `a__b` is the file a/b.cpp."""
        names = []
        for name, text in files.items():
            names.append(name.replace("__", "/") + ".cpp")
            path = self.root / names[-1]
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        done = subprocess.run([sys.executable, SCRIPT, str(size), self.root / "out", self.root, *names], check=True,
                              capture_output=True, text=True)
        return sorted(self.files_of(pathlib.Path(path)) for path in done.stdout.split("\n") if path)

    def files_of(self, path):
        if path.parent.name != "out":
            return [path.stem]
        return [pathlib.Path(line.split('"')[1]).stem for line in path.read_text().splitlines()]

    def test_files_that_share_no_name_are_one_batch(self):
        self.assertEqual(self.batches(a=hidden("int first() { return 1; }"), b=hidden("int second() { return 2; }")),
                         [["a", "b"]])

    def test_a_batch_has_at_most_so_many_files(self):
        self.assertEqual(self.batches(2, a="", b="", c=""), [["a", "b"], ["c"]])

    def test_files_of_two_folders_are_never_one_batch(self):
        self.assertEqual(self.batches(x__a="", y__b=""), [["a"], ["b"]])

    def test_a_name_that_two_files_define_for_themselves_keeps_them_apart(self):
        for definition in ("int size(int x) { return x; }", "struct size { int x; };", "constexpr int size = 1;",
                           "enum class size { kOne };", "const std::map<int, int> size = {};"):
            with self.subTest(definition):
                self.assertEqual(self.batches(a=hidden(definition), b=hidden(definition)), [["a"], ["b"]])

    def test_a_file_that_calls_what_another_defines_for_itself_is_apart_from_it(self):
        definition, call = hidden("int size(int x) { return x; }"), "int f() { return size(1.5); }\n"
        self.assertEqual(self.batches(a=definition, b=call), [["a"], ["b"]])
        self.assertEqual(self.batches(a=call, b=definition), [["a"], ["b"]])

    def test_members_and_qualified_names_of_others_are_no_such_calls(self):
        self.assertEqual(self.batches(a=hidden("int size(int x) { return x; }"),
                                      b="int f() { return of.size() + std::size(one); }\n"), [["a", "b"]])

    def test_comments_and_texts_are_no_such_calls(self):
        self.assertEqual(self.batches(a=hidden("int size(int x) { return x; }"),
                                      b='// size\nauto f() { return "size"; }  /* size */\n'), [["a", "b"]])

    def test_enumerators_count_as_names(self):
        self.assertEqual(self.batches(a=hidden("enum { kOne, kTwo };"), b="int f() { return kTwo; }\n"), [["a"], ["b"]])

    def test_a_macro_counts_as_a_name(self):
        self.assertEqual(self.batches(a="#define LIMIT 3\n", b="int f() { return LIMIT; }\n"), [["a"], ["b"]])

    def test_a_using_declaration_that_only_one_of_two_users_of_a_name_has_keeps_them_apart(self):
        self.assertEqual(self.batches(a="using std::max;\nint f() { return max(1, 2); }\n",
                                      b="int g() { return max(1, 2); }\n"), [["a"], ["b"]])

    def test_a_using_declaration_that_both_have_keeps_nobody_apart(self):
        text = "using std::max;\n"
        self.assertEqual(self.batches(a=text, b=text), [["a", "b"]])

    def test_a_using_directive_that_one_has_keeps_them_apart(self):
        self.assertEqual(self.batches(a="using namespace std;\n", b=""), [["a"], ["b"]])

    def test_a_batch_that_stays_the_same_is_not_written_again(self):
        self.batches(a="", b="")
        batch = next((self.root / "out").iterdir())
        before = batch.stat().st_mtime_ns
        self.batches(a="", b="")
        self.assertEqual(batch.stat().st_mtime_ns, before)


if __name__ == "__main__":
    unittest.main()
