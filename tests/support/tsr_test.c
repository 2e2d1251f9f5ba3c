/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file tsr_test.c
 * What the harness's macros call, and the loop over cases shared by its mains.
 *
 * A case that hangs is ended by an alarm whose handler leaves the process at once: under mpirun
 * that takes the other ranks down, so that a stuck collective is a failure and not a stuck suite.
 */
#include "support/tsr_test.h"

#include "base/base.h"

#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PATH_COUNT = 8,
    PATH_BYTES = 1024,
    WATCHDOG_STATUS = 97,
    DEFAULT_LIMIT_S = 60,
    MOST_LOAD = 6, /* times a case may take longer on a busy machine */
#if defined(__SANITIZE_ADDRESS__)
    SLOWER = 2
#else
    SLOWER = 1
#endif
};

static int g_failures;
static unsigned g_cores = 1;
static unsigned g_limit_s = DEFAULT_LIMIT_S; /* of a case, on a machine that does nothing else */
static volatile sig_atomic_t g_waited;       /* limits that the case has taken */
static const char *volatile g_case = "start-up";

int tsr_test_rank(void)
{
    return tsri_rank();
}

int tsr_test_size(void)
{
    return tsri_size();
}

static const char *join_path(const char *folder, const char *name)
{
    static char paths[PATH_COUNT][PATH_BYTES];
    static int next = 0;
    char *path = paths[next];

    next = (next + 1) % PATH_COUNT;
    (void)snprintf(path, PATH_BYTES, "%s/%s", folder, name);
    return path;
}

const char *tsr_test_golden_path(const char *name)
{
    return join_path(TSR_GOLDEN_DIR, name);
}

const char *tsr_test_source_path(const char *name)
{
    return join_path(TSR_TESTS_DIR, name);
}

const char *tsr_test_scratch_path(const char *name)
{
    const char *folder = getenv("TSR_TEST_SCRATCH");

    if (folder == NULL) {
        folder = ".";
    }
    (void)mkdir(folder, 0777);
    return join_path(folder, name);
}

static bool verdict(bool held)
{
    g_failures += held ? 0 : 1;
    return held;
}

bool tsr_test_true(bool held, const char *file, int line, const char *text)
{
    if (!held) {
        (void)fprintf(stderr, "[rank %d] %s:%d: CHECK(%s) failed\n", tsri_rank(), file, line, text);
    }
    return verdict(held);
}

bool tsr_test_eq(long long a, long long b, const char *file, int line, const char *text)
{
    if (a != b) {
        (void)fprintf(stderr, "[rank %d] %s:%d: %s failed: %lld and %lld\n", tsri_rank(), file,
                      line, text, a, b);
    }
    return verdict(a == b);
}

bool tsr_test_near(double a, double b, double tolerance, const char *file, int line,
                   const char *text)
{
    bool held = fabs(a - b) <= tolerance;

    if (!held) {
        (void)fprintf(stderr, "[rank %d] %s:%d: %s failed: %.17g and %.17g, off by %.3g > %.3g\n",
                      tsri_rank(), file, line, text, a, b, fabs(a - b), tolerance);
    }
    return verdict(held);
}

bool tsr_test_str(const char *a, const char *b, const char *file, int line, const char *text)
{
    bool held = a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);

    if (!held) {
        (void)fprintf(stderr, "[rank %d] %s:%d: %s failed: \"%s\" and \"%s\"\n", tsri_rank(), file,
                      line, text, a != NULL ? a : "(null)", b != NULL ? b : "(null)");
    }
    return verdict(held);
}

bool tsr_test_status(tsr_status expected, tsr_status actual, const char *file, int line,
                     const char *text)
{
    if (actual != expected) {
        (void)fprintf(stderr, "[rank %d] %s:%d: %s gave %s, wants %s\n", tsri_rank(), file, line,
                      text, tsr_status_name(actual), tsr_status_name(expected));
        tsr_error_print(stderr);
    }
    tsr_error_clear();
    return verdict(actual == expected);
}

