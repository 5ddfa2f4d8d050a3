#!/usr/bin/env bash
# bundle.sh FOLDER: all fuzzers, and the test of random recipes, with their seeds and the libraries they
# need, for a machine with many cores and no compiler: there, fuzz_all.sh and recipes_all.sh run them. The
# C library isn't taken along. FOLDER.tar.xz is made next to it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
folder=$1
if grep -q '^SHERD_NATIVE:BOOL=ON' build/cpu/CMakeCache.txt build/cpu-fuzz/CMakeCache.txt; then
  echo "bundle: the build is for this machine's own processor (SHERD_NATIVE); configure it without" >&2
  exit 2
fi
mapfile -t fuzzers < <(tests/fuzz/run.sh)
programs=("${fuzzers[@]/#/build/cpu-fuzz/tests/fuzz/fuzz_}" build/cpu/tests/engine_random_recipe_tests)
rm -rf "$folder"
mkdir -p "$folder/bin" "$folder/lib"
for program in "${programs[@]}"; do strip -o "$folder/bin/$(basename "$program")" "$program"; done
# ldd's third column is where a library was found.
for program in "${programs[@]}"; do ldd "$program"; done | awk '$2 == "=>" && $3 ~ /^\// {print $3}' |
  sort -u | while read -r library; do
    case $(basename "$library") in
      libc.so* | libm.so* | libpthread.so* | libdl.so* | librt.so* | libresolv.so* | ld-linux*) ;;
      *) strip -o "$folder/lib/$(basename "$library")" "$library" ;;
    esac
  done
cp -r tests/fuzz/corpus tests/fuzz/*.dict tests/fuzz/fuzz_all.sh \
  tests/engine/random_recipe/recipes_all.sh "$folder"
XZ_OPT=-9e tar -C "$(dirname "$folder")" -cJf "$folder.tar.xz" "$(basename "$folder")"
du -sh "$folder" "$folder.tar.xz"
