#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# Fail if a file includes a header of a folder that its own folder may not use.
#
# tools/layers.txt: a folder, a colon, the folders that it may include from, besides itself.
# tools/header_owner.txt: a public header and its folder; "everything" may include all.
# A *_priv.h is for its own folder alone, and kernels are seen through kernels/kernels.h.
# check_layers.sh [ROOT]: check the tree at ROOT (the checks of this check use it).
set -eu
cd "${1:-$(dirname "$0")/..}"

find src kernels include -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort | xargs -r awk '
function fail(text) { print FILENAME ":" FNR ": " text; bad = 1 }
BEGIN {
    while ((getline line < "tools/layers.txt") > 0) {
        n = split(line, part, /[: ]+/)
        known[part[1]] = 1
        for (i = 1; i <= n; i++) if (part[i] != "") may[part[1], part[i]] = 1
    }
    while ((getline line < "tools/header_owner.txt") > 0) {
        split(line, part, " ")
        owner[part[1]] = part[2]
    }
}
FNR == 1 {
    split(FILENAME, path, "/")
    folder = path[1] == "kernels" ? "kernels" : path[2]
    if (path[1] == "include") {
        name = path[3]; sub(/\.h$/, "", name)
        folder = owner[name]
        if (folder == "") fail("no owner in tools/header_owner.txt")
    } else if (!known[folder]) {
        fail("folder " folder " is not in tools/layers.txt")
    }
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
    header = $0
    sub(/^[^"]*"/, "", header); sub(/".*/, "", header)
    n = split(header, part, "/")
    used = n > 1 ? part[1] : folder
    if (used == "tessera") {
        name = part[2]; sub(/\.h$/, "", name)
        used = owner[name]
        if (used == "" && name == "version") used = "base"
        if (used == "") { fail("\"" header "\" has no owner in tools/header_owner.txt"); next }
    } else if (path[1] == "include") {
        fail("a public header includes \"" header "\""); next
    }
    if (folder == "everything") next
    if (used != folder && !((folder, used) in may)) fail(folder " may not use " used " (\"" header "\")")
    else if (used != folder && header ~ /_priv\.h$/) fail("\"" header "\" is private to " used)
    else if (used == "kernels" && folder != "kernels" && header != "kernels/kernels.h")
        fail("kernels are seen through kernels/kernels.h alone")
}
END { exit bad }
'
echo "layers: every include goes down"
