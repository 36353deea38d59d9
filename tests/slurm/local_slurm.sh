# A Slurm of our own on this machine for tests: sourced, not run. Controller, munge and node daemons on loopback ports of
# our own, in a temporary folder `work`; all is ended again whatever happens. Skips the test where that cannot be.
#
# Before sourcing: nodes=(c1 c2), their names; cpus_per_node (4); slurm_options may hold more lines of slurm.conf.
source "${SOURCE_DIR:?}/tests/tiny_run.sh"

((EUID == 0)) || skip "needs root to start munged and slurmd"
PATH=$PATH:/usr/sbin
for program in munged slurmctld slurmd sbatch srun scontrol setpriv unshare mpirun; do
  command -v $program >/dev/null || skip "$program is not installed (tools/install_packages tests)"
done
id munge >/dev/null 2>&1 || skip "there is no user munge"

work=$(mktemp -d /tmp/hat-slurm-XXXXXX)
chmod 755 "$work"
pids=()
# shellcheck disable=SC2317
clean_up() {
  local status=$?
  set +e
  ((status == 0 || status == 77)) || tail -n 15 "$work"/{job-*,slurmctld,slurmd-*,munge}.log 2>/dev/null
  scancel --user=root >/dev/null 2>&1
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null; done
  for _ in {1..50}; do
    kill -0 "${pids[@]}" 2>/dev/null || break
    sleep 0.1
  done
  for pid in "${pids[@]}"; do kill -9 "$pid" 2>/dev/null; done
  rm -rf "$work"
  exit $status
}
trap clean_up EXIT
trap 'exit 1' INT TERM

export SLURM_CONF=$work/slurm.conf
host=$(hostname -s)
port=$((20000 + RANDOM % 20000))

start_munge() {
  mkdir "$work/munge"
  head -c 1024 /dev/urandom >"$work/munge/key"
  chmod 400 "$work/munge/key"
  chown -R munge:munge "$work/munge"
  setpriv --reuid=munge --regid=munge --clear-groups munged --foreground --key-file="$work/munge/key" \
    --socket="$work/munge/socket" --pid-file="$work/munge/pid" --log-file="$work/munge/munged.log" \
    --seed-file="$work/munge/seed" >"$work/munge.log" 2>&1 &
  pids+=($!)
  for _ in {1..100}; do
    [[ -S $work/munge/socket ]] && return
    sleep 0.1
  done
  fail "munged did not start"
}

node_lines() {
  local i
  for i in "${!nodes[@]}"; do
    echo "NodeName=${nodes[i]} NodeHostname=${nodes[i]} NodeAddr=127.0.0.1 Port=$((port + 1 + i)) CPUs=${cpus_per_node:-4}"
  done
}

# start_slurmd <node>: its daemon; the process in slurmd[<node>]. A node in `mortal` has a process namespace that ends with
# that process: killing it is the death of the whole node.
mortal=${mortal:-}
declare -A slurmd
start_slurmd() {
  # A hostname and shared memory of its own, or MPI takes ranks of different nodes for neighbours.
  local processes=()
  [[ " $mortal " != *" $1 "* ]] || processes=(--pid --fork --kill-child --mount-proc)
  unshare --uts --mount "${processes[@]}" sh -c "hostname $1 && mount -t tmpfs tmpfs /dev/shm && exec slurmd -D -N $1" \
    >"$work/slurmd-$1-out.log" 2>&1 &
  slurmd[$1]=$!
  pids+=($!)
}

start_slurm() {
  mkdir "$work/state"
  cat >"$SLURM_CONF" <<CONF
ClusterName=hattest
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmctldPort=$port
AuthType=auth/munge
AuthInfo=socket=$work/munge/socket
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool-%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd-%n.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
$(node_lines)
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
${slurm_options:-}
CONF
  slurmctld -D -i >/dev/null 2>&1 &
  pids+=($!)
  for node in "${nodes[@]}"; do
    mkdir "$work/spool-$node"
    start_slurmd "$node"
  done
  for _ in {1..150}; do
    [[ $(sinfo -h -t idle -o %D 2>/dev/null) == "${#nodes[@]}" ]] && return
    sleep 0.2
  done
  sinfo || true
  fail "the nodes did not become idle"
}

job_state() { scontrol show job "$1" 2>/dev/null | sed -nE 's/.*JobState=([A-Z_]+).*/\1/p'; }

# wait_for_job <id> [<state> [<seconds>]]: until it has ended; in this state (COMPLETED).
wait_for_job() {
  local state i
  for ((i = 0; i < 5 * ${3:-120}; ++i)); do
    state=$(job_state "$1")
    case $state in
      "${2:-COMPLETED}") return ;;
      PENDING | RUNNING | CONFIGURING | COMPLETING | REQUEUED) sleep 0.2 ;;
      *) fail "job $1 ended as $state" ;;
    esac
  done
  fail "job $1 did not end (state $state)"
}
