# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# awk -f generate.awk calls.txt HEADER...: one case per public function, which calls it with each
# argument wrong in turn and then with all of them right. What is right, and what may be NULL, is
# said in calls.txt; a function that is not there, or an argument, is an error.
#
#   pointer            NULL           TSR_ERR_INVALID naming the argument, or the neutral answer
#   enum               99             an error
#   int, int64_t       -1             an error
#   double             NaN, inf, -1   an error
#   const struct *     each of its fields wrong by the same list: an error

function fail(text)
{
    print "api: " text > "/dev/stderr"
    failed = 1
}

function trim(text)
{
    gsub(/[ \t]+/, " ", text)
    sub(/^ /, "", text)
    sub(/ $/, "", text)
    return text
}

# ---- calls.txt ----

FILENAME == ARGV[1] {
    sub(/#.*/, "")
    if (NF == 0) {
        next
    }
    if ($1 == "field") {
        split($2, part, ".")
        tolerant_field[part[1], part[2]] = NF > 2 ? $3 : "~"
        next
    }
    if ($0 ~ /^[ \t]/) {
        first = 1
    } else {
        current = $1
        stage[current] = $2
        first = 3
    }
    for (i = first; i <= NF; i++) {
        if ($i ~ /^->/) {
            answer[current] = substr($i, 3)
            continue
        }
        at = index($i, "=")
        key = substr($i, 1, at - 1)
        mark = ""
        while (key ~ /[?~+-]$/) {
            mark = mark substr(key, length(key))
            key = substr(key, 1, length(key) - 1)
        }
        value[current, key] = substr($i, at + 1)
        marks[current, key] = mark
        given[current, key] = 1
    }
    next
}

# ---- headers, without comments and directives ----

{
    line = $0
    if (directive) {
        directive = line ~ /\\$/
        next
    }
    while (1) {
        if (comment) {
            at = index(line, "*/")
            if (at == 0) {
                next
            }
            line = rest substr(line, at + 2)
            comment = 0
        }
        at = index(line, "/*")
        if (at == 0) {
            break
        }
        rest = substr(line, 1, at - 1) " "
        line = substr(line, at + 2)
        comment = 1
    }
    if (line ~ /^[ \t]*#/) {
        directive = line ~ /\\$/
        next
    }
    source = source " " line
}

# ---- declarations ----

function split_args(text, list,    i, c, depth, n)
{
    n = 1
    list[1] = ""
    for (i = 1; i <= length(text); i++) {
        c = substr(text, i, 1)
        depth += (c == "(") - (c == ")")
        if (c == "," && depth == 0) {
            n++
            list[n] = ""
        } else {
            list[n] = list[n] c
        }
    }
    return n
}

function add_struct(chunk,    name, body, n, i, k, m, fields, parts, type, field)
{
    body = substr(chunk, index(chunk, "{") + 1)
    name = chunk
    sub(/ *{.*/, "", name)
    sub(/.*struct /, "", name)
    sub(/}[^}]*$/, "", body)
    n = split(body, fields, ";")
    for (i = 1; i <= n; i++) {
        field = trim(fields[i])
        if (field == "" || field ~ /[\[(]/) {
            continue
        }
        m = split(field, parts, ",")
        type = trim(parts[1])
        sub(/[ *][a-z0-9_]+$/, "", type)
        for (k = 1; k <= m; k++) {
            sub(/.*[ *]/, "", parts[k])
            field_count[name]++
            field_name[name, field_count[name]] = trim(parts[k])
            field_type[name, field_count[name]] = parts[1] ~ /\*/ ? "pointer" : type
        }
    }
}

function add_function(chunk,    name, ret, args, list, n, i, arg)
{
    sub(/^TSR_(CHECKED|API) /, "", chunk)
    sub(/ *__attribute__.*/, "", chunk)
    match(chunk, /tsr_[a-z0-9_]+\(/)
    name = substr(chunk, RSTART, RLENGTH - 1)
    function_name[++function_count] = name
    function_type[name] = trim(substr(chunk, 1, RSTART - 1))
    args = substr(chunk, RSTART + RLENGTH)
    sub(/\) *$/, "", args)
    if (args == "void") {
        return
    }
    n = split_args(args, list)
    for (i = 1; i <= n; i++) {
        arg = trim(list[i])
        if (arg == "...") {
            continue
        }
        arg_count[name]++
        if (arg ~ /\(\*/) {
            sub(/.*\(\*/, "", arg)
            sub(/\).*/, "", arg)
            arg_name[name, arg_count[name]] = arg
            arg_type[name, arg_count[name]] = "function *"
            continue
        }
        match(arg, /[a-z0-9_]+$/)
        arg_name[name, arg_count[name]] = substr(arg, RSTART)
        arg_type[name, arg_count[name]] = trim(substr(arg, 1, RSTART - 1))
    }
}

function read_declarations(    i, c, depth, chunk, name, at)
{
    for (i = 1; i <= length(source); i++) {
        c = substr(source, i, 1)
        depth += (c == "{") - (c == "}")
        if (c != ";" || depth > 0) {
            chunk = chunk c
            continue
        }
        chunk = trim(chunk)
        sub(/.*TSR_(BEGIN|END)_DECLS /, "", chunk)
        if (match(chunk, /typedef enum tsr_[a-z0-9_]+/)) {
            name = substr(chunk, RSTART + 13, RLENGTH - 13)
            is_enum[name] = 1
        } else if (match(chunk, /typedef struct tsr_[a-z0-9_]+ {/)) {
            add_struct(substr(chunk, RSTART))
        } else if (match(chunk, /typedef tsr_status \(\*tsr_[a-z0-9_]+\)/)) {
            name = substr(chunk, RSTART + 21, RLENGTH - 22)
            is_function[name] = 1
        } else if (match(chunk, /TSR_(CHECKED|API) /)) {
            add_function(substr(chunk, RSTART))
        }
        chunk = ""
    }
}

# ---- cases ----

function is_pointer(type)
{
    return type ~ /\*/ || (type in is_function)
}

# Wrong values of a scalar type, one a line.
function wrongs(type)
{
    if (type in is_enum) {
        return "(" type ")99"
    }
    if (type == "int" || type == "int64_t") {
        return "-1"
    }
    if (type == "double") {
        return "NAN\nINFINITY\n-1.0"
    }
    return ""
}

# The call of name with argument number wrong_at being wrong; 0: none.
function call(name, wrong_at, wrong,    i, text)
{
    for (i = 1; i <= arg_count[name]; i++) {
        text = text (i > 1 ? ", " : "") (i == wrong_at ? wrong : value[name, arg_name[name, i]])
    }
    return name "(" text ")"
}

function neutral(type)
{
    if (type == "const char *") {
        return "\"\""
    }
    return type ~ /\*/ ? "NULL" : "0"
}

function expect_null(name, i,    arg)
{
    arg = arg_name[name, i]
    if (function_type[name] == "tsr_status") {
        printf "    API_REFUSES(\"%s\", %s);\n", arg, call(name, i, "NULL")
    } else if (function_type[name] == "void" || function_type[name] == "tsr_layout") {
        printf "    (void)%s;\n", call(name, i, "NULL")
    } else if (function_type[name] == "const char *") {
        printf "    CHECK_STR(%s, \"\");\n", call(name, i, "NULL")
    } else if (function_type[name] == "double") {
        printf "    CHECK(isnan(%s));\n", call(name, i, "NULL")
    } else {
        printf "    CHECK(%s == %s);\n", call(name, i, "NULL"),
            name in answer ? answer[name] : neutral(function_type[name])
    }
}

function expect_error(name, i, wrong, tolerated)
{
    if (function_type[name] != "tsr_status") {
        printf "    (void)%s;\n", call(name, i, wrong)
    } else if (!tolerated) {
        printf "    API_FAILS(%s);\n", call(name, i, wrong)
    }
}

function tolerates(mark, wrong)
{
    return mark ~ /~/ || (mark ~ /-/ && wrong ~ /^-1/) || (mark ~ /[+]/ && wrong == "INFINITY")
}

function wrong_fields(name, i, type,    k, n, m, list, field, base)
{
    base = value[name, arg_name[name, i]]
    for (k = 1; k <= field_count[type]; k++) {
        field = field_name[type, k]
        n = split(wrongs(field_type[type, k]), list, "\n")
        for (m = 1; m <= n; m++) {
            if (function_type[name] == "tsr_status" &&
                tolerates(tolerant_field[type, field], list[m])) {
                continue
            }
            printf "    {\n        %s wrong = %s;\n\n        wrong.%s = %s;\n", type,
                base == "NULL" ? "{0}" : "*(" base ")", field, list[m]
            printf "    "
            expect_error(name, i, "&wrong", 0)
            print "    }"
        }
    }
}

function emit_wrong(name, i,    arg, type, mark, n, m, list)
{
    arg = arg_name[name, i]
    type = arg_type[name, i]
    if (!((name, arg) in given)) {
        fail("calls.txt does not say argument " arg " of " name)
        return
    }
    used[name, arg] = 1
    mark = marks[name, arg]
    if (is_pointer(type)) {
        if (mark !~ /\?/) {
            expect_null(name, i)
        }
        if (type ~ /^const tsr_[a-z0-9_]+ \*$/) {
            sub(/^const /, "", type)
            sub(/ \*$/, "", type)
            wrong_fields(name, i, type)
        }
        return
    }
    n = split(wrongs(type), list, "\n")
    for (m = 1; m <= n; m++) {
        expect_error(name, i, list[m], tolerates(mark, list[m]))
    }
}

function emit_case(name,    i)
{
    printf "static void case_%s(void)\n{\n    api_fixture fixture;\n", name
    print "    api_fixture *f = &fixture;\n"
    printf "    REQUIRE_OK(api_open(f, API_%s));\n", toupper(stage[name])
    for (i = 1; i <= arg_count[name]; i++) {
        emit_wrong(name, i)
    }
    if (function_type[name] == "tsr_status") {
        printf "    CHECK_OK(%s);\n", call(name, 0, "")
    } else if (function_type[name] == "void") {
        printf "    %s;\n", call(name, 0, "")
    } else {
        printf "    (void)%s;\n", call(name, 0, "")
    }
    print "    api_close(f);\n}\n"
}

END {
    if (source == "") {
        fail("no headers")
    }
    read_declarations()
    print "/* Made by tests/api/generate.awk. NOLINTBEGIN(readability-function-size) */\n#include <math.h>\n\n#include \"api/fixture.h\"\n"
    for (k = 1; k <= function_count; k++) {
        name = function_name[k]
        if (!(name in stage)) {
            fail("public function " name " is not in calls.txt")
        } else if (stage[name] != "skip") {
            emit_case(name)
        }
        known[name] = 1
    }
    for (name in stage) {
        if (!(name in known)) {
            fail("calls.txt has " name ", which no header declares")
        }
    }
    for (pair in given) {
        split(pair, part, SUBSEP)
        if (!(pair in used) && stage[part[1]] != "skip") {
            fail("calls.txt has argument " part[2] " of " part[1] ", which it does not take")
        }
    }
    print "const tsr_test_case tsr_test_cases[] = {"
    for (k = 1; k <= function_count; k++) {
        if (stage[function_name[k]] != "skip") {
            printf "    {\"%s\", case_%s},\n", function_name[k], function_name[k]
        }
    }
    print "    {\"the_job_is_left\", api_end},\n    {NULL, NULL},\n};\n/* NOLINTEND(readability-function-size) */"
    exit failed
}
