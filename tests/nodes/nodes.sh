# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# Sourced by the tests beside it: two hosts on this one, joined by a capped link.
#
#   node_a, node_b   network namespaces, each with an interface mpi0 (10.77.0.1 and .2)
#   node_switch      a namespace with a bridge and the other ends of the links, porta and portb
#
# nodes_up RATE        make them, RATE as tc writes it (200mbit); skips the test where that cannot be
# on NODE COMMAND...   run a command line on a node
# nodes_down           end what runs there and take all of it away; also when the script ends
#
# Names carry this process's id, so tests can run side by side and take away only what is theirs.

nodes_here=$(cd "$(dirname "$0")" && pwd)
nodes_tag=tsr$$
node_a=${nodes_tag}a
node_b=${nodes_tag}b
node_switch=${nodes_tag}s
scratch=$(mktemp -d)
failures=0

skip() {
    echo "skipped: $1"
    exit 77
}

complain() {
    echo "FAIL: $1"
    failures=$((failures + 1))
}

nodes_need() {
    for tool in ip tc unshare mpirun; do
        command -v "$tool" > /dev/null || skip "no $tool (apt-get install iproute2 util-linux openmpi-bin)"
    done
    [ "$(id -u)" = 0 ] || skip 'network namespaces need root'
    ip netns add "$node_switch" 2> /dev/null || skip 'this container may not make network namespaces'
}

# nodes_join NODE ADDRESS END RATE
nodes_join() {
    ip netns add "$1"
    ip -n "$1" link set lo up
    ip link add mpi0 netns "$1" type veth peer name "$3" netns "$node_switch"
    ip -n "$1" addr add "$2/24" dev mpi0
    ip -n "$1" link set mpi0 up
    ip -n "$node_switch" link set dev "$3" master br0
    ip -n "$node_switch" link set dev "$3" up
    ip netns exec "$1" tc qdisc add dev mpi0 root tbf rate "$4" burst 256kb latency 50ms 2> /dev/null ||
        skip 'this kernel has no token bucket (tc tbf)'
    mkdir -p "/etc/netns/$1"
    printf '127.0.0.1 localhost\n10.77.0.1 %s\n10.77.0.2 %s\n' "$node_a" "$node_b" \
        > "/etc/netns/$1/hosts"
}

nodes_up() {
    trap nodes_down EXIT
    trap 'exit 1' INT TERM HUP
    nodes_need
    ip -n "$node_switch" link add br0 type bridge 2> /dev/null || skip 'this kernel has no bridge'
    ip -n "$node_switch" link set br0 up
    nodes_join "$node_a" 10.77.0.1 porta "$1"
    nodes_join "$node_b" 10.77.0.2 portb "$1"
    # The job's settings come as a user's would: from the environment.
    for name in $(env | sed -n 's/^\(OMPI_MCA_[A-Za-z0-9_]*\)=.*/\1/p'); do
        unset "$name"
    done
    export OMPI_MCA_plm_rsh_agent="$nodes_here/agent.sh"
    export OMPI_MCA_oob_tcp_if_include=mpi0 OMPI_MCA_btl_tcp_if_include=mpi0
    export OMP_NUM_THREADS=1
}

on() {
    "$nodes_here/agent.sh" "$@"
}

# Processes on the nodes.
nodes_pids() {
    for node in "$node_a" "$node_b"; do
        ip netns pids "$node" 2> /dev/null
    done
}

nodes_down() {
    for pid in $(nodes_pids); do
        kill -9 "$pid" 2> /dev/null
    done
    for node in "$node_a" "$node_b" "$node_switch"; do
        ip netns del "$node" 2> /dev/null
        rm -rf "/etc/netns/$node"
    done
    rmdir /etc/netns 2> /dev/null
    rm -rf "$scratch"
}

# sent NODE: bytes that have left it.
sent() {
    ip netns exec "$1" cat /sys/class/net/mpi0/statistics/tx_bytes
}

finish() {
    echo "$failures failed"
    [ "$failures" = 0 ]
    exit
}
