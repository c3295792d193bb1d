#!/usr/bin/env bash
# Record on a machine with one NVIDIA GPU what no other machine of the tests shows: NCCL, NVML, RAS, an Xid.
# About 4 minutes; root, `ip` and `tc` are needed for the slow NIC, nvcc for the Xid. Nothing of the GPU is changed.
#   tests/gpu/record.sh OUT
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$1
readonly RANKS=4 PYTHON=${PYTHON:-python3}
export PYTHONPATH="$here/../..${PYTHONPATH:+:$PYTHONPATH}" PYTHONWARNINGS=ignore OMP_NUM_THREADS=1
mkdir -p "$out"
port=29530 in_namespaces=

note() { echo "[$SECONDS s] $*"; }

# job NAME LIMIT_S ARGUMENTS...: all ranks of one job; in namespaces of their own where in_namespaces is set
job() {
  local name=$1 limit_s=$2 pids=() prefix=() interface=lo address=127.0.0.1
  shift 2
  mkdir -p "$out/$name"
  for ((rank = 0; rank < RANKS; rank++)); do
    if [ -n "$in_namespaces" ]; then prefix=(ip netns exec "irregulars$rank") interface=eth0 address=10.77.0.1; fi
    "${prefix[@]}" env RANK=$rank WORLD_SIZE=$RANKS LOCAL_RANK=0 LOCAL_WORLD_SIZE=$RANKS MASTER_ADDR=$address \
      MASTER_PORT=$port NCCL_HOSTID=node-$rank NCCL_SOCKET_IFNAME=$interface NCCL_IB_DISABLE=1 NCCL_NET=Socket \
      TORCH_FR_BUFFER_SIZE=2000 TORCH_COMMS_HOST=node-$rank TORCH_COMMS_NIC=$interface \
      timeout -k 5 "$limit_s" "$PYTHON" "$here/job.py" "$out/$name" "$@" >"$out/$name/rank$rank.log" 2>&1 &
    pids+=($!)
  done
  wait "${pids[@]}"
  note "$name: status $?"
  port=$((port + 1))
}

make_namespaces() {
  ip link add irregulars type bridge && ip link set irregulars up || return 1
  for ((rank = 0; rank < RANKS; rank++)); do
    ip netns add "irregulars$rank" && ip link add "irregulars$rank" type veth peer name eth0 netns "irregulars$rank" &&
      ip link set "irregulars$rank" master irregulars up && ip -n "irregulars$rank" link set eth0 up &&
      ip -n "irregulars$rank" link set lo up && ip -n "irregulars$rank" addr add "10.77.0.$((rank + 1))/24" dev eth0 ||
      return 1
  done
}

remove_namespaces() {
  for ((rank = 0; rank < RANKS; rank++)); do ip netns delete "irregulars$rank"; done 2>/dev/null
  ip link delete irregulars 2>/dev/null
}

nvidia-smi -q >"$out/nvidia-smi-q.txt"
job clean 60 --steps 120 --ahead
job slow-rank 70 --steps 90 --slow 2 40 60 --profile 44 48
job ahead-slow-rank 60 --steps 90 --slow 2 40 60 --ahead
(sleep 22 && exec "$PYTHON" "$here/ras_answers.py" "$out/ras-hang" 14) &
asking=$!
job hang 65 --steps 60 --hang 1 20
wait $asking
if make_namespaces; then
  in_namespaces=yes
  (sleep 14 && tc -n irregulars1 qdisc add dev eth0 root tbf rate 400mbit burst 256k latency 50ms &&
    echo "NIC of rank 1 slow since $(date +%s%N) ns" >"$out/slow-nic.txt") &
  job slow-nic 70 --steps 260 --ahead
  in_namespaces=
else
  note "no network namespaces: slow-nic is left out"
fi
remove_namespaces
"$PYTHON" "$here/hook_cost.py" auto >"$out/hook-cost.jsonl" && note "cost: $(tail -1 "$out/hook-cost.jsonl")"
xid=()
if nvcc -o "$out/xid" "$here/xid.cu"; then xid=("$out/xid"); else note "no nvcc: no Xid"; fi
"$PYTHON" "$here/nvml_samples.py" "$out/nvml.jsonl" "${xid[@]}" && rm -f "$out/xid"
dmesg 2>/dev/null | grep -iE "xid" >"$out/kernel-log.txt"
note "all in $out"
