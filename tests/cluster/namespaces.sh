#!/usr/bin/env bash
# namespaces.sh [--rate RATE] [--nodes N] COMMAND [WORDS...]: this machine as a cluster. Each node is a network
# namespace with a hostname and a link of its own, all on one bridge; RATE limits what each link carries, in
# either direction (tc's words: 1gbit, 200mbit; default: no limit). Needs root, iproute2 and Open MPI.
#
#   run PROCESSES SHERD-WORDS...     sherd launch over all nodes, PROCESSES on each
#   compare                          ZeRO-3 over 2 processes on each node, gathers direct and passed on,
#                                    sums formed on nodes first, and hybrid sharding, a replica on each node:
#                                    without a limit, then at RATE. Bytes that left a node in a step, counted at
#                                    its link and planned, and tokens/s, measured and predicted (predict.py)
#   forms RATE...                    ZeRO-2 with f32 reductions and bf16 gathers, and the forms of docs/slow_links.md
#                                    that send less: bytes that left a node in a step, counted and planned, how many
#                                    times fewer; and at each RATE tokens/s, and as a share of those without a limit.
#                                    Predicted is a step without a limit, on these cores that all nodes share, and
#                                    what sherd plan --cluster says that such links add to it
#   overlap                          ZeRO-3 on 2 nodes, with gathers that take 50 to 80 % as long as the
#                                    computation at RATE: what a step waits for with prefetch and without
#   servers                          the last node a parameter server whose link carries FAST (1gbit), the others
#                                    workers at RATE; then ZeRO-1 on the same nodes, and on the workers alone:
#                                    bytes sent and time on the link as planned, and
#                                    tokens/s, measured and predicted (sherd plan --cluster)
#   failures                         processes on other nodes killed, stopped and cut off: who is named, with
#                                    which code, and whether a process is left
#   restarts                         the last node dies after step 3: does the run continue without it?
#
# ROUNDS=N: of compare, forms, overlap and servers (3). FORMS='direct free': of compare or forms (all). SHERD names the program
# (build/cpu/sherd). Everything is removed at the end.
set -euo pipefail
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
source=$(realpath "$here/../..")
sherd=${SHERD:-$source/build/cpu/sherd}
rate='' nodes=2
while [ $# -gt 0 ]; do
  case $1 in
    --rate) rate=$2; shift 2 ;;
    --nodes) nodes=$2; shift 2 ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || { sed -n '2,27s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2; }
[ "$(id -u)" -eq 0 ] || { echo "namespaces: needs root, for network namespaces" >&2; exit 2; }
for tool in ip tc unshare mpirun; do
  command -v "$tool" >/dev/null || { echo "namespaces: there is no $tool" >&2; exit 2; }
done

name=sherd$$  # of the bridge, and before all other names
net=10.$((RANDOM % 200 + 20)).$((RANDOM % 250)).
work=$(mktemp -d)
clean_up() {
  local node
  for node in $(seq "$nodes"); do
    ip netns pids "$name-$node" 2>/dev/null | xargs -r kill -9 2>/dev/null || true
    ip netns del "$name-$node" 2>/dev/null || true
  done
  ip link del "$name" 2>/dev/null || true
  rm -rf "$work"
}
trap clean_up EXIT

ip link add "$name" type bridge
ip addr add "${net}254/24" dev "$name"
ip link set "$name" up
for node in $(seq "$nodes"); do
  ip netns add "$name-$node"
  ip link add "$name.$node" type veth peer name eth0 netns "$name-$node"
  ip link set "$name.$node" master "$name" up
  ip -n "$name-$node" addr add "$net$node/24" dev eth0
  ip -n "$name-$node" link set lo up
  ip -n "$name-$node" link set eth0 up
done

limit() {  # RATE, or nothing: of every link, in either direction
  local node
  for node in $(seq "$nodes"); do
    tc qdisc del dev "$name.$node" root 2>/dev/null || true
    tc -n "$name-$node" qdisc del dev eth0 root 2>/dev/null || true
    [ -n "${1:-}" ] || continue
    tc qdisc add dev "$name.$node" root tbf rate "$1" burst 256kb latency 20ms
    tc -n "$name-$node" qdisc add dev eth0 root tbf rate "$1" burst 256kb latency 20ms
  done
}
limit "$rate"

# mpirun starts its helper on a node with `agent ADDRESS COMMAND...`, as it would with ssh.
cat >"$work/agent" <<AGENT
#!/bin/sh
node=\${1##*.}
shift
exec ip netns exec $name-\$node unshare --uts sh -c "hostname node\$node; \$*"
AGENT
chmod +x "$work/agent"
export OMPI_MCA_plm_rsh_agent=$work/agent OMPI_MCA_plm_rsh_no_tree_spawn=1 OMPI_MCA_pml=ob1 \
  OMPI_MCA_btl=tcp,vader,self OMPI_MCA_btl_vader_single_copy_mechanism=none \
  OMPI_MCA_oob_tcp_if_include="${net}0/24" OMPI_MCA_btl_tcp_if_include="${net}0/24"

launch() {  # PROCESSES-PER-NODE WORDS...: on all nodes
  local each=$1 hosts='' node
  shift
  for node in $(seq "$nodes"); do hosts+=,$net$node:$each; done
  "$sherd" launch -n $((each * nodes)) --hosts "${hosts#,}" -- "$@"
}
sent() { cat "/sys/class/net/$name.1/statistics/rx_bytes"; }  # by node 1

recipe() {  # FOLDER
  mkdir -p "$1"
  [ -f "$work/text" ] || seq 200000 >"$work/text"
  cat >"$1/recipe.yaml" <<RECIPE
run: {output_dir: "$1/run", device: cpu, num_threads: 1, peer_timeout: 5}
data: {path: "$work/text", format: bytes}
model: {num_layers: 4, hidden_size: 384, num_attention_heads: 6, vocab_size: 256, positions: rope, norm: rmsnorm, activation: swiglu}
training: {seq_length: 128, global_batch_size: $((8 * nodes)), micro_batch_size: 2, max_steps: 12, eval_batches: 1}
optimizer: {type: adamw, lr: 1e-3}
lr_scheduler: {warmup_steps: 2}
zero_optimization: {stage: 3}
parallelism: {data_parallel_shard_degree: $((2 * nodes))}
metrics: {log_interval: 1, tensorboard: false}
checkpoint: {interval: 0, resume: never, on_interrupt: false}
RECIPE
}

# PROCESSES-PER-NODE FOLDER STEPS WORDS...: trains, and writes what left node 1 into the folder's `sent`.
train() {
  local each=$1 folder=$2 steps=$3 before
  shift 3
  recipe "$folder"
  rm -rf "$folder/run"
  before=$(sent)
  launch "$each" train "$folder/recipe.yaml" --set run.peer_timeout=30 "$@" --set training.max_steps="$steps" >"$folder/$steps.txt"
  echo $(($(sent) - before)) >"$folder/sent"
}

# PROCESSES-PER-NODE FOLDER WORDS...: trains; the bytes that left node 1 in a step, of a short and a long run.
few=4 many=12  # steps
trained() {
  local each=$1 folder=$2 short
  shift 2
  train "$each" "$folder" $few "$@"
  short=$(cat "$folder/sent")
  train "$each" "$folder" $many "$@"
  echo $((($(cat "$folder/sent") - short) / (many - few))) >"$folder/bytes"
}

bits() { python3 -c "import sys; t = sys.argv[1]; print(int(t[:-4]) * {'g': 10**9, 'm': 10**6}[t[-4]])" "$1"; }

# FOLDER-OF-FREE FOLDER PROCESSES-PER-NODE MICRO-STEPS DEPTH WORDS...: one line.
said() {
  local free=$1 folder=$2 each=$3 micro=$4 depth=$5
  shift 5
  "$sherd" plan "$folder/recipe.yaml" "$@" --json --ranks-per-machine "$each" >"$folder/plan.json"
  python3 "$here/predict.py" "$folder/plan.json" "$free/run/metrics.jsonl" "$(bits "$rate")" 4 "$micro" \
    "$depth" >"$folder/predicted.json"
  python3 - "$free" "$folder" <<'PYTHON'
import json, statistics, sys
def medians(folder):
    rows = [json.loads(line) for line in open(folder + "/run/metrics.jsonl")]
    rows = [row for row in rows if "tokens_per_s" in row][2:]
    return [statistics.median(row[key] for row in rows) for key in ("tokens_per_s", "exposed_comm_ms")]
free, folder = sys.argv[1:]
unlimited, slow = medians(free), medians(folder)
predicted = json.load(open(folder + "/predicted.json"))
counted = int(open(folder + "/bytes").read())
print(f"{counted:,} B from a node per step ({predicted['planned_bytes']:,} planned), "
      f"{slow[0]:.0f} tokens/s ({predicted['tokens_per_s']:.0f} predicted, "
      f"{slow[0] / predicted['tokens_per_s']:.2f}; {unlimited[0]:.0f} without a limit), "
      f"{slow[1]:.0f} ms exposed, {1000 * predicted['free_s']:.0f} ms without a limit, "
      f"{1000 * predicted['link_s']:.0f} ms on the link")
PYTHON
}

compare() {
  [ -n "$rate" ] || { echo "namespaces: compare needs --rate" >&2; exit 2; }
  local hybrid=(--set parallelism.data_parallel_shard_degree=2
    --set "parallelism.data_parallel_replicate_degree=$nodes")
  local round form
  local -A words=([direct]='--set parallelism.hierarchical=off' [passed_on]=''
    [free]='--set parallelism.sum_order=free'
    [copies]="${hybrid[*]}"
    [divided]="${hybrid[*]} --set zero_optimization.shard_optimizer_over_replicas=true")
  for round in $(seq "${ROUNDS:-3}"); do
    for form in ${FORMS:-direct passed_on free copies divided}; do
      # shellcheck disable=SC2086  # words
      limit && trained 2 "$work/free-$form" ${words[$form]}
      # shellcheck disable=SC2086
      limit "$rate" && trained 2 "$work/$form" ${words[$form]}
      # shellcheck disable=SC2086
      printf '%-10s %s\n' "$form" "$(said "$work/free-$form" "$work/$form" 2 2 1 ${words[$form]})"
      rm -rf "$work/free-$form" "${work:?}/$form"
    done
  done
}

# FOLDER-OF-FREE FOLDER RATE WORDS...: a line on how fast a form is at that rate.
form_said() {
  local free=$1 folder=$2 at=$3
  shift 3
  local bytes
  for bytes in $(($(bits "$at") / 8)) 1000000000000; do
    cat >"$folder/cluster.yaml" <<CLUSTER
machines: $nodes
ranks_per_machine: 2
device: cpu
between: {bandwidth: ${bytes}B, latency_us: 100}
CLUSTER
    "$sherd" plan "$folder/recipe.yaml" "$@" --cluster "$folder/cluster.yaml" --json >"$folder/time-$bytes.json"
  done
  "$sherd" plan "$folder/recipe.yaml" "$@" --cluster "$folder/cluster.yaml" --exchanges --json >"$free/exchanges.json"
  python3 - "$free" "$folder" "$(($(bits "$at") / 8))" <<'PYTHON'
import json, sys
def speed(folder):
    rows = [json.loads(line) for line in open(folder + "/run/metrics.jsonl")]
    rows = [row for row in rows if "tokens_per_s" in row][2:]
    return len(rows) / sum(1 / row["tokens_per_s"] for row in rows)
free, folder, rate = sys.argv[1:]
seconds = [1 / json.load(open(f"{folder}/time-{bytes}.json"))["predicted_tokens_per_s"] for bytes in (rate, 10**12)]
slow, fast = speed(folder), speed(free)
predicted = 1 / (1 / fast + seconds[0] - seconds[1])
print(f"{slow:.0f} tokens/s ({predicted:.0f} predicted, {slow / predicted:.2f}; {fast:.0f} without a limit, {slow / fast:.2f})")
PYTHON
}

forms() {
  [ $# -gt 0 ] || { echo "namespaces: forms needs rates" >&2; exit 2; }
  local hybrid="--set parallelism.data_parallel_shard_degree=2 --set parallelism.data_parallel_replicate_degree=$nodes"
  local int8='--set mixed_precision.gather_dtype=int8_block64' round form at plain bytes
  local -A words=([plain]=''
    [int8]="$int8 --set mixed_precision.reduce_dtype=int8_block64"
    [hybrid]="$hybrid"
    [slices]="$hybrid --set zero_optimization.shard_optimizer_over_replicas=true $int8 --set mixed_precision.replica_reduce_dtype=int4_block64"
    [low_rank]="$hybrid --set powersgd.rank=4 --set powersgd.start_step=0"
    [dion]="$hybrid --set optimizer.type=dion --set optimizer.dion_decoupled=true --set optimizer.dion_rank_fraction=0.0625 --set gradient_clipping.max_norm=0"
    [apart]="$hybrid --set diloco.sync_every=50 --set diloco.quantize=int8_block64")
  for round in $(seq "${ROUNDS:-3}"); do
    plain=0
    for form in ${FORMS:-plain int8 hybrid slices low_rank dion apart}; do
      few=4 many=10
      [ "$form" != apart ] || { few=50 many=100; }
      # shellcheck disable=SC2206  # words
      local set=(--set zero_optimization.stage=2 --set mixed_precision.param_dtype=bf16 ${words[$form]})
      limit
      trained 2 "$work/free-$form" "${set[@]}"
      bytes=$(cat "$work/free-$form/bytes")
      for at in "$@"; do
        limit "$at"
        train 2 "$work/$form" $many "${set[@]}"
        printf '%-9s %-8s %s\n' "$form" "$at" "$(form_said "$work/free-$form" "$work/$form" "$at" "${set[@]}")"
      done
      python3 - "$form" "$bytes" "$plain" "$work/free-$form/exchanges.json" <<'PYTHON'
import json, sys
form, counted, plain = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
planned = json.load(open(sys.argv[4]))[0]["leaving_a_machine_bytes"]
fewer = f", {plain / counted:.1f} times fewer than plain" if plain else ""
print(f"{form:9} {counted:,} B from a node per step ({planned:,.0f} planned){fewer}")
PYTHON
      [ "$form" != plain ] || plain=$bytes
      rm -rf "$work/free-$form" "${work:?}/$form"
    done
  done
}

# One process on each of two nodes, so that both have a core to themselves.
overlap() {
  [ -n "$rate" ] || { echo "namespaces: overlap needs --rate" >&2; exit 2; }
  local round depth
  for round in $(seq "${ROUNDS:-3}"); do
    for depth in 0 1; do
      local words=(--set parallelism.data_parallel_shard_degree=2 --set training.global_batch_size=32
        --set training.micro_batch_size=16 --set "zero_optimization.prefetch_depth=$depth")
      limit && trained 1 "$work/free-$depth" "${words[@]}"
      limit "$rate" && trained 1 "$work/slow-$depth" "${words[@]}"
      echo "prefetch $depth: $(said "$work/free-$depth" "$work/slow-$depth" 1 1 "$depth" "${words[@]}")"
      rm -rf "$work/free-$depth" "$work/slow-$depth"
    done
  done
}

# NAME NODES SERVERS WORDS...: one process on each of the first nodes; a line for each form.
served() {
  local name_of=$1 on=$2 servers=$3 folder=$work/$1 hosts='' node
  shift 3
  recipe "$folder"
  local words=("$folder/recipe.yaml" --set zero_optimization.stage=1 --set training.global_batch_size=24
    --set training.micro_batch_size=4 --set mixed_precision.param_dtype=bf16
    --set "parallelism.data_parallel_shard_degree=$((on - servers))" "$@")
  for node in $(seq "$on"); do hosts+=,$net$node:1; done
  local launched=(-n "$on")
  [ "$servers" -eq 0 ] || launched+=(--servers "$servers")
  "$sherd" launch "${launched[@]}" --hosts "${hosts#,}" -- train "${words[@]}" >"$folder/out"
  words+=(--set "parallelism.parameter_servers=$servers")
  "$sherd" plan "${words[@]}" --json >"$folder/plan.json"
  cat >"$folder/cluster.yaml" <<CLUSTER
machines: $((on - servers))
ranks_per_machine: 1
device: cpu
between: {bandwidth: $(($(bits "$rate") / 8))B, latency_us: 100}
servers: {bandwidth: $(($(bits "$fast") / 8))B, latency_us: 100}
CLUSTER
  "$sherd" plan "${words[@]}" --cluster "$folder/cluster.yaml" --json >"$folder/time.json"
  python3 - "$folder" "$(bits "$rate")" "$(bits "$fast")" "$((on - servers))" <<'PYTHON'
import json, statistics, sys
folder, slow, fast, workers = sys.argv[1], *map(int, sys.argv[2:])
plan = json.load(open(folder + "/plan.json"))
rows = [json.loads(line) for line in open(folder + "/run/metrics.jsonl")]
rows = [row for row in rows if "tokens_per_s" in row][2:]
speed = statistics.median(row["tokens_per_s"] for row in rows)
server = plan.get("parameter_servers")
sent = plan["sent_bytes"]
text = f"worker sends {sent:,} B"
if server:  # a push and a pull: each waits for the slower of both links
    pull = server["sent_bytes"]
    seconds = 8 * (max(sent / slow, sent * workers / fast) + max(pull / workers / slow, pull / fast))
    text += f", server {pull:,} B"
else:
    seconds = 8 * sent / slow
predicted = json.load(open(folder + "/time.json"))["predicted_tokens_per_s"]
print(f"{text}, {1000 * seconds:.0f} ms on links, {1000 * 24 * 128 / speed:.0f} ms a step, {speed:.0f} tokens/s, "
      f"predicted {predicted:.0f} ({speed / predicted:.2f})")
PYTHON
}

servers() {
  [ -n "$rate" ] || { echo "namespaces: servers needs --rate" >&2; exit 2; }
  fast=${FAST:-1gbit}
  local round
  limit "$rate"
  tc qdisc replace dev "$name.$nodes" root tbf rate "$fast" burst 256kb latency 20ms
  tc -n "$name-$nodes" qdisc replace dev eth0 root tbf rate "$fast" burst 256kb latency 20ms
  for round in $(seq "${ROUNDS:-3}"); do
    echo "server:          $(served server "$nodes" 1)"
    echo "late server:     $(served late "$nodes" 1 --set parallelism.publish_delay=1)"
    echo "all in ZeRO-1:   $(served all "$nodes" 0)"
    echo "workers, ZeRO-1: $(served workers "$((nodes - 1))" 0)"
    rm -rf "$work"/{server,late,all,workers}
  done
}

# WHAT NODE: does WHAT to the process on that node after step 2, and prints how the run ends.
failure() {
  local what=$1 node=$2 folder=$work/$1-$2 code=0 pid started
  recipe "$folder"
  launch 1 train "$folder/recipe.yaml" --set training.max_steps=100000 \
    --set "parallelism.data_parallel_shard_degree=$nodes" >"$folder/out" 2>"$folder/err" &
  local launched=$!
  until grep -qs '^step 3/' "$folder/out"; do
    sleep 0.1
    kill -0 "$launched" 2>/dev/null || { cat "$folder/err"; return 1; }
  done
  pid=$(ip netns pids "$name-$node" | while read -r one; do
    [ "$(readlink "/proc/$one/exe")" = "$(realpath "$sherd")" ] && echo "$one"; done | head -1)
  started=$(date +%s.%N)
  case $what in
    kill) kill -9 "$pid" ;;
    stop) kill -STOP "$pid" ;;
    cut) ip link set "$name.$node" down ;;
  esac
  wait "$launched" || code=$?
  echo "$what node$node: code $code after $(python3 -c "import time; print(f'{time.time() - $started:.1f}')") s"
  sed 's/^/    /' "$folder/err"
  [ "$what" != cut ] || ip link set "$name.$node" up
  sleep 1
  local left
  left=$(pgrep -fc "$folder/recipe.yaml" || true)
  [ "$left" -eq 0 ] || { echo "    $left processes are left"; pkill -9 -f "$folder/recipe.yaml" || true; }
}

