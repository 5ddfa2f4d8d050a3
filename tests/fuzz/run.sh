#!/usr/bin/env bash
# Runs one fuzzer, or names them all: tests/fuzz/run.sh [NAME [SECONDS | merge | seeds]]. `./dev fuzz`
# builds it first. What it learns stays in build/cpu-fuzz/corpus/NAME; `merge` takes from there what
# reaches code that the committed seeds, tests/fuzz/corpus/NAME, don't reach; `seeds` runs those alone.
# Exit code 1: a finding, kept in build/cpu-fuzz/findings/NAME; giving that file to
# build/cpu-fuzz/tests/fuzz/fuzz_NAME runs it again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
name=${1:-}
if [ -z "$name" ]; then
  for file in tests/fuzz/*_fuzz.cpp; do basename "$file" _fuzz.cpp; done
  exit
fi
program=build/cpu-fuzz/tests/fuzz/fuzz_$name
seeds=tests/fuzz/corpus/$name learnt=build/cpu-fuzz/corpus/$name
findings=build/cpu-fuzz/findings/$name/
mkdir -p "$seeds" "$learnt" "$findings"
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
export OPENBLAS_NUM_THREADS=1
if [ "${2:-}" = merge ]; then
  exec "$program" -merge=1 -max_len=2048 "$seeds" "$learnt"
fi
if [ "${2:-}" = seeds ]; then
  exec "$program" -runs=0 -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=1024 \
    -artifact_prefix="$findings" "$seeds"
fi
dictionary=()
[ ! -f "tests/fuzz/$name.dict" ] || dictionary=("-dict=tests/fuzz/$name.dict")
# Pieces larger than the memory of a small machine mustn't be asked for, whatever an input says.
exec "$program" -max_total_time="${2:-60}" -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=1024 \
  -print_final_stats=1 -artifact_prefix="$findings" "${dictionary[@]}" "$learnt" "$seeds"
