#!/usr/bin/env bash
# namespaces.sh [--rate RATE] [--nodes N] COMMAND [WORDS...]: this machine as a cluster. Each node is a network
# namespace with a hostname and a link of its own, all on one bridge; RATE limits what each link carries, in
# either direction (tc's words: 1gbit, 200mbit; default: no limit). Needs root, iproute2 and Open MPI.
#
#   run PROCESSES SHERD-WORDS...     sherd launch over all nodes, PROCESSES on each
#   compare                          ZeRO-3 over 4 processes on 2 nodes, gathers direct and passed on, and
#                                    hybrid sharding 2 x 2, turn by turn: tokens/s, and bytes that left a node
#                                    in a step, counted at its link
#   failures                         processes on other nodes killed, stopped and cut off: who is named, with
#                                    which code, and whether anybody is left
#   restarts                         the last node dies behind step 3: does the run go on without it?
#
# ROUNDS=N: of compare (3). Everything is removed at the end. SHERD names the program (build/cpu/sherd).
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
[ $# -gt 0 ] || { sed -n '2,16s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2; }
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
  if [ -n "$rate" ]; then
    tc qdisc add dev "$name.$node" root tbf rate "$rate" burst 256kb latency 100ms
    tc -n "$name-$node" qdisc add dev eth0 root tbf rate "$rate" burst 256kb latency 100ms
  fi
done

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
training: {seq_length: 128, global_batch_size: 16, micro_batch_size: 2, max_steps: 12, eval_batches: 1}
optimizer: {type: adamw, lr: 1e-3}
lr_scheduler: {warmup_steps: 2}
zero_optimization: {stage: 3}
parallelism: {data_parallel_shard_degree: 4}
metrics: {log_interval: 1, tensorboard: false}
checkpoint: {interval: 0, resume: never, on_interrupt: false}
RECIPE
}

# A run of 4 processes on 2 nodes; prints: bytes of a step, tokens/s (median of its steps).
measured() {  # NAME WORDS...
  local folder=$work/$1 before after
  shift
  recipe "$folder"
  before=$(sent)
  launch 2 train "$folder/recipe.yaml" --set training.max_steps=4 "$@" >"$folder/short.txt"
  after=$(sent)
  rm -rf "$folder/run"
  local short=$((after - before))
  before=$(sent)
  launch 2 train "$folder/recipe.yaml" "$@" >"$folder/long.txt"
  after=$(sent)
  python3 - "$folder/run/metrics.jsonl" $(((after - before - short) / 8)) <<'PYTHON'
import json, statistics, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
speeds = [row["tokens_per_s"] for row in rows if "tokens_per_s" in row][2:]
exposed = [row["exposed_comm_ms"] for row in rows if "exposed_comm_ms" in row][2:]
print(f"{int(sys.argv[2]):,} B from a node per step, {statistics.median(speeds):.0f} tokens/s, "
      f"{statistics.median(exposed):.0f} ms exposed")
PYTHON
  rm -rf "$folder/run"
}

compare() {
  [ "$nodes" -eq 2 ] || { echo "namespaces: compare needs 2 nodes" >&2; exit 2; }
  local hybrid=(--set parallelism.data_parallel_shard_degree=2
    --set parallelism.data_parallel_replicate_degree=2)
  local round
  for round in $(seq "${ROUNDS:-3}"); do
    echo "ZeRO-3, direct gathers:  $(measured direct --set parallelism.hierarchical=off)"
    echo "ZeRO-3, passed on:       $(measured passed_on)"
    echo "hybrid sharding, 2 x 2:  $(measured hybrid "${hybrid[@]}")"
  done
}

# WHAT NODE: does it to the process on that node behind step 2, and says how the run ends.
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
  compare | failures | restarts) "$command" ;;
  *) echo "namespaces: there is no command $command" >&2; exit 2 ;;
esac
