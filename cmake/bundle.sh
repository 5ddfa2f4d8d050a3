#!/usr/bin/env bash
# bundle.sh BUILD FOLDER [small]: BUILD's programs, tests and benchmarks with the libraries that a machine with
# a driver and CUDA 13 lacks. CUDA's own libraries and the C library aren't taken along. The programs
# look for their libraries beside themselves, so the folder can lie anywhere. small: without Parquet, and
# without tests that need no GPU.
set -euo pipefail
build=$1 folder=$2 small=${3:-}
grep -q '^SHERD_NATIVE:BOOL=ON' "$build/CMakeCache.txt" && {
  echo "bundle: $build is compiled for this machine's own processor (SHERD_NATIVE); configure it without" >&2
  exit 2
}
rm -rf "$folder"
mkdir -p "$folder/bin" "$folder/lib" "$folder/tests"
mapfile -t programs < <(find "$build" -maxdepth 2 -type f -perm -u+x ! -name '*.so*' ! -path '*/CMakeFiles/*' |
  if [ "$small" = small ]; then grep -E '/(sherd|cuda_tests|sherd_[a-z_]*)$'; else cat; fi)
for program in "${programs[@]}"; do
  strip -o "$folder/bin/$(basename "$program")" "$program"
done
# ldd's third column is where a library was found.
for program in "${programs[@]}"; do ldd "$program"; done | awk '$2 == "=>" && $3 ~ /^\// {print $3}' |
  sort -u | while read -r library; do
    case $(basename "$library") in
      libcuda* | libcudart* | libcublas* | libcudnn* | libcupti* | libnvrtc* | libnvJit* | libnccl* | libnvidia*) ;;           # the machine's own
      libc.so* | libm.so* | libpthread.so* | libdl.so* | librt.so* | libresolv.so* | ld-linux*) ;;  # the machine's own
      *) strip -o "$folder/lib/$(basename "$library")" "$library" ;;
    esac
  done
# Loaded when a Parquet or Arrow file is read; it looks for Arrow beside itself.
if [ -f "$build/libsherd_arrow.so" ] && [ "$small" != small ]; then
  strip -o "$folder/lib/libsherd_arrow.so" "$build/libsherd_arrow.so"
  ldd "$build/libsherd_arrow.so" | awk '$3 ~ /lib(arrow|parquet)[.]so/ {print $3}' |
    while read -r library; do cp -L "$library" "$folder/lib"; done
fi
cp -r recipes docs "$folder"
cp tests/gpu_check.sh "$folder/tests"
tar -C "$(dirname "$folder")" -cJf "$folder.tar.xz" "$(basename "$folder")"
du -sh "$folder" "$folder.tar.xz"
