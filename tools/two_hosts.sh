# shellcheck shell=bash
# Two hosts that are two network namespaces of this machine, each with a hostname of its own, joined by a veth pair: no
# shared memory between them, only TCP. To be sourced; needs root, ip, unshare, Open MPI's mpirun, and tc for a limit.
#
#   make_two_hosts FOLDER [RATE]     a host for one rank, a host for two; RATE as tc has it (1gbit) limits both ways.
#                                    Status 1 and a line on standard output where that cannot be had here
#   on_two_hosts COMMAND...          on 3 ranks: rank 0 on the first host, 1 and 2 on the second
#   remove_two_hosts

PATH=$PATH:/usr/sbin:/sbin

make_two_hosts() {
  local program namespace
  hosts_folder=$1
  host_a=hata$$ host_b=hatb$$
  local net=10.$((RANDOM % 200 + 20)).$((RANDOM % 250))
  ((EUID == 0)) || { echo "needs root for network namespaces" && return 1; }
  for program in ip unshare mpirun ${2:+tc}; do
    command -v "$program" >/dev/null || { echo "$program is not installed (tools/install_packages tests)" && return 1; }
  done
  mpirun --version 2>/dev/null | grep 'Open MPI\|OpenRTE' >/dev/null ||
    { echo "knows how to start Open MPI only" && return 1; }
  ip netns add "$host_a" 2>"$hosts_folder/ip.log" ||
    { echo "cannot make network namespaces: $(cat "$hosts_folder/ip.log")" && return 1; }
  ip netns add "$host_b" 2>"$hosts_folder/ip.log" ||
    { echo "cannot make a second network namespace: $(cat "$hosts_folder/ip.log")" && return 1; }
  ip link add va$$ netns "$host_a" type veth peer name vb$$ netns "$host_b" 2>"$hosts_folder/ip.log" ||
    { echo "cannot make a veth pair: $(cat "$hosts_folder/ip.log")" && return 1; }
  # One chain: whoever sources this may call it where set -e does not count.
  { ip -n "$host_a" addr add "$net.1/24" dev va$$ && ip -n "$host_b" addr add "$net.2/24" dev vb$$ &&
    ip -n "$host_a" link set lo up && ip -n "$host_b" link set lo up &&
    ip -n "$host_a" link set va$$ up && ip -n "$host_b" link set vb$$ up; } 2>"$hosts_folder/ip.log" ||
    { echo "cannot set up the link: $(cat "$hosts_folder/ip.log")" && return 1; }
  if [[ -n ${2:-} ]]; then
    for namespace in "$host_a va$$" "$host_b vb$$"; do
      # shellcheck disable=SC2086  # a namespace and its end of the link
      set -- "$1" "$2" $namespace
      tc -n "$3" qdisc add dev "$4" root tbf rate "$2" burst 1mbit latency 50ms 2>"$hosts_folder/ip.log" ||
        { echo "cannot limit a link: $(cat "$hosts_folder/ip.log")" && return 1; }
    done
  fi
  # What mpirun uses in place of ssh: HOST COMMAND...
  cat >"$hosts_folder/agent" <<AGENT
#!/bin/sh
host=\$1
shift
[ "\$host" = "$net.2" ] || { echo "agent: unknown host \$host" >&2; exit 1; }
exec ip netns exec $host_b unshare --uts sh -c "hostname hostb; \$*"
AGENT
  chmod +x "$hosts_folder/agent"
  printf '%s slots=1\n%s slots=2\n' "$net.1" "$net.2" >"$hosts_folder/hosts"
}

on_two_hosts() {
  ip netns exec "$host_a" unshare --uts sh -c "hostname hosta; exec \"\$@\"" sh \
    mpirun --mca plm_rsh_agent "$hosts_folder/agent" --hostfile "$hosts_folder/hosts" -n 3 "$@"
}

remove_two_hosts() {
  local namespace pid
  for namespace in "${host_a:-}" "${host_b:-}"; do
    [[ -n $namespace ]] || continue
    for pid in $(ip netns pids "$namespace" 2>/dev/null); do kill -9 "$pid"; done
    ip netns del "$namespace" 2>/dev/null || true  # gone already
  done
}
