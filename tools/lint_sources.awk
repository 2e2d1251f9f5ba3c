# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# What sources as a whole must not have; lint.sh hands it every C file and header. A line that
# defines may be excused by "lint: " and the reason in a comment at its end.
#
# - A struct of more than 25 fields holds several ideas.
# - A function's name defined more than twice in src says too little about each.

function fail(file, line, text) { print file ":" line ": " text; bad = 1 }

# code: the line without comments and literals; comments may go on over lines.
function strip(line,    out, at) {
    out = ""
    gsub(/"([^"\\]|\\.)*"/, "\"\"", line)
    gsub(/__attribute__\(\(.*\)\)/, "", line)
    gsub(/'([^'\\]|\\.)*'/, "0", line)
    while (line != "") {
        if (in_comment) {
            at = index(line, "*/")
            if (!at) return out
            in_comment = 0
            line = substr(line, at + 2)
            continue
        }
        at = index(line, "/*")
        if (!at) return out line
        out = out substr(line, 1, at - 1)
        in_comment = 1
        line = substr(line, at + 2)
    }
    return out
}

# Declarators of the struct that begins here: commas and semicolons outside of brackets. A struct
# within it is one field.
function count_fields(text,    i, c) {
    for (i = 1; i <= length(text); i++) {
        c = substr(text, i, 1)
        if (c == "{") depth++
        else if (c == "(" || c == "[") brackets++
        else if (c == ")" || c == "]") brackets--
        else if (depth == 1 && brackets == 0 && (c == "," || c == ";")) fields++
        else if (c == "}" && --depth == 0) {
            in_struct = 0
            if (fields > 25 && !excused)
                fail(FILENAME, struct_line, "a struct of " fields " fields, at most 25; give the reason beside it, or take it apart")
            return
        }
    }
}

FNR == 1 { in_comment = 0; in_struct = 0; name = ""; scope = FILENAME ~ /(^|\/)src\// }
{
    begins_in_comment = in_comment
    code = strip($0)
}
!in_struct && code ~ /^(typedef )?(static )?(const )?struct( [A-Za-z_0-9]+)? \{/ {
    in_struct = 1; depth = 0; fields = 0; brackets = 0
    struct_line = FNR
    excused = $0 ~ /lint: [^ ]/
}
in_struct { count_fields(code); next }

# A definition: a name and "(" at the beginning of a line, and a "{" alone before any ";".
!begins_in_comment && code ~ /^[A-Za-z_]/ && code !~ /^(typedef|struct|enum|union|extern|_Static_assert)/ {
    name = ""
    if (match(code, /[A-Za-z_][A-Za-z_0-9]*\(/)) {
        name = substr(code, RSTART, RLENGTH - 1)
        where = FILENAME ":" FNR
    }
}
code ~ /;[ \t]*$/ || code ~ /=[ \t]*\{?$/ { name = "" }
code ~ /^\{/ && name != "" {
    if (scope) {
        count[name]++
        places[name] = places[name] "\n  " where
    }
    name = ""
}
END {
    for (n in count)
        if (count[n] > 2) {
            print "function " n " is defined " count[n] " times, at most 2; say what each does:" places[n]
            bad = 1
        }
    exit bad
}
