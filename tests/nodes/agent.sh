#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# agent.sh NODE COMMAND...: run COMMAND on a node that nodes.sh made; what ssh is between real hosts.
# A node is a network namespace, with a host name of its own: Open MPI takes ranks of equal host
# names for neighbours in memory.
node=$1
shift
# shellcheck disable=SC2016
exec ip netns exec "$node" unshare --uts sh -c 'hostname "$0"; exec sh -c "$*"' "$node" "$@"