/* Runnable processes per core, from 1 to MOST_LOAD: on a busy machine a case may take as much
 * longer. Calls that a handler may make alone. */
static unsigned load(void)
{
    char text[32] = "";
    const int file = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
    unsigned count = 0;

    if (file >= 0) {
        (void)!read(file, text, sizeof(text) - 1);
        (void)close(file);
    }
    for (const char *c = text; *c >= '0' && *c <= '9' && count < 1000; c++) {
        count = count * 10 + (unsigned)(*c - '0');
    }
    count /= g_cores;
    count = count < MOST_LOAD ? count : MOST_LOAD;
    return count > 1 ? count : 1;
}

static void on_alarm(int signal_number)
{
    static const char head[] = "test watchdog: stuck in case ";
    const char *name = g_case;

    (void)signal_number;
    g_waited++;
    if ((unsigned)g_waited < load()) {
        (void)alarm(g_limit_s);
        return;
    }
    (void)!write(STDERR_FILENO, head, sizeof(head) - 1);
    (void)!write(STDERR_FILENO, name, strlen(name));
    (void)!write(STDERR_FILENO, "\n", 1);
    _exit(WATCHDOG_STATUS);
}

static unsigned watchdog_seconds(void)
{
    const char *asked = getenv("TSR_TEST_WATCHDOG_S");
    long seconds = asked != NULL ? strtol(asked, NULL, 10) : 0;

    return seconds > 0 ? (unsigned)seconds : DEFAULT_LIMIT_S;
}

void tsr_test_begin(int rank, int size)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);

    g_cores = cores > 0 ? (unsigned)cores : 1;
    g_limit_s = watchdog_seconds() * SLOWER;
    (void)signal(SIGALRM, on_alarm);
    tsri_set_rank(rank, size);
}

static int remove_below(const char *path, const struct stat *info, int type, struct FTW *walk)
{
    (void)info;
    (void)type;
    return walk->level > 0 ? remove(path) : 0;
}

/* What an earlier run left behind must not be found; the folder itself is where we run. */
static void empty_scratch(void)
{
    const char *folder = getenv("TSR_TEST_SCRATCH");

    if (folder != NULL && tsri_rank() == 0) {
        (void)nftw(folder, remove_below, 16, FTW_DEPTH | FTW_PHYS);
    }
}

static bool is_asked(int argc, char **argv, const char *name)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], name) == 0) {
            return true;
        }
    }
    return argc <= 1;
}

int tsr_test_run(int argc, char **argv, tsr_test_sum sum)
{
    int passed = 0;
    int failed = 0;

    empty_scratch();
    (void)sum(0); /* no rank writes before it is empty */
    for (const tsr_test_case *test = tsr_test_cases; test->name != NULL; test++) {
        int all = 0;

        if (!is_asked(argc, argv, test->name)) {
            continue;
        }
        g_failures = 0;
        g_case = test->name;
        g_waited = 0;
        (void)alarm(g_limit_s);
        test->run();
        if (g_failures > 0) {
            tsr_error_print(stderr);
        }
        all = sum(g_failures);
        (void)alarm(0);
        tsr_error_clear();
        passed += all == 0;
        failed += all != 0;
        if (tsri_rank() == 0) {
            (void)printf("%s %s\n", all == 0 ? "ok  " : "FAIL", test->name);
            (void)fflush(stdout);
        }
    }
    if (tsri_rank() == 0) {
        (void)printf("%d passed, %d failed\n", passed, failed);
    }
    return failed > 0 || passed == 0 ? 1 : 0;
}

#if defined(__SANITIZE_ADDRESS__)
int __lsan_do_recoverable_leak_check(void);

bool tsr_test_leaked(void)
{
    return __lsan_do_recoverable_leak_check() != 0;
}
#else
bool tsr_test_leaked(void)
{
    return false;
}
#endif
