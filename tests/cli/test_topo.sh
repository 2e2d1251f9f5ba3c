#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# test_topo.sh PROGRAM MACHINE_XML GOLDENS NVML: tessera topo as a user calls it; NVML is the folder
# of a stand-in for the library of NVIDIA's driver.
program=$1
machine_xml=$2
goldens=$3
nvml=$4
command=topo
. "$(dirname "$0")/harness.sh"

for name in nvswitch8 two_islands hidden numa_unknown; do
    "$machine_xml" "$goldens/$name.desc" > "$folder/$name.xml" || exit 1
done

# This machine.
start 0
has out '^[0-9]+ packages?, [0-9]+ NUMA nodes?, [0-9]+ cores?'
has out '^ranks of a host'
start 0 --json
has out '"cores_of_machine": [1-9]'
start 0 --mesh shard=3 --cpu
has out '^mesh shard=3 on 1 host of 3 ranks'

# A machine from a file.
start 0 --xml "$folder/nvswitch8.xml" --mesh replicate=2,shard=4,tp=2 --svg "$folder/out.svg"
has out '^mesh replicate=2,shard=4,tp=2 on 2 hosts of 8 ranks'
has out '^  tp=2 +8  0-1 +450  NVLink through switches'
has out '^  replicate=2 +8  0,8 +31\.51  network, 8 NICs a host'
grep -q '^</svg>$' "$folder/out.svg" || complain "the drawing is not closed"
grep -q '>GPU 7<' "$folder/out.svg" || complain "the drawing lacks GPU 7"
start 0 --xml "$folder/nvswitch8.xml" --mesh shard=-1,tp=2 --nodes 3
has out '^mesh shard=12,tp=2 on 3 hosts of 8 ranks'
start 0 --xml "$folder/two_islands.xml" --mesh shard=2,tp=2
has out '4 of 8 GPUs are used'
start 0 --xml "$folder/two_islands.xml" --json --tp 4 --nodes 4 --shard 2
has out '"islands_by": "links"'
has out '"axis": "replicate"'
has out '"over": "network, 4 NICs a host"'
start 0 --xml "$folder/two_islands.xml" --islands node --tp 8
has out '^mesh shard=1,tp=8'
start 0 --xml "$folder/hidden.xml"
has out '1 of 4 GPUs on the bus'
start 0 --synthetic "package:1 core:2 pu:1" --mesh tp=4
has out '4 ranks on 2 cores: nobody is bound'
has out '^  tp=4 +1  0-3 +\?  shared memory, one NUMA node'
start 0 --synthetic "package:2 numa:1 core:8 pu:2" --nodes 4 --shard 2
has out '^mesh replicate=2,shard=4 on 4 hosts of 2 ranks'

# What does not fit.
start 2 --xml "$folder/two_islands.xml" --mesh tp=8
has err '^tessera: tp=8: a group of it spans islands.*islands have 4, 4 ranks.*legal sizes are 1, 2, 4$'
start 2 --xml "$folder/two_islands.xml" --mesh shard=12
has err '12 ranks, which is no number of machines with 8 GPUs each; --nodes'
start 2 --xml "$folder/two_islands.xml" --mesh shard=20 --nodes 2
has err '10 ranks on each of 2 nodes, but a node has 8 GPUs; --cpu'
start 2 --xml "$folder/two_islands.xml" --mesh shard=9 --nodes 2
has err '9 ranks, which 2 nodes cannot share equally'
start 2 --xml "$folder/two_islands.xml" --mesh shard=3,replicate=-1
has err 'for 8 ranks'
start 2 --xml "$folder/two_islands.xml" --tp 3
has err 'tp=3 does not divide every island'
start 2 --xml "$folder/two_islands.xml" --nodes 3 --shard 2
has err 'do not divide 3 nodes: legal are 1, 3'
start 2 --xml "$folder/numa_unknown.xml" --islands numa
has err 'islands by numa: the record knows no NUMA nodes of GPUs'
start 2 --islands nmua
has err 'nearest: numa'
start 2 --mesh shard=2 --tp 2
has err '--mesh says it'
start 2 --nodes 0
has err '--nodes 0: wants a number'
start 2 --shard 2/3
has err 'shard "2/3"'

# What is no machine.
start 2 --xml "$folder/none.xml"
has err 'none\.xml.*[Nn]o such file'
start 2 --xml "$0"
has err 'no hwloc XML'
sed 's/version="2.0"/version="3.0"/' "$folder/hidden.xml" > "$folder/three.xml"
start 2 --xml "$folder/three.xml"
has err 'three\.xml: hwloc XML of version 3\.0, which hwloc 2 cannot read; .*--export-xml-flags v2'
head -c 3000 "$folder/hidden.xml" > "$folder/cut.xml"
start 2 --xml "$folder/cut.xml"
has err 'cut\.xml: .*damaged or cut'
lacks err 'hwloc/xml|Assertion'
start 2 --synthetic "package:x"
has err 'synthetic machine "package:x"'
start 2 --xml a --synthetic b
has err 'both name a machine'
start 1 --svg "$folder/none/out.svg"
has err 'cannot write'

# A machine whose driver has its library: GPUs of PCI alone get models, memory and links.
cat > "$folder/plain.desc" << 'EOT'
package
numa 8 1 64
host 0000:10
gpu 0000:12:00.0
gpu 0000:13:00.0
gpu 0000:14:00.0
gpu 0000:15:00.0
EOT
"$machine_xml" "$folder/plain.desc" > "$folder/plain.xml" || exit 1
export HWLOC_XMLFILE="$folder/plain.xml"
start 0
has out '^1 package, 1 NUMA node, 8 cores, 4 GPUs, '
lacks out 'NVLink'
has out '  islands  1: GPUs of one NUMA node'
before=${LD_LIBRARY_PATH-}
export LD_LIBRARY_PATH="$nvml${before:+:$before}"
TSR_FAKE_NVML=direct start 0
has out '3 GPUs \(Test GPU\)'
has out 'GPU 0 +0000:12:00.0  Test GPU  80\.0 GiB  rank'
has out 'GPU 3 +0000:15:00.0  hidden'
has out '^  GPU 0 +- +50 +0 +0$'
has out '^  GPU 1 +50 +- +50 +0$'
has out '1 of 4 GPUs on the bus \(GPU 3\)'
TSR_FAKE_NVML=switch start 0 --json
has out '"link_switched": true'
has out '"link_kind": "NVLink"'
has out '^ +450\.0,?$'
TSR_FAKE_NVML=old start 0
has out '3 GPUs \(Test GPU\)'
has out '^no NVLink between GPUs'
TSR_FAKE_NVML=broken start 0
has out '4 GPUs, '
unset HWLOC_XMLFILE
LD_LIBRARY_PATH=$before
export LD_LIBRARY_PATH

# As ranks of a job.
start 0 -n 2
has out '^host 0: .*, ranks 0 to 1$'
has out '^mesh shard=2 on 1 host of 2 ranks'
start 0 -n 4 --xml "$folder/nvswitch8.xml" --tp 2 --json
has out '"axis": "tp"'
start 2 -n 4 --mesh shard=3
has err 'shard=3'
start 1 -n 4 --xml "$folder/two_islands.xml" --islands links --tp 3
has err 'tp=3 does not divide every island'
start 2 -n 2 --nodes 2
has err '--nodes imagines machines'

finish
