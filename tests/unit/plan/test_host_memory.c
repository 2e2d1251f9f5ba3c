/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Limits of memory that control groups of both versions set. */
#include "base/base.h"
#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/host_memory.h"
#include "support/tsr_test.h"

#define MIB (1024.0 * 1024.0)

static char root[512];

static void make_root(void)
{
    char command[1200];

    (void)snprintf(root, sizeof(root), "%s", tsr_test_scratch_path("groups"));
    (void)snprintf(command, sizeof(command), "rm -rf '%s' && mkdir -p '%s/proc/self'", root, root);
    CHECK_EQ(system(command), 0); /* NOLINT(cert-env33-c): a folder of this test's name */
}

static void put(const char *folder, const char *name, const char *text)
{
    char path[1024];

    (void)snprintf(path, sizeof(path), "mkdir -p '%s/%s'", root, folder);
    CHECK_EQ(system(path), 0); /* NOLINT(cert-env33-c): as above */
    (void)snprintf(path, sizeof(path), "%s/%s/%s", root, folder, name);
    CHECK_OK(tsri_file_write(path, text, strlen(text)));
}

static double left_mib(void)
{
    return (double)tsri_host_memory_of_groups(root) / MIB;
}

static void test_none(void)
{
    make_root();
    CHECK_NEAR(left_mib(), 0.0, 0.0);
    put("proc/self", "cgroup", "0::/\n");
    put("sys/fs/cgroup", "memory.max", "max\n");
    CHECK_NEAR(left_mib(), 0.0, 0.0);
}

static void test_second(void)
{
    make_root();
    put("proc/self", "cgroup", "0::/job.slice/step\n");
    put("sys/fs/cgroup/job.slice/step", "memory.max", "max\n");
    put("sys/fs/cgroup/job.slice", "memory.max", "104857600\n");
    put("sys/fs/cgroup/job.slice", "memory.current", "52428800\n");
    put("sys/fs/cgroup/job.slice", "memory.stat",
        "anon 31457280\ninactive_file 10485760\nactive_file 10485760\n");
    CHECK_NEAR(left_mib(), 70.0, 0.0); /* 100 - (50 - 20) */
    put("sys/fs/cgroup/job.slice/step", "memory.max", "20971520\n");
    CHECK_NEAR(left_mib(), 20.0, 0.0);
}

static void test_first(void)
{
    make_root();
    put("proc/self", "cgroup",
        "11:cpu,cpuacct:/docker/ab\n5:memory:/docker/ab\n1:name=systemd:/docker/ab\n0::/x\n");
    put("sys/fs/cgroup/memory/docker/ab", "memory.limit_in_bytes", "104857600\n");
    put("sys/fs/cgroup/memory/docker/ab", "memory.usage_in_bytes", "41943040\n");
    put("sys/fs/cgroup/memory/docker/ab", "memory.stat",
        "inactive_file 1\ntotal_inactive_file 10485760\ntotal_active_file 0\n");
    CHECK_NEAR(left_mib(), 70.0, 0.0);
    /* Without a limit it says almost 2^63, which is more than any machine has. */
    put("sys/fs/cgroup/memory", "memory.limit_in_bytes", "9223372036854771712\n");
    CHECK_NEAR(left_mib(), 70.0, 0.0);
}

/* In a container its own group is the root, whatever its list says. */
static void test_container(void)
{
    make_root();
    put("proc/self", "cgroup", "5:memory:/docker/ab\n");
    put("sys/fs/cgroup/memory", "memory.limit_in_bytes", "52428800\n");
    put("sys/fs/cgroup/memory", "memory.usage_in_bytes", "0\n");
    CHECK_NEAR(left_mib(), 50.0, 0.0);
}

const tsr_test_case tsr_test_cases[] = {
    {"none", test_none},   {"second", test_second},
    {"first", test_first}, {"container", test_container},
    {NULL, NULL},
};
