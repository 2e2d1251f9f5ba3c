#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# test_published.sh PROGRAM: plans the steps of clusters/published.txt. Those that rates were fitted
# to and those that were kept for a test lie in the printed range; most of them near its middle.
program=$1
command=plan
. "$(dirname "$0")/harness.sh"
rows=$(dirname "$0")/../../clusters/published.txt

# A sanitizer sees nothing in the fifth plan that it did not see in the first.
every=1
[ -n "${ASAN_OPTIONS:-}" ] && every=9

number() { sed -n "s/^ *\"$1\": \([0-9.e+]*\),*\$/\1/p" "$folder/out" | head -1; }

printf '%-4s %-10s %7s %11s  %9s %9s %9s %9s  %s\n' use cluster devices source published low planned \
    high published/planned
grep -v '^#' "$rows" | awk "NR % $every == 0" >"$folder/rows"
while read -r use cluster devices published source words; do
    mesh=${words##* mesh=}
    # shellcheck disable=SC2086
    start 0 ${words% mesh=*} "mesh=$mesh" --ranks "$devices" --cluster "$cluster" --json
    echo "$use $cluster $devices $source $published $(number tokens_per_s) \
        $(number tokens_per_s_low) $(number tokens_per_s_high)" |
        awk '{ planned = $6 / $3; low = $7 / $3; high = $8 / $3
               printf "%-4s %-10s %7d %11s  %9d %9.0f %9.0f %9.0f  %.3f\n",
                      $1, $2, $3, $4, $5, low, planned, high, $5 / planned
               exit !(($1 == "off") != ($5 >= low && $5 <= high)) }' ||
        complain "published and planned do not agree as \"$use\" says"
    case $use-$source in fit-titan | fit-mpt | test-titan | test-mpt)
        near=$(echo "$published $(number tokens_per_s) $devices" |
            awk '{ r = $1 / ($2 / $3); print (r > 0.88 && r < 1.12) ? "near" : "far" }')
        echo "$near" >>"$folder/near"
        ;;
    esac
done <"$folder/rows"
# Of steps of compiled or fused frameworks, 19 of 20 within 12 %.
far=$(grep -c far "$folder/near" || true)
all=$(wc -l <"$folder/near")
echo "$((all - far)) of $all within 12 %"
[ $((far * 20)) -le "$all" ] || complain "$far of $all are further than 12 % off"

finish
