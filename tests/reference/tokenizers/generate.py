#!/usr/bin/env python3
"""Writes tests/engine/data/tokenizer/values.json: two tiny vocabularies trained on this project's own text, tokenizers of
every kind around them, and what Hugging Face's library makes of some texts.

Needs PyPI's tokenizers 0.23.3.  generate.py [--check]
"""
import json
import pathlib
import random
import sys

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from fuzz_texts import fuzz_texts

ROOT = pathlib.Path(__file__).resolve().parents[3]
TARGET = ROOT / "tests/engine/data/tokenizer/values.json"
CORPUS = ["README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/checkpoint_format.md"]
MORE = "Die Größe des Modells über alle Ränge. Привет, мир: модель учится. 世界你好，模型在学习。 naïve café 12345 67 890.\n" * 20

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
          r"|\s+(?!\S)|\s+")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = ("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
            "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+")


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def byte_level(use_regex, add_prefix_space=False):
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": True, "use_regex": use_regex}


def sequence(key, *parts):
    return {"type": "Sequence", key: list(parts)}


def pre(*parts):
    return sequence("pretokenizers", *parts)


REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
STEPS = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = sequence("decoders", *STEPS, {"type": "Strip", "content": " ", "start": 1, "stop": 0})
BYTES = byte_level(True, True)
CHARACTERS = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
DIGITS = {"type": "Digits", "individual_digits": True}


def metaspace(scheme, parts=False):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": parts}


# name: vocabulary, normaliser, pre-tokenizer, decoder, options of the model
CASES = {
    "gpt2": ("bytes", None, byte_level(True), BYTES, {}),
    "neox": ("bytes", {"type": "NFC"}, byte_level(True), BYTES, {}),
    "llama3": ("bytes", None, pre(split(LLAMA3), byte_level(False)), BYTES, {"ignore_merges": True}),
    "qwen2": ("bytes", {"type": "NFC"}, pre(split(LLAMA3.replace("{1,3}", "")), byte_level(False)), BYTES, {}),
    "smollm": ("bytes", None, pre(DIGITS, byte_level(True)), BYTES, {}),
    "cl100k": ("bytes", None, pre(split(CL100K, "Removed", True), byte_level(False)), BYTES, {}),
    "tekken": ("bytes", None, pre(split(TEKKEN), byte_level(False)), BYTES, {"ignore_merges": True}),
    "deepseek": ("bytes", sequence("normalizers"),
                 pre(split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK), byte_level(False)), BYTES, {}),
    "falcon": ("bytes", {"type": "NFKC"},
               pre(split(r"[\p{P}\$\+<=>\^~\|`]+", "Contiguous"), byte_level(True, True),
                   {"type": "Digits", "individual_digits": False}, split("[0-9][0-9][0-9]")), BYTES, {}),
    "behaviors": ("bytes", {"type": "NFD"},
                  pre(split("a", "MergedWithPrevious", kind="String"), split(r"\s+$", "MergedWithNext"),
                      split(r"\d", "Contiguous"), split("e", "Contiguous", True), byte_level(False)), BYTES, {}),
    "llama2": ("characters", sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, REPLACE), None, STRIP,
               CHARACTERS),
    "mistral": ("characters", None, metaspace("first"), STRIP, CHARACTERS),
    "words": ("characters", {"type": "NFKD"}, metaspace("always", True), metaspace("always"),
              {**CHARACTERS, "fuse_unk": False, "byte_fallback": False}),
    "gemma": ("characters", REPLACE, split(" ", "MergedWithPrevious", kind="String"), sequence("decoders", *STEPS),
              CHARACTERS),
    # New letters touch old ones, and a merge tells whether they are one word; "zzz" is made by no merge.
    "gpt2 and new letters": ("letters", None, byte_level(True), BYTES, {}),
    "llama3 and new letters": ("letters", None, pre(split(LLAMA3), byte_level(False)), BYTES, {"ignore_merges": True}),
    "tekken and new letters": ("letters", None, pre(split(TEKKEN), byte_level(False)), BYTES, {}),
    "bare": ("characters", {"type": "Replace", "pattern": {"Regex": r"\s{2,}"}, "content": "▁▁"}, None, None,
             {**CHARACTERS, "unk_token": None, "byte_fallback": False}),
}


