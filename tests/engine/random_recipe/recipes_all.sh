#!/usr/bin/env bash
# recipes_all.sh COUNT JOBS OUT [FIRST [SECONDS]]: the random recipes FIRST (1000) to FIRST + COUNT, JOBS
# processes at a time with a core each. After SECONDS none is begun any more. A recipe that fails is kept
# with the output, and the next one follows.
#
# In OUT: summary.txt and, if recipes failed, findings.tar.gz. Exit code 1: one failed. The program is the
# one next to this script (tests/fuzz/bundle.sh), or that of build/cpu.
set -euo pipefail
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
[ $# -ge 3 ] || { echo "recipes_all.sh COUNT JOBS OUT [FIRST [SECONDS]]" >&2; exit 2; }
count=$1 jobs=$2 first=${4:-1000} limit=${5:-1000000000}
mkdir -p "$3"
out=$(realpath "$3")
program=$here/bin/engine_random_recipe_tests
[ -x "$program" ] || program=$here/../../../build/cpu/tests/engine_random_recipe_tests
[ -x "$program" ] || { echo "recipes_all: there is no $program" >&2; exit 2; }
mapfile -t cores < <(taskset -cp $$ | sed 's/.*: //' | tr , '\n' |
  awk -F- '{ for (i = $1; i <= ($2 == "" ? $1 : $2); ++i) print i }')

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/findings"

# Recipes $1 to $2, which isn't one of them. Lines in runs.WORKER: "tried N" and "failed N".
try_recipes() {  # FIRST END WORKER
  local next=$1 last log=$work/log.$3
  while [ "$next" -lt "$2" ]; do
    if SHERD_RECIPES=$next..$2 taskset -c "${cores[$3 % ${#cores[@]}]}" "$program" \
      --gtest_filter='RandomRecipeSlow.*' >"$log" 2>&1; then
      echo "tried $(($2 - next))" >>"$work/runs.$3"
      return
    fi
    last=$(sed -n 's/^recipe \([0-9]*\)$/\1/p' "$log" | tail -n 1)
    cp "$log" "$work/findings/recipe_${last:-$next}.log"
    echo "failed ${last:-$next}" >>"$work/runs.$3"
    [ -n "$last" ] || last=$next
    echo "tried $((last + 1 - next))" >>"$work/runs.$3"
    next=$((last + 1))
  done
}

# Worker K takes the Kth of every JOBS pieces.
worker() {  # NUMBER
  local piece=20 begin end
  for ((begin = first + $1 * piece; begin < first + count; begin += jobs * piece)); do
    [ "$SECONDS" -lt "$limit" ] || return 0
    end=$((begin + piece < first + count ? begin + piece : first + count))
    try_recipes "$begin" "$end" "$1"
  done
}

SECONDS=0
for ((number = 0; number < jobs; ++number)); do touch "$work/runs.$number" && worker "$number" & done
wait

{
  echo "$(date -u +%FT%TZ), $jobs at a time: recipes from $first on, in $SECONDS s"
  cat "$work"/runs.* | awk '$1 == "tried" { tried += $2 } $1 == "failed" { ++failed; list = list " " $2 }
    END { printf "%d tried, %d failed%s\n", tried, failed, failed ? ":" list : "" }'
} | tee "$out/summary.txt"
[ -z "$(ls "$work/findings")" ] || { tar -C "$work" -czf "$out/findings.tar.gz" findings; exit 1; }