failures() {
  local node
  for node in 2 1; do
    failure kill "$node"
    failure stop "$node"
    failure cut "$node"
  done
}

# The same ranks, on the machines that are left.
restarts() {
  local folder=$work/restarts hosts='' node code=0 started
  recipe "$folder"
  for node in $(seq "$nodes"); do hosts+=,$net$node:1; done
  "$sherd" launch -n "$nodes" --hosts "${hosts#,}" --restarts 1 --min-processes 1 -- \
    train "$folder/recipe.yaml" --set training.max_steps=40 --set checkpoint.interval=2 \
    --set checkpoint.resume=auto >"$folder/out" 2>"$folder/err" &
  local launched=$!
  until grep -qs '^step 3/' "$folder/out"; do
    sleep 0.1
    kill -0 "$launched" 2>/dev/null || { cat "$folder/err"; return 1; }
  done
  started=$(date +%s)
  ip netns pids "$name-$nodes" | xargs kill -9
  sleep 1  # its kernel says that they have gone; of a link that is cut mpirun learns nothing
  ip link set "$name.$nodes" down
  wait "$launched" || code=$?
  echo "code $code, $(($(date +%s) - started)) s after node$nodes had died"
  sed 's/^/    /' "$folder/err"
  grep -E '^resumed from|^step 40/' "$folder/out" | sed 's/^/    /'
}

command=$1
shift
case $command in
  run) launch "$@" ;;
  forms) forms "$@" ;;
  compare | overlap | servers | failures | restarts) "$command" ;;
  *) echo "namespaces: there is no command $command" >&2; exit 2 ;;
esac
