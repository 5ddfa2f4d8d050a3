#!/usr/bin/env bash
# fuzz_all.sh SECONDS JOBS OUT [LEARNT]: all fuzzers, JOBS processes at a time, for SECONDS in all. Each of
# the JOBS workers gives every fuzzer an equal part of the time, one after the other; neighbours begin with
# different ones, and no two processes have the same seed. A finding is kept, and the fuzzer continues
# with another seed.
#
# In OUT, at most three files: summary.txt; findings.tar.gz, inputs and logs, if there are findings; and
# learnt.tar.gz, the inputs that reached new code: LEARNT of a later run begins with them. Exit code 1: a
# finding. FUZZ_SEED=N (summary.txt names it) starts with the same seeds again, and each process learns for
# itself: then its inputs are the same on every machine, as far as the time allows. FUZZERS='tokens set' runs
# these alone.
#
# The fuzzers are those next to this script (bundle.sh), or those of build/cpu-fuzz.
set -euo pipefail
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
[ $# -ge 3 ] || { echo "fuzz_all.sh SECONDS JOBS OUT [LEARNT]" >&2; exit 2; }
seconds=$1 jobs=$2 learnt=${4:-}
mkdir -p "$3"
out=$(realpath "$3")
programs=$here/bin
[ -d "$programs" ] || programs=$here/../../build/cpu-fuzz/tests/fuzz
read -ra fuzzers <<<"${FUZZERS:-$(cd "$here/corpus" && echo *)}"
for name in "${fuzzers[@]}"; do
  [ -x "$programs/fuzz_$name" ] || { echo "fuzz_all: there is no $programs/fuzz_$name" >&2; exit 2; }
done
seed=${FUZZ_SEED:-$(date +%s)}
turn=$((seconds / ${#fuzzers[@]}))  # seconds of one fuzzer in one worker
[ "$turn" -ge 1 ] || { echo "fuzz_all: ${#fuzzers[@]} fuzzers need ${#fuzzers[@]} seconds or more" >&2; exit 2; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for name in "${fuzzers[@]}"; do mkdir -p "$work/corpus/$name" "$work/findings/$name"; done
mkdir "$work/logs"
[ -z "$learnt" ] || tar -C "$work" -xzf "$learnt"
export UBSAN_OPTIONS=print_stacktrace=1 ASAN_OPTIONS=allocator_may_return_null=1:detect_leaks=1
# Leaks are looked for by tracing the process, which some containers don't allow.
leaks=found
said=$("$programs/fuzz_${fuzzers[0]}" -runs=0 "$here/corpus/${fuzzers[0]}" 2>&1) || true
if grep -q 'LeakSanitizer has encountered a fatal error' <<<"$said"; then
  leaks="not looked for: not allowed here"
  ASAN_OPTIONS=allocator_may_return_null=1:detect_leaks=0
fi

# One line in $work/runs: fuzzer, exit status, executions, seconds, processor seconds.
one_process() {  # NAME SEED SECONDS
  local name=$1 log=$work/logs/$1.$2 dictionary=() status=0 times learnt=$work/corpus/$1
  if [ -n "${FUZZ_SEED:-}" ]; then  # what another process finds at another time would change the inputs
    learnt+=/$2
    mkdir -p "$learnt"
  fi
  [ ! -f "$here/$name.dict" ] || dictionary=("-dict=$here/$name.dict")
  # Pieces larger than the memory of a small machine mustn't be asked for, whatever an input says.
  TIMEFORMAT='%R %U %S'
  times=$({ time "$programs/fuzz_$name" -seed="$2" -max_total_time="$3" -timeout=20 -report_slow_units=20 \
    -rss_limit_mb=2048 -malloc_limit_mb=1024 -print_final_stats=1 \
    -artifact_prefix="$work/findings/$name/" "${dictionary[@]}" \
    "$learnt" "$here/corpus/$name" >/dev/null 2>"$log"; } 2>&1) || status=$?
  [ "$status" -eq 0 ] || cp "$log" "$work/findings/$name/log.$2"
  awk -v name="$name" -v status="$status" -v times="$times" \
    '/^stat::number_of_executed_units:/ { runs = $2 }
     END { split(times, t, " "); printf "%s %d %d %.1f %.1f\n", name, status, runs, t[1], t[2] + t[3] }' \
    "$log" >>"$work/runs"
  rm "$log"
  return "$status"
}

worker() {  # NUMBER
  local turn_number name end left next=$((seed + $1 * 100000))
  for turn_number in "${!fuzzers[@]}"; do
    name=${fuzzers[(turn_number + $1) % ${#fuzzers[@]}]}
    end=$(((turn_number + 1) * turn))  # reading what others learnt may take longer than a turn
    for _ in {1..20}; do  # a fuzzer that finds something at once doesn't repeat it forever
      left=$((end - SECONDS))
      [ "$left" -gt 0 ] || break
      one_process "$name" $((next++)) "$left" || true
    done
  done
}

touch "$work/runs"
SECONDS=0
for ((number = 0; number < jobs; ++number)); do worker "$number" & done
wait

{
  echo "$(date -u +%FT%TZ), $jobs at a time, $seconds s, first seed $seed, leaks $leaks"
  printf '%-10s %9s %12s %9s %12s %9s %8s\n' fuzzer processes executions seconds cpu_seconds findings learnt
  for name in "${fuzzers[@]}"; do
    awk -v name="$name" -v learnt="$(find "$work/corpus/$name" -type f | wc -l)" \
      '$1 == name { ++n; runs += $3; wall += $4; cpu += $5; found += $2 != 0 }
       END { printf "%-10s %9d %12d %9.0f %12.0f %9d %8d\n", name, n, runs, wall, cpu, found, learnt }' "$work/runs"
  done
  awk '{ ++n; runs += $3; wall += $4; cpu += $5; found += $2 != 0 }
       END { printf "%-10s %9d %12d %9.0f %12.0f %9d\n", "all", n, runs, wall, cpu, found }' "$work/runs"
} | tee "$out/summary.txt"
tar -C "$work" -czf "$out/learnt.tar.gz" corpus
if [ -n "$(find "$work/findings" -type f -print -quit)" ]; then
  tar -C "$work" -czf "$out/findings.tar.gz" findings
  # For machines from which files can't be fetched: the output, with the input in base64 at its end.
  find "$work/findings" -name 'log.*' | sort | head -n 3 | while read -r log; do
    printf '\n== %s\n' "${log#"$work/findings/"}"
    tail -n 80 "$log"
  done
  exit 1
fi
