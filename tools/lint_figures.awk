# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# A table with measured figures says how they are measured again: the command, or the test that
# asserts them, stands in it or in the text of its section before or behind it.

function judge() {
    if (start && figures && !before && !inside && !behind) {
        print FILENAME ":" start ": figures without the command or the test that makes them"
        bad = 1
    }
    start = 0
    figures = 0
}

/^#/ { judge(); behind = 0 }
/^\|/ && !in_table { judge(); before = behind; behind = 0; inside = 0; start = FNR }
{ in_table = /^\|/ }
/tessera (bench|plan|train|compare|verify|topo)|bench\/[a-z_]+\.sh|tests\/[a-z_\/]+\.(c|sh)/ {
    if (in_table) inside = 1
    else behind = 1
}
in_table && /[0-9]([.][0-9]|  *(%|GiB|MiB|GB|ms|us)( |$))/ { figures = 1 }
END { judge(); exit bad }
