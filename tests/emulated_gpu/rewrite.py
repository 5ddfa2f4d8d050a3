"""Rewrites CUDA's launches `kernel<<<configuration>>>(arguments)` as calls of the emulated GPU.

usage: rewrite.py FROM TO
"""
import re
import sys


def closing(text, at):
    """Where the bracket that opens at `at` closes."""
    depth = 0
    for i in range(at, len(text)):
        if text[i] in "([{":
            depth += 1
        elif text[i] in ")]}":
            depth -= 1
            if depth == 0:
                return i
    raise SystemExit("a bracket isn't closed")


def rewrite(text):
    text = re.sub(r"extern __shared__ float (\w+)\[\];",
                  r"static float* \1 = reinterpret_cast<float*>(emulated::shared_memory);", text)
    text = text.replace("check_cuda(cudaGetLastError(), kernel);", "emulated::launched(kernel);")
    launch = re.compile(r"([A-Za-z_]\w*(?:<[^<>;]*>)?)\s*<<<(.*?)>>>\(", re.S)
    while match := launch.search(text):
        open_at = match.end() - 1
        end = closing(text, open_at)
        kernel, configuration, arguments = match[1], match[2], text[open_at + 1:end]
        # A braced or plain first value becomes a dim3 in the parameter.
        call = (f"emulated::start(\"{kernel}\", {configuration}, [=](const auto&... emulated_arguments) "
                f"{{ {kernel}(emulated_arguments...); }}, {arguments})")
        text = text[:match.start()] + call + text[end + 1:]
    return text


with open(sys.argv[1]) as source:
    rewritten = rewrite(source.read())
with open(sys.argv[2], "w") as target:
    target.write(f'#line 1 "{sys.argv[1]}"\n{rewritten}')
