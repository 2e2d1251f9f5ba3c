/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Reading XML in a process apart.
 *
 * hwloc 2.9 trusts its XML: an object without a cpuset, as a cut or edited file may have, ends the
 * process that loads it. So a child loads it and sends the description through a pipe; a child that
 * dies, or takes too long, is a file that cannot be loaded. What comes is a status and a text: the
 * packed description, or the message of the failure. */
#include "topo_priv.h"

#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    LIMIT_S = 30, /* for a child; large machines take a tenth of a second */
    CHUNK = 1 << 16
};

static bool write_all(int fd, const void *data, size_t bytes)
{
    const char *at = data;

    while (bytes > 0) {
        const ssize_t done = write(fd, at, bytes);

        if (done < 0 && errno != EINTR) {
            return false;
        }
        at += done > 0 ? done : 0;
        bytes -= done > 0 ? (size_t)done : 0;
    }
    return true;
}

/* In the child. What hwloc says goes nowhere: the parent has its own words. */
static void serve(const char *name, const char *xml, int fd)
{
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    tsri_topo *topo = NULL;
    char *text = NULL;

    if (nowhere >= 0) {
        (void)dup2(nowhere, STDERR_FILENO);
        (void)dup2(nowhere, STDOUT_FILENO);
    }
    (void)alarm(LIMIT_S);
    tsr_status status = tsri_topo_load_xml(name, xml, &topo);

    if (status == TSR_OK) {
        status = tsri_topo_pack(topo, &text);
    }
    const char *words = status == TSR_OK ? text : tsr_error_message();

    if (write_all(fd, &status, sizeof(status))) {
        (void)write_all(fd, words, strlen(words));
    }
    _exit(0); /* lint: a child of ours, which must not run the parent's exit handlers */
}

static tsr_status receive(int fd, char **out, int *bytes_out)
{
    int capacity = 0;

    for (;;) {
        TSR_TRY(tsri_grow(out, &capacity, *bytes_out + CHUNK + 1, 1));
        const ssize_t got = read(fd, *out + *bytes_out, CHUNK);

        if (got == 0 || (got < 0 && errno != EINTR)) {
            (*out)[*bytes_out] = '\0';
            return TSR_OK;
        }
        *bytes_out += got > 0 ? (int)got : 0;
    }
}

static tsr_status understand(const char *name, const char *text, int bytes, int result,
                             tsri_topo **out)
{
    tsr_status status = TSR_OK;
    const size_t head = sizeof(status);

    if (!WIFEXITED(result) || WEXITSTATUS(result) != 0 || (size_t)bytes < head) {
        return TSR_RAISE(TSR_ERR_FORMAT,
                         "%s: hwloc XML that hwloc cannot load: it is damaged or cut", name);
    }
    memcpy(&status, text, head);
    if (status != TSR_OK) {
        return TSR_RAISE(status, "%s", text + head);
    }
    TSR_TRY(tsri_topo_unpack(text + head, (size_t)bytes - head, name, out));
    return TSR_OK;
}

tsr_status tsri_topo_read_apart(const char *name, const char *xml, tsri_topo **out)
{
    int ends[2] = {-1, -1};
    char *text = NULL;
    int bytes = 0;
    int result = 0;
    tsr_status status = TSR_OK;

    if (pipe2(ends, O_CLOEXEC) != 0) {
        return TSR_RAISE(TSR_ERR_IO, "%s: no pipe to read it through: %s", name, strerror(errno));
    }
    const pid_t child = fork();

    if (child == 0) {
        serve(name, xml, ends[1]);
    }
    (void)close(ends[1]);
    if (child < 0) {
        (void)close(ends[0]);
        return TSR_RAISE(TSR_ERR_IO, "%s: no process to read it in: %s", name, strerror(errno));
    }
    status = receive(ends[0], &text, &bytes);
    (void)close(ends[0]); /* a child that still writes ends by it */
    while (waitpid(child, &result, 0) < 0 && errno == EINTR) {
    }
    TSR_TRY_GOTO(status, status, out);
    TSR_TRY_GOTO(status, understand(name, text, bytes, result, out), out);
out:
    tsri_free(&text);
    return status;
}
