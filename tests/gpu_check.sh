#!/usr/bin/env bash
# gpu_check.sh PROGRAMS REPORT [--tune RECIPE... | --speed]: what a machine with a GPU can show in less than 10 minutes. PROGRAMS
# is a build folder or a bundle; REPORT is a Markdown file, written as it goes. The whole output of a section that fails
# is kept next to it, as REPORT.N.log. Ends with 0 if all of it passed, 3 where there is no GPU.
# --tune: instead, which of cuBLASLt's algorithms is the fastest for each matmul of the recipes (those for GPUs that need
# nothing else, if none is named), written next to sherd, where it finds them.
# --speed: instead, tokens/s of whole steps: the recipes for one GPU, longer sequences, a mixture of experts, Muon.
set -uo pipefail
programs=$(realpath "$1")
report=$(realpath -m "$2")
root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

program() { find "$programs" -type f -perm -u+x -name "$1" | head -1; }
tune='' speed='' recipes=()
[ "${3:-}" != --speed ] || speed=yes
if [ "${3:-}" = --tune ]; then
  tune=yes recipes=("${@:4}")
  [ ${#recipes[@]} -gt 0 ] || recipes=("$root"/recipes/*h200.yaml "$root"/recipes/llama_1b.yaml)
fi
sherd=$(program sherd) tests=$(program cuda_tests) bench=$(program sherd_cuda_bench) tuner=$(program sherd_matmul_tune)
# Limits add up to 13 minutes; a whole check took 105 s on an H100.
for found in "$sherd" "$tests" "$bench"; do
  [ -n "$found" ] || { echo "gpu-check: $programs lacks sherd, cuda_tests or sherd_cuda_bench" >&2; exit 2; }
done
[ -z "$tune" ] || [ -n "$tuner" ] || { echo "gpu-check: $programs lacks sherd_matmul_tune" >&2; exit 2; }

# Where CUDA's libraries came as Python packages, the loader doesn't look for them by itself. CUDA 12's
# have the same names, so a file's own mark decides: what NCCL says of itself, the package that brought
# it, or its path.
cuda_of() {  # FILE: 13, 12, ..., or nothing where it can't be told
  local file=$1 package mark
  mark=$(grep -aom1 'NCCL version [0-9.]*+cuda[0-9]*' "$file" | grep -o '[0-9]*$')
  if [ -z "$mark" ] && [[ $file =~ ^(.*)/nvidia/([a-z_]*)/lib/ ]]; then
    for package in "${BASH_REMATCH[1]}/nvidia_${BASH_REMATCH[2]}"_cu[0-9]*; do
      [[ $package =~ _cu([0-9]+)[^/]*$ ]] && mark=${BASH_REMATCH[1]}
    done
  fi
  [ -z "$mark" ] && [[ $file =~ cu(da)?-?(1[0-9]) ]] && mark=${BASH_REMATCH[2]}
  echo "$mark"
}
LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
read -ra roots <<<"${SHERD_LIBRARY_ROOTS:-/usr/local /opt /usr/lib/python3* ${VIRTUAL_ENV:-}}"
for library in libcudnn.so.9 libnccl.so.2 libcublasLt.so.13 libnvrtc.so.13; do
  ldconfig -p | grep -q "$library" && continue
  chosen='' unknown=''
  # shellcheck disable=SC2068  # a root may be a pattern
  while read -r found; do
    case $(cuda_of "$found") in
      13) chosen=${chosen:-$found} ;;
      '') unknown=${unknown:-$found} ;;
    esac
  done < <(find ${roots[@]} -name "$library" 2>/dev/null)
  chosen=${chosen:-$unknown}
  [ -z "$chosen" ] || LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$(dirname "$chosen")
done
export LD_LIBRARY_PATH
info=$("$sherd" info) || {
  echo "gpu-check: $sherd doesn't start: $(ldd "$sherd" | grep 'not found' | tr -s '\n\t ' ' ')" >&2
  exit 2
}
gpus=$(grep -c 'compute capability' <<<"$info")
if [ "$gpus" -eq 0 ]; then
  echo "gpu-check: $(grep 'no GPU' <<<"$info" | sed 's/^ *//')" >&2
  exit 3
fi

