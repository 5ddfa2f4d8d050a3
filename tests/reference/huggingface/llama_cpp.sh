#!/usr/bin/env bash
# llama_cpp.sh PROGRAM [NAME…]: installs what llama_cpp.py needs into build/gguf-venv (2 GB) and build/gguf, and runs it
# with PROGRAM (sherd). The ctest `gguf`.
set -euo pipefail
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
build=$(realpath "$here/../../..")/build
python=$build/gguf-venv/bin/python
python3 "$here/../install.py" "$build/gguf-venv" "$here/gguf_requirements.txt"
sources=$build/gguf/llama_cpp_python-0.3.36
if [ ! -e "$sources" ]; then
  "$python" -m pip download -q --no-deps --no-binary :all: -d "$build/gguf" llama-cpp-python==0.3.36
  rm -rf "$sources.part"
  mkdir "$sources.part"
  tar -xzf "$sources.tar.gz" -C "$sources.part" --strip-components 2 --wildcards '*/vendor/llama.cpp'
  mv "$sources.part" "$sources"
fi
exec "$python" "$here/llama_cpp.py" "$1" "$sources/llama.cpp/convert_hf_to_gguf.py" "${@:2}"
