#!/usr/bin/env bash
# aarch64.sh [ROOM…]: compiles the committed state of this checkout for aarch64 in a bare Debian 12, with warnings as
# errors, and runs the tests of each ROOM (core, kernels, …; default: these two) under QEMU. The host's code of the CUDA
# path is compiled, too, where this machine has CUDA's headers (`./dev deps cuda`). As root; takes longer than a build.
# Exit code 77: no root can be made here.
#
#   SHERD_CCACHE=FOLDER   what was compiled there before (made if it isn't there)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/root.sh"
need_roots
source=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
rooms=("$@")
[ $# -gt 0 ] || rooms=(core kernels)
folder=$(mktemp -d)
trap 'remove_root; rm -rf "$folder"' EXIT
tools='crossbuild-essential-arm64 cmake ninja-build ccache git pkg-config python3 qemu-user'
headers='libeigen3-dev libcli11-dev nlohmann-json3-dev'  # of any processor
libraries='libfmt-dev libyaml-cpp-dev libhdf5-dev libxxhash-dev libpcre2-dev libicu-dev zlib1g-dev libzstd-dev
  libcpp-httplib-dev libgtest-dev'

say "a bare Debian 12 with a compiler for aarch64"
make_root bookworm "$folder/system" ca-certificates
if [ -n "${SHERD_CCACHE:-}" ]; then
  mkdir -p "$SHERD_CCACHE"
  bind "$(realpath "$SHERD_CCACHE")" /root/.cache/ccache
fi
in_root root 'dpkg --add-architecture arm64 && apt-get update -q -q'
# shellcheck disable=SC2086
in_root root apt-get install -y -q -q --no-install-recommends $tools $headers \
  $(printf '%s:arm64 ' $libraries) '>/dev/null'
git -c safe.directory="$source" clone -q --no-hardlinks "$source" "$system/root/sherd"

say "compile"
in_root root 'cd sherd && cmake -S . -B build/aarch64 -G Ninja -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake' \
  '-DSHERD_WERROR=ON >/dev/null && cmake --build build/aarch64 --target sherd' "${rooms[@]/%/_tests}"
in_root root 'cd sherd && qemu-aarch64 build/aarch64/sherd info'
if [ -e /usr/local/cuda/include/cudnn.h ] && [ -e "$source/build/deps/cudnn_frontend/include" ]; then
  say "the host's code of the CUDA path"
  bind "$(realpath /usr/local/cuda/include)" /cuda
  bind "$source/build/deps/cudnn_frontend" /cudnn
  # shellcheck disable=SC2016
  in_root root 'cd sherd && find core kernels sharding engine checkpoint optim \( -path "*/cuda/*.cpp" -o' \
    '-path "core/cuda*.cpp" -o -name nccl.cpp \) | sort | while read -r file; do echo "$file" &&' \
    'aarch64-linux-gnu-g++ -std=c++20 -O1 -Wall -Wextra -Werror -DFMT_SHARED -DCUDNN_FRONTEND_SKIP_JSON_LIB -I.' \
    '-isystem /cuda -isystem /cudnn/include -isystem /usr/include/eigen3 -c -o /dev/null "$file" || exit 1; done'
else
  echo "no headers of CUDA here: the host's code of the CUDA path isn't compiled"
fi
for room in "${rooms[@]}"; do
  say "tests of $room"
  in_root root "cd sherd && ctest --test-dir build/aarch64 --output-on-failure -R '^$room\$'"
done
say passed