def template(*single, ids=None):
    """A is the document, every other piece a token; `ids` of a token, if not its own."""
    pieces = [{"Sequence": {"id": "A", "type_id": 0}} if piece == "A" else {"SpecialToken": {"id": piece, "type_id": 0}}
              for piece in single]
    own = {"<|end|>": [700], "<|left|>": [701], "<|right|>": [702]} | (ids or {})
    tokens = {token: {"id": token, "ids": own[token], "tokens": [token] * len(own[token])} for token in own}
    return {"type": "TemplateProcessing", "single": pieces, "pair": pieces + [{"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": tokens}


LLAMA3_TEMPLATE = sequence("processors", byte_level(True), template("<|left|>", "A"))
PAIR = {"sep": ["<|right|>", 702], "cls": ["<|end|>", 700]}
POST_PROCESSORS = {
    "none": None,
    "bytes": byte_level(True),
    "beginning": template("<|end|>", "A"),
    "both ends": template("<|end|>", "<|left|>", "A", "<|right|>"),
    "end": template("A", "<|end|>"),
    "only the document": template("A"),
    "a name of two tokens": template("<|left|>", "A", ids={"<|left|>": [701, 702]}),
    "in a sequence": LLAMA3_TEMPLATE,
    "in a sequence of sequences": sequence("processors", LLAMA3_TEMPLATE, byte_level(False)),
    "Bert": {"type": "BertProcessing", **PAIR},
    "Roberta": {"type": "RobertaProcessing", "trim_offsets": True, "add_prefix_space": False, **PAIR},
}
# Letters, digits and marks that Unicode 15.0, 15.1 and 16.0 have added, and some that 14.0 has.
NEW_LETTERS = "\U00031350 \U0001e4d0 \U0001e4f0 \U0002ebf0 \u1c89 \u1c8a \ua7cb \U00010d40 \u0897 \U0001061b \u1df9 \u4db5"
TEXTS = [
    "", " ", "  ", "\n", "a", "Hello, world!", " Hello  world ", "don't DON'T we'Ll I'ſ", "1 12 123 1234 12345 ²³ ٣४",
    "The memory plan: 125 MiB per rank.\r\n\r\n  return 0;\n\t}\n", "Größe über Straße", "привет мир", "世界，你好。模型",
    "e\u0301 é o\u0308\u0323 \u1e9b\u0323 \uf900 ﬁ \U0002f800", "▁a ▁▁ b▁", "👍🏽 👨\u200d👩\u200d👧 ❤\ufe0f",
    "\u3400 \U00020000 \U00031350 \U000323af \U00013460 \u1c89 \ua7cb \u0897", "\0 \x7f \x85 \xa0 \u2028 \u3000 \ufeff x",
    "a<|end|>b", "<|end|> <|end|><|end|>", " <|left|>  <|left|>", "<|right|>  x <|right|> ", "word a_word word! words",
    "<s>x</s> <s>", "Éé naïveté Éé", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "".join(f"a{letter}b 1{letter}2 {letter}a  " for letter in NEW_LETTERS.split()), "zzz zzzz Zzz 世世zzz",
    # In today's Unicode, but not in 9.0: a composition, marks that change places, signs that are letters.
    "\U00011935\U00011930 \U00011938 e\u0315\u1abf \u32ff \U0001f16c",
    "sharded " * 30, " " * 70 + "x", "checkpointcheckpointcheckpointcheckpointcheckpointcheckpointcheckpoint",
]


def added(index, content, **flags):
    token = {"id": index, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": False}
    token.update(flags)
    return token


def added_tokens(size):
    return [added(size, "<|end|>", special=True), added(size + 1, "<|left|>", lstrip=True, special=True),
            added(size + 2, "<|right|>", rstrip=True, special=True), added(size + 3, "word", single_word=True),
            added(size + 4, "Éé", normalized=True), added(size + 5, "<|e", special=True)]


def before_document(tokenizer):
    """What the library puts before a document."""
    document = tokenizer.encode("document", add_special_tokens=False).ids
    whole = tokenizer.encode("document").ids
    return whole[:next(i for i in range(len(whole)) if whole[i:i + len(document)] == document)]


def trained(corpus):
    bytes_model = tokenizers.Tokenizer(models.BPE())
    bytes_model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_model.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=700, show_progress=False, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    characters = tokenizers.Tokenizer(models.BPE())
    characters.normalizer = normalizers.Replace(" ", "▁")
    characters.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    characters.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=500, show_progress=False))
    result = {"bytes": json.loads(bytes_model.to_str())["model"], "characters": json.loads(characters.to_str())["model"]}
    # As in SentencePiece's vocabularies: the unknown token and the bytes first, runs of spaces.
    model = result["characters"]
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    tokens += [t for t in model["vocab"] if t not in tokens and t not in "ЖQ世"] + ["▁▁"]
    known = set(tokens)
    model["vocab"] = {token: index for index, token in enumerate(tokens)}
    model["merges"] = [["▁", "▁"]] + [m for m in model["merges"] if {m[0], m[1], m[0] + m[1]} <= known]
    return {name: {"vocab": model["vocab"], "merges": model["merges"]} for name, model in result.items()}


def letters(bytes_model):
    """The 256 bytes, and merges that join each new letter with an "a", a "b", a "1" or a "2" next to it."""
    oracle = tokenizers.Tokenizer.from_str(json.dumps({"model": {"type": "BPE", **bytes_model}}))
    oracle.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokens, merges = [t for t in bytes_model["vocab"] if len(t) == 1], []

    def join(left, right):
        if [left, right] not in merges:
            merges.append([left, right])
        if left + right not in tokens:
            tokens.append(left + right)
        return left + right

    for letter in NEW_LETTERS.split():
        spelled = oracle.pre_tokenizer.pre_tokenize_str(letter)[0][0]
        whole = spelled[0]
        for byte in spelled[1:]:
            whole = join(whole, byte)
        for before, after in ("ab", "12", "Ġa"):
            join(join(before, whole), after)
    return {"vocab": {token: index for index, token in enumerate([*tokens, "zzz"])}, "merges": merges}


def ends_of_merges(vocabularies):
    """Texts that need the last merges."""
    spelled = "".join(left + right + "Ġ" for left, right in vocabularies["bytes"]["merges"][-40:])
    plain = " ".join(left + right for left, right in vocabularies["characters"]["merges"][-40:])
    return [decoders.ByteLevel().decode([spelled]), plain.replace("▁", " ")]


def random_ids(vocabulary, size):
    """Lists of ids that no text has, many of them single bytes."""
    draw = random.Random(5)
    single = [index for token, index in vocabulary.items() if len(token) == 1 or token.startswith("<0x")]
    high = [index for index in single if index >= 94]  # mostly bytes that aren't ASCII
    return ([draw.sample(single, 6) + [draw.randrange(size) for _ in range(4)] for _ in range(30)]
            + [[draw.choice(high) for _ in range(12)] for _ in range(30)])


def main():
    assert tokenizers.__version__ == "0.23.3", tokenizers.__version__
    corpus = [line for name in CORPUS for line in (ROOT / name).read_text().splitlines(keepends=True)] + [MORE]
    vocabularies = json.loads(TARGET.read_text())["vocabularies"] if TARGET.exists() else trained(corpus)
    vocabularies["letters"] = letters(vocabularies["bytes"])
    texts = TEXTS + ends_of_merges(vocabularies) + fuzz_texts(24, "values", ["<|end|>", "<|left|>", "<|right|>", "word", "Éé"])
    cases, decoders_seen = [], []
    for name, (vocabulary, normalizer, pre_tokenizer, decoder, options) in CASES.items():
        parts = {"version": "1.0", "truncation": None, "padding": None,
                 "added_tokens": added_tokens(len(vocabularies[vocabulary]["vocab"])), "normalizer": normalizer,
                 "pre_tokenizer": pre_tokenizer, "post_processor": None, "decoder": decoder,
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                           "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                           "ignore_merges": False, **options}}
        whole = {**parts, "model": {**parts["model"], **vocabularies[vocabulary]}}
        oracle = tokenizers.Tokenizer.from_str(json.dumps(whole))
        encode = lambda: [oracle.encode(text, add_special_tokens=False).ids for text in texts]
        as_tokens = encode()
        oracle.encode_special_tokens = True
        as_text = encode()
        # Only where the two differ: most texts spell no special token.
        differing = [[i, ids] for i, (ids, other) in enumerate(zip(as_text, as_tokens)) if ids != other]
        lists = []
        if decoder not in decoders_seen:
            decoders_seen.append(decoder)
            lists = random_ids(vocabularies[vocabulary]["vocab"], oracle.get_vocab_size())
        cases.append({"name": name, "vocabulary": vocabulary, "tokenizer": parts, "ids": as_tokens,
                      "ids_as_text": differing,
                      "decoded": [oracle.decode(ids, skip_special_tokens=False) for ids in as_tokens],
                      "lists": [[ids, oracle.decode(ids, skip_special_tokens=False), oracle.decode(ids)]
                                for ids in lists]})
    before = []
    bytes_case = {**cases[0]["tokenizer"], "model": {**cases[0]["tokenizer"]["model"], **vocabularies["bytes"]}}
    for name, post_processor in POST_PROCESSORS.items():
        oracle = tokenizers.Tokenizer.from_str(json.dumps({**bytes_case, "post_processor": post_processor}))
        before.append({"name": name, "post_processor": post_processor, "ids": before_document(oracle)})
    # A case and a vocabulary a line, and a line for every text.
    dump = lambda value: json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    text = ('{"vocabularies":{\n' + ",\n".join(f"{dump(k)}:{dump(v)}" for k, v in vocabularies.items()) + "},\n"
            '"texts":[\n' + ",\n".join(map(dump, texts)) + "],\n"
            '"cases":[\n' + ",\n".join(map(dump, cases)) + "],\n"
            '"before_document":[\n' + ",\n".join(map(dump, before)) + "]}\n")
    if "--check" in sys.argv:
        sys.exit(0 if TARGET.read_text() == text else f"{TARGET} differs")
    TARGET.write_text(text)
    print(TARGET, len(text))


main()
