#!/usr/bin/env python3
"""Writes engine/data/tokenizer/pattern/general_category.inc: the general category of every code point in Unicode 16.0.

Needs PyPI's unicodedata2 16.0.0. With --check it compares and writes nothing.
"""
import pathlib
import sys

import unicodedata2

CATEGORIES = [
    "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
    "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn",
]
TARGET = pathlib.Path(__file__).resolve().parents[3] / "engine/data/tokenizer/pattern/general_category.inc"


def runs():
    previous = None
    for point in range(0x110000):
        category = CATEGORIES.index(unicodedata2.category(chr(point)))
        if category != previous:
            yield point << 5 | category
            previous = category


def main():
    assert unicodedata2.unidata_version == "16.0.0", unicodedata2.unidata_version
    words = [f"{word:#x}," for word in runs()]
    text = (f"// Unicode 16.0: {len(words)} runs of code points of one general category, each (first << 5) | category.\n"
            "// Written by tests/reference/tokenizers/unicode_table.py.\n")
    line = ""
    for word in words:
        if len(line) + len(word) > 119:
            text += line + "\n"
            line = ""
        line += word
    text += line + "\n"
    if "--check" in sys.argv:
        sys.exit(0 if TARGET.read_text() == text else f"{TARGET} differs")
    TARGET.write_text(text)


main()
