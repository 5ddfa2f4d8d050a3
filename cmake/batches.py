"""Which source files are compiled together: batches.py SIZE FOLDER ROOT FILE… writes the sources that include
them into FOLDER and prints, one per line, what is to be compiled.

Files of one batch share a translation unit, so names that one of them keeps to itself (in an
anonymous namespace, by a using-declaration, by a macro) are seen by those after it: a call there
could take another overload than its author meant. So files are in one batch only if none of them
uses a word that another one defines for itself. What this reading of C++ by lines overlooks is
mostly an error of the compiler (compile.sh).
"""
import collections
import pathlib
import re
import sys

FUNCTION = re.compile(r"^(?!\s|using|namespace|TEST|INSTANTIATE)[\w:<>,&*\[\]\s.()]*?[\s&*>](\w+)\(")
TYPE = re.compile(r"^(?:template\s*<.*>\s*)?(?:struct|class|enum class|enum struct|enum|union|using|concept)\s+(\w+)")
VARIABLE = re.compile(r"^(?:inline |constexpr |constinit |static |const |thread_local |extern )+[\w:<>,&* \"]*?[ *&](\w+)"
                      r"(?:\[[^\]]*\])*\s*(?:=|\{|;|\()")
PLAIN_VARIABLE = re.compile(r"^[\w:<>,&*]+(?: [\w:<>,&*]+)* [*&]?(\w+)(?:\[[^\]]*\])*\s*(?:=|\{|;)")
END = "}  # namespace"


def without_comments_and_texts(text):
    text = re.sub(r'R"(\w*)\((?:.|\n)*?\)\1"', '""', text)
    text = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)
    text = re.sub(r"//[^\n]*", "", text)
    return re.sub(r"/\*(?:.|\n)*?\*/", "", text)


class Source:
    def __init__(self, root, name):
        self.name = name
        self.defined = set()  # names that stand for something of this file alone
        self.shared = set()   # using-declarations, which other files may have, too
        text = (root / name).read_text()
        text = without_comments_and_texts(re.sub(r"^\}  // namespace$", END, text, flags=re.MULTILINE))
        self.read(text)
        self.words = set(re.findall(r"(?<![\w.>:])[A-Za-z_]\w*", text))  # not of members, not qualified

    def read(self, text):
        hidden = enumerates = False
        for line in text.split("\n"):
            if line in ("namespace {", END):
                hidden = line != END
            elif line.startswith("#define"):
                self.defined.add(re.match(r"#define\s+(\w+)", line)[1])
            elif line.startswith("using namespace"):
                self.shared.add((line, None))
            elif re.match(r"namespace \w+ =", line):
                self.shared.add((line, line.split()[1]))
            elif line.startswith("using ") and "=" not in line:
                self.shared |= {(name, name.split(":")[-1]) for name in re.findall(r"([\w:]+)\s*(?:,|;)", line)}
            elif hidden:
                self.read_definition(line)
                enumerates |= re.match(r"enum (?!class|struct)", line) is not None
                if enumerates:
                    self.defined |= set(re.findall(r"\bk[A-Z]\w*", line))
                    enumerates = "}" not in line

    def read_definition(self, line):
        for pattern in (TYPE, FUNCTION, VARIABLE, PLAIN_VARIABLE):
            found = pattern.match(line)
            if found and "::" + found[1] not in line:
                self.defined.add(found[1])

    def agrees(self, other):
        if self.defined & other.words or other.defined & self.words:
            return False
        for one, two in ((self, other), (other, self)):
            if any(name is None or name in two.words for _, name in one.shared - two.shared):
                return False
        return True


def main():
    size, folder, root = int(sys.argv[1]), pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    folders = collections.defaultdict(list)
    for name in sys.argv[4:]:
        batches = folders[str(pathlib.PurePath(name).parent)]
        source = Source(root, name)
        for batch in batches:
            if len(batch) < size and all(source.agrees(other) for other in batch):
                batch.append(source)
                break
        else:
            batches.append([source])
    folder.mkdir(parents=True, exist_ok=True)
    for name, batches in folders.items():
        for number, batch in enumerate(batches):
            if len(batch) == 1:
                print(root / batch[0].name)
                continue
            path = folder / f"{name.replace('/', '_')}_{number}.cpp"
            text = "".join(f'#include "{source.name}"\n' for source in batch)
            if not path.exists() or path.read_text() != text:
                path.write_text(text)
            print(path)


if __name__ == "__main__":
    main()