failed=0 sections=0
say() { printf '%s\n' "$@" | tee -a "$report"; }  # a line for each argument
# section TITLE SECONDS COMMAND...: its output's end in the report, and whether it passed. A test program
# must have passed at least one test: one whose filter selects nothing ends with 0 too.
section() {
  local title=$1 limit=$2 begin=$SECONDS status=0 verdict=passed
  shift 2
  timeout "$limit" "$@" >"$scratch/out" 2>&1 || status=$?
  sections=$((sections + 1))
  [ $status -eq 0 ] || verdict=FAILED
  if [[ " $* " == *" --gtest_filter="* ]] && ! grep -qE '^\[  PASSED  \] [1-9]' "$scratch/out"; then
    verdict="FAILED: no test was selected and passed"
  fi
  say "" "## $title" "" '```'
  tail -n "${lines:-25}" "$scratch/out" | tee -a "$report"
  say '```' "status $status ($verdict), $((SECONDS - begin)) s"
  [ "$verdict" = passed ] && return
  failed=1
  cp "$scratch/out" "$report.$sections.log"
}

: >"$report"
say "# GPU check of $(date -u +%F)" "" '```' "$info"
say "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>&1)" '```'

if [ -n "$tune" ]; then
  table=$(dirname "$sherd")/matmul_algorithms.txt
  lines=400 section "Matmul algorithms: $table" 1200 "$tuner" "$table" "${recipes[@]}"
  exit $failed
fi

if [ -n "$speed" ]; then
  # Which tokens they are doesn't change the time.
  steps() {  # TITLE RECIPE STEPS SET...
    local title=$1 recipe=$2 steps=$3 sets=(data.format=bytes "data.path=$root/docs" 'data.validation_path=""' data.validation_fraction=0
      training.eval_interval=0 lr_scheduler.warmup_steps=1 checkpoint.interval=0 "training.max_steps=$3"
      metrics.log_interval=1 "run.output_dir=$scratch/$((sections + 1))" "${@:4}")
    lines=30 section "$title: $steps steps of $recipe${4:+, ${*:4}}" 120 "$sherd" train "$root/recipes/$recipe.yaml" \
      "${sets[@]/#/--set=}"
  }
  steps "GPT-2" gpt2_124m_h200 12
  steps "GPT-2, bit-identical" gpt2_124m_h200 6 run.deterministic=true
  steps "1 B" llama_1b_h200 5
  steps "Sequences of 4,096" llama_1b_h200 4 training.seq_length=4096 training.global_batch_size=128 \
    training.micro_batch_size=4
  steps "Experts" llama_1b_h200 4 moe.num_experts=8 moe.experts_per_token=2 moe.ffn_hidden_size=2048
  steps "Many small experts" llama_1b_h200 3 moe.num_experts=64 moe.experts_per_token=8 moe.ffn_hidden_size=256
  steps "Many small experts, grouped" llama_1b_h200 3 moe.num_experts=64 moe.experts_per_token=8 \
    moe.ffn_hidden_size=256 moe.grouped_gemm=true
  steps "Muon" llama_1b_h200 3 optimizer.type=muon optimizer.muon_dtype=bf16
  exit $failed
fi

section "Kernels against their CPU twins and the oracle" 200 "$tests" --gtest_filter='-CudaRun.*:*Slow.*'
section "Runs: the ladder with 2 and 4 ranks on one GPU, memory, graphs, checkpoints" 250 \
  "$tests" --gtest_filter='CudaRun.*'
lines=80 section "Kernels against this GPU's bounds" 50 "$bench"

# A real run at the sizes of the quickstart, on the text that is in the repository. Its two ranks have a
# GPU each where there are two.
share=()
[ "$gpus" -ge 2 ] || share=(--share-device)
text=$scratch/text
mkdir "$text" && cat "$root"/docs/*.md >"$text/docs.txt"
lines=40 section "A training of 200 steps on the GPU" 50 "$sherd" train "$root/recipes/quickstart.yaml" \
  --set run.device=cuda --set "run.output_dir=$scratch/run" --set "data.path=$text" \
  --set training.max_steps=200 --set mixed_precision.param_dtype=bf16 "${share[@]}"

if command -v compute-sanitizer >/dev/null; then
  # A test takes about 7 seconds here: racecheck and initcheck get those whose blocks share memory.
  lines=6 section "compute-sanitizer, memcheck, on the small suite" 60 compute-sanitizer \
    --tool memcheck --error-exitcode 9 "$tests" --gtest_filter='*CudaPointwise*:*CudaRows*:*CudaCrossEntropy*'
  for tool in racecheck initcheck; do
    lines=6 section "compute-sanitizer, $tool, on sums over rows" 60 compute-sanitizer \
      --tool "$tool" --error-exitcode 9 "$tests" --gtest_filter='*CudaRows*bf16:*CudaCrossEntropy*bf16'
  done
fi
say "" "$([ $failed -eq 0 ] && echo 'All of it passed.' || echo 'Something FAILED, see above.') $SECONDS s."
exit $failed
