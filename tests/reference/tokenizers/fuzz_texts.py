"""Strings that find differences between tokenizers."""
import random

FRAGMENTS = (
    "'s 'S 't 'T 're 'RE 've 'VE 'm 'M 'll 'LL 'd 'D 'ſ ſ ' ’s don't I'LL we'Re".split(" ")
    + [" ", "  ", "   ", "\t", "\n", "\n\n", "\r", "\r\n", "\r\n\r\n", " \n", "\n ", "\x0b", "\x0c", "\x1c", "\x85",
       "\xa0", "\u1680", "\u180e", "\u2000", "\u2009", "\u200b", "\u200c", "\u200d", "\u2028", "\u2029", "\u202f",
       "\u205f", "\u2060", "\u3000", "\ufeff", "\ufffd", "\0", "\x7f", "▁", "▁▁", "▁a", "Ġ", "Ċ"]
    + "a b the The THE hello Hello world WORLD xyz camelCase HTTPServer snake_case naïve Straße İstanbul ǅ ŉ ﬁ".split()
    + "0 1 12 123 1234 12345 3.14 1,000 ² ½ Ⅷ ٣ ४ ５ 〇 一 𝟘".split()
    + ". , ! ? ... -- — “ ” « » # $ % & * + / = < > | ~ ^ ` @ \\ // /* */ {} [] () ;; :: $1 € ∑ ≠ © ™ ° ´ ¨".split()
    + "привет Мир Ёлка 你好 世界 中文 日本語 ひらがな カタカナ ｶﾀｶﾅ 한국어 각 각 ᄀ ᆨ ไทย हिन्दी العربية עברית தமிழ் ქართული ᏣᎳᎩ 𐐷 𑢠".split()
    + ["e\u0301", "é", "o\u0308\u0323", "\u0301", "A\u030a", "Å", "\u0344", "\u0f73", "\u1e9b\u0323", "\U0001d15e",
       "\u09c7\u09be", "\u0cc6\u0cc2", "\u2126", "\uf900", "\U0002f800", "\u3400", "\U00020000", "\U00030000",
       "\U00031350", "\U000323af", "\U00013440", "\U00013460", "\U0001e030", "\U00010d40", "\u1c89", "\ua7cb",
       "😀", "👍🏽", "👨\u200d👩\u200d👧", "🇩🇪", "❤\ufe0f", "\U000e0041", "\ue000", "\U0010ffff", "\ufdd0"]
    + "<s> </s> <unk> <pad> <bos> <eos> <|endoftext|> <|im_start|> <|im_end|> <|begin_of_text|> <|eot_id|> <|end|> "
      "<|user|> <|assistant|> <mask> [INST] [/INST] <0x0A> <0xE2> <fim_prefix> <｜begin▁of▁sentence｜> <think> <tool_call>"
      .split()
)


def fuzz_text(draw, specials):
    parts = []
    for _ in range(draw.randint(1, 14)):
        kind = draw.random()
        if kind < 0.55:
            parts.append(draw.choice(FRAGMENTS))
        elif kind < 0.60:
            parts.append(draw.choice(specials))
        elif kind < 0.64:
            parts.append(draw.choice(FRAGMENTS) * draw.randint(2, 40))
        elif kind < 0.74:
            parts.append("".join(chr(draw.randrange(0x20, 0x7F)) for _ in range(draw.randint(1, 8))))
        elif kind < 0.84:
            parts.append("".join(chr(draw.choice((0xA0, 0x400, 0x590, 0x900, 0x1100, 0x2000, 0x3000, 0xAC00))
                                     + draw.randrange(0x80)) for _ in range(draw.randint(1, 5))))
        else:
            for _ in range(draw.randint(1, 5)):
                point = draw.randrange(0x110000) if draw.random() < 0.5 else draw.randrange(0x3400)
                parts.append("\ufffd" if 0xD800 <= point < 0xE000 else chr(point))
        if draw.random() < 0.4:
            parts.append(" ")
    return "".join(parts)


def fuzz_texts(count, seed, specials):
    draw = random.Random(seed)
    return [fuzz_text(draw, specials or ["<s>"]) for _ in range(count)]
