/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* A machine from a few lines to hwloc XML. */
#include "support/machine.h"

#include "base/base.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_NUMA = 64,
    MAX_DEVICES = 400,
    MAX_PU = 1024,
    WORDS = 10
};

typedef enum kind {
    HOST,
    SWITCH,
    GPU,
    AMD,
    NIC,
    NVSWITCH,
    NOPCI
} kind;

typedef struct device {
    kind kind;
    int numa; /* ON_MACHINE; below: on_package */
    bool in_switch;
    char busid[16], name[32], model[32], id[16], class_id[8];
    bool net;
    double gb_s; /* of the PCI link */
    int cuda, nvml, opencl, rsmi, ze, gib;
    int gp; /* of the PCI device */
} device;

typedef struct machine {
    const char *name;
    int line;
    struct {
        int package, cores, gib, first_core;
    } numas[MAX_NUMA];
    int numa_count, package_count, core_count, threads;
    device devices[MAX_DEVICES];
    int device_count;
    double links[64][64];
    bool has_links;
    double port_gb_s;
    unsigned char allowed[MAX_PU];
    bool all_allowed;
    int gp;
    FILE *to;
} machine;

/* Where a device is that is on no NUMA node. */
enum {
    ON_MACHINE = -1
};

static int on_package(int package)
{
    return -2 - package;
}

/* ---- reading ---- */

static tsr_status bad(const machine *m, const char *what)
{
    return TSR_RAISE(TSR_ERR_FORMAT, "%s:%d: %s", m->name, m->line, what);
}

static void read_settings(char **words, int count, device *d)
{
    for (int i = 0; i < count; i++) {
        const char *equals = strchr(words[i], '=');
        const int value = equals != NULL ? (int)strtol(equals + 1, NULL, 10) : 0;

        if (strncmp(words[i], "cuda=", 5) == 0) {
            d->cuda = value;
        } else if (strncmp(words[i], "nvml=", 5) == 0) {
            d->nvml = value;
        } else if (strncmp(words[i], "opencl=", 7) == 0) {
            d->opencl = value;
        } else if (strncmp(words[i], "rsmi=", 5) == 0) {
            d->rsmi = value;
        } else if (strncmp(words[i], "ze=", 3) == 0) {
            d->ze = value;
        } else if (strncmp(words[i], "id=", 3) == 0) {
            (void)snprintf(d->id, sizeof(d->id), "%s", words[i] + 3);
        } else if (strncmp(words[i], "class=", 6) == 0) {
            (void)snprintf(d->class_id, sizeof(d->class_id), "%s", words[i] + 6);
        } else if (strncmp(words[i], "gb_s=", 5) == 0) {
            d->gb_s = strtod(words[i] + 5, NULL);
        } else if (strncmp(words[i], "gib=", 4) == 0) {
            d->gib = value;
        } else if (strncmp(words[i], "model=", 6) == 0) {
            (void)snprintf(d->model, sizeof(d->model), "%s", words[i] + 6);
        } else if (strcmp(words[i], "net") == 0) {
            d->net = true;
        }
    }
}

/* The place of the newest host line, of which devices are part. */
static device fresh(const machine *m, kind k)
{
    device d = {.kind = k,
                .numa = m->numa_count - 1,
                .cuda = -1,
                .nvml = -1,
                .opencl = -1,
                .rsmi = -1,
                .ze = -1,
                .gb_s = 31.507692};

    for (int i = 0; i < m->device_count && k != HOST; i++) {
        d.numa = m->devices[i].kind == HOST ? m->devices[i].numa : d.numa;
    }
    return d;
}

static tsr_status add_device(machine *m, kind k, char **words, int count)
{
    device d = fresh(m, k);
    bool after_switch = false;

    if (count < 2 || m->device_count == MAX_DEVICES) {
        return bad(m, "a device without an address, or too many devices");
    }
    if (k != NOPCI && (strlen(words[1]) < 7 || words[1][4] != ':')) {
        return bad(m, "an address is such as 0000:3b:00.0, of a host 0000:3a");
    }
    for (int i = 0; i < m->device_count; i++) {
        after_switch = m->devices[i].kind == SWITCH || (after_switch && m->devices[i].kind != HOST);
    }
    d.in_switch = after_switch && k != HOST && k != SWITCH;
    (void)snprintf(k == NOPCI ? d.name : d.busid, 16, "%.15s", words[1]);
    if (k == NIC && count > 2) {
        (void)snprintf(d.name, sizeof(d.name), "%s", words[2]);
    }
    if (k == HOST && count > 2) {
        d.numa = strcmp(words[2], "package") == 0 ? on_package(m->package_count - 1) : ON_MACHINE;
    }
    read_settings(words + 2, count - 2, &d);
    m->devices[m->device_count++] = d;
    return TSR_OK;
}

static tsr_status read_numa(machine *m, char **words, int count)
{
    if (count < 4 || m->numa_count == MAX_NUMA) {
        return bad(m, "numa wants cores, threads and GiB");
    }
    const long cores = strtol(words[1], NULL, 10);
    const long threads = strtol(words[2], NULL, 10);

    if (cores < 1 || cores > MAX_PU || threads < 1 || threads > 8 ||
        (m->core_count + cores) * threads > MAX_PU ||
        (m->numa_count > 0 && threads != m->threads)) {
        return bad(m, "no cores, too many, or threads unlike those before");
    }
    m->numas[m->numa_count].package = m->package_count - 1;
    m->numas[m->numa_count].cores = (int)cores;
    m->numas[m->numa_count].gib = (int)strtol(words[3], NULL, 10);
    m->numas[m->numa_count].first_core = m->core_count;
    m->core_count += (int)cores;
    m->threads = (int)threads;
    m->numa_count++;
    return TSR_OK;
}

static void read_allowed(machine *m, char *text)
{
    m->all_allowed = false;
    while (*text != '\0') {
        const long first = strtol(text, &text, 10);
        const long last = *text == '-' ? strtol(text + 1, &text, 10) : first;

        for (long i = first; i >= 0 && i <= last && i < MAX_PU; i++) {
            m->allowed[i] = 1;
        }
        if (*text != ',') {
            return;
        }
        text++;
    }
}

static tsr_status read_link(machine *m, char **words, int count)
{
    const long a = count > 3 ? strtol(words[1], NULL, 10) : 64;
    const long b = count > 3 ? strtol(words[2], NULL, 10) : 64;

    if (a < 0 || a > 63 || b < 0 || b > 63) {
        return bad(m, "link wants two GPUs and GB/s");
    }
    m->links[a][b] = strtod(words[3], NULL);
    m->links[b][a] = m->links[a][b];
    m->has_links = true;
    return TSR_OK;
}

static tsr_status read_line(machine *m, char **words, int count)
{
    static const char *const kinds[] = {"host", "switch", "gpu", "amd", "nic", "nvswitch", "nopci"};

    for (int i = 0; i < (int)(sizeof(kinds) / sizeof(kinds[0])); i++) {
        if (strcmp(words[0], kinds[i]) == 0) {
            TSR_TRY(add_device(m, (kind)i, words, count));
            return TSR_OK;
        }
    }
    if (strcmp(words[0], "package") == 0) {
        m->package_count++;
    } else if (strcmp(words[0], "numa") == 0) {
        TSR_TRY(read_numa(m, words, count));
    } else if (strcmp(words[0], "link") == 0) {
        TSR_TRY(read_link(m, words, count));
    } else if (strcmp(words[0], "ports") == 0 && count > 1) {
        m->port_gb_s = strtod(words[1], NULL);
        m->has_links = true;
    } else if (strcmp(words[0], "allowed") == 0 && count > 1) {
        read_allowed(m, words[1]);
    } else {
        TSR_TRY(bad(m, "no such word, or too few values"));
    }
    return TSR_OK;
}

static tsr_status read_all(machine *m, char *text)
{
    char *rest = NULL;

    for (char *l = strtok_r(text, "\n", &rest); l != NULL; l = strtok_r(NULL, "\n", &rest)) {
        char *words[WORDS];
        char *inner = NULL;
        int count = 0;

        m->line++;
        l[strcspn(l, "#")] = '\0';
        for (char *w = strtok_r(l, " \t", &inner); w != NULL && count < WORDS;
             w = strtok_r(NULL, " \t", &inner)) {
            words[count++] = w;
        }
        if (count > 0) {
            TSR_TRY(read_line(m, words, count));
        }
    }
    return m->numa_count > 0 ? TSR_OK : bad(m, "no numa line");
}

/* ---- writing ---- */

/* "0x0000000f,0x00000003" of a set of bits. */
static void write_set(const machine *m, const char *key, const unsigned char *bits, int count)
{
    int words = (count + 31) / 32;

    while (words > 1 && memchr(bits + (words - 1) * 32, 1, 32) == NULL) {
        words--; /* leading zeros */
    }
    (void)fprintf(m->to, " %s=\"", key);
    for (int w = words - 1; w >= 0; w--) {
        unsigned value = 0;

        for (int i = 0; i < 32 && w * 32 + i < count; i++) {
            value |= bits[w * 32 + i] != 0 ? 1u << i : 0u;
        }
        (void)fprintf(m->to, "0x%08x%s", value, w > 0 ? "," : "");
    }
    (void)fputc('"', m->to);
}

/* Threads of cores [first, first + count): Linux numbers the first of every core, then the second.
 */
static void mark(const machine *m, int first, int count, int thread, unsigned char *bits)
{
    for (int c = first; c < first + count; c++) {
        for (int t = 0; t < m->threads; t++) {
            if (thread < 0 || thread == t) {
                bits[c + t * m->core_count] = 1;
            }
        }
    }
}

static void write_sets(machine *m, int first, int count, int thread, int numa_first, int numas)
{
    unsigned char bits[MAX_PU] = {0};
    unsigned char nodes[MAX_NUMA] = {0};

    mark(m, first, count, thread, bits);
    for (int i = numa_first; i < numa_first + numas; i++) {
        nodes[i] = 1;
    }
    write_set(m, "cpuset", bits, MAX_PU);
    write_set(m, "complete_cpuset", bits, MAX_PU);
    write_set(m, "nodeset", nodes, MAX_NUMA);
    write_set(m, "complete_nodeset", nodes, MAX_NUMA);
    (void)fprintf(m->to, " gp_index=\"%d\"", m->gp++);
}

static void write_osdev(machine *m, const char *name, int type, const char *subtype, int gib)
{
    (void)fprintf(m->to,
                  "<object type=\"OSDev\" gp_index=\"%d\" name=\"%s\" subtype=\"%s\" "
                  "osdev_type=\"%d\">\n",
                  m->gp++, name, subtype, type);
    if (gib > 0) {
        (void)fprintf(m->to, "<info name=\"CUDAGlobalMemorySize\" value=\"%lld\"/>\n",
                      (long long)gib * 1024 * 1024);
    }
    if (strcmp(subtype, "OpenCL") == 0) {
        (void)fprintf(m->to, "<info name=\"OpenCLDeviceType\" value=\"GPU\"/>\n");
    }
    (void)fprintf(m->to, "</object>\n");
}

static void write_osdevs(machine *m, const device *d)
{
    char name[32];

    if (d->cuda >= 0) {
        (void)snprintf(name, sizeof(name), "cuda%d", d->cuda);
        write_osdev(m, name, 5, "CUDA", d->gib);
    }
    if (d->nvml >= 0) {
        (void)snprintf(name, sizeof(name), "nvml%d", d->nvml);
        write_osdev(m, name, 1, "NVML", 0);
    }
    if (d->opencl >= 0) {
        (void)snprintf(name, sizeof(name), "opencl0d%d", d->opencl);
        write_osdev(m, name, 5, "OpenCL", 0);
    }
    if (d->rsmi >= 0) {
        (void)snprintf(name, sizeof(name), "rsmi%d", d->rsmi);
        write_osdev(m, name, 1, "RSMI", 0);
    }
    if (d->ze >= 0) {
        (void)snprintf(name, sizeof(name), "ze%d", d->ze);
        write_osdev(m, name, 5, "LevelZero", 0);
    }
    if (d->kind == NIC && d->name[0] != '\0') {
        write_osdev(m, d->name, d->net ? 2 : 3, d->net ? "" : "OpenFabrics", 0);
    }
}

static void write_device(machine *m, device *d)
{
    static const char *const classes[] = {
        [GPU] = "0302", [AMD] = "0380", [NIC] = "0207", [NVSWITCH] = "0680"};
    static const char *const ids[] = {
        [GPU] = "10de:2335", [AMD] = "1002:740c", [NIC] = "15b3:1021", [NVSWITCH] = "10de:1ac2"};

    if (d->kind == NOPCI) {
        write_osdev(m, d->name, 5, "CUDA", 0);
        return;
    }
    d->gp = m->gp++;
    (void)fprintf(m->to,
                  "<object type=\"PCIDev\" gp_index=\"%d\"%s pci_busid=\"%s\" "
                  "pci_type=\"%s [%s] [0000:0000] 00\" pci_link_speed=\"%f\">\n",
                  d->gp, d->kind == NVSWITCH ? " subtype=\"NVSwitch\"" : "", d->busid,
                  d->class_id[0] != '\0' ? d->class_id : classes[d->kind],
                  d->id[0] != '\0' ? d->id : ids[d->kind], d->gb_s);
    if (d->model[0] != '\0') {
        (void)fprintf(m->to, "<info name=\"PCIDevice\" value=\"%s\"/>\n", d->model);
    }
    write_osdevs(m, d);
    (void)fprintf(m->to, "</object>\n");
}

/* Bridges are closed by what follows them. */
static void write_devices(machine *m, int numa)
{
    bool in_host = false;
    bool in_switch = false;

    for (int i = 0; i < m->device_count; i++) {
        device *d = &m->devices[i];
        const bool begins = d->kind == HOST || d->kind == SWITCH;

        if (d->numa != numa) {
            continue;
        }
        if (in_switch && (begins || !d->in_switch)) {
            (void)fprintf(m->to, "</object>\n");
            in_switch = false;
        }
        if (in_host && d->kind == HOST) {
            (void)fprintf(m->to, "</object>\n");
        }
        if (d->kind == HOST) {
            const char *bus = strchr(d->busid, ':');

            (void)fprintf(m->to,
                          "<object type=\"Bridge\" gp_index=\"%d\" bridge_type=\"0-1\" depth=\"0\" "
                          "bridge_pci=\"%.4s:[%.2s-%.2s]\">\n",
                          m->gp++, d->busid, bus + 1, bus + 1);
            in_host = true;
        } else if (d->kind == SWITCH) {
            const char *bus = strchr(d->busid, ':');

            (void)fprintf(m->to,
                          "<object type=\"Bridge\" gp_index=\"%d\" bridge_type=\"1-1\" depth=\"1\" "
                          "bridge_pci=\"%.4s:[%.2s-%.2s]\" pci_busid=\"%s\" "
                          "pci_type=\"0604 [10b5:8796] [10b5:8796] ca\">\n",
                          m->gp++, d->busid, bus + 1, bus + 1, d->busid);
            in_switch = true;
        } else {
            write_device(m, d);
        }
    }
    (void)fprintf(m->to, "%s%s", in_switch ? "</object>\n" : "", in_host ? "</object>\n" : "");
}

static void write_cores(machine *m, int numa)
{
    const int first = m->numas[numa].first_core;

    for (int c = first; c < first + m->numas[numa].cores; c++) {
        (void)fprintf(m->to, "<object type=\"Core\" os_index=\"%d\"", c);
        write_sets(m, c, 1, -1, numa, 1);
        (void)fprintf(m->to, ">\n");
        for (int t = 0; t < m->threads; t++) {
            (void)fprintf(m->to, "<object type=\"PU\" os_index=\"%d\"", c + t * m->core_count);
            write_sets(m, c, 1, t, numa, 1);
            (void)fprintf(m->to, "/>\n");
        }
        (void)fprintf(m->to, "</object>\n");
    }
}

/* A group, its NUMA node, its cores and its devices: as hwloc writes a node that is no package. */
static void write_numa(machine *m, int numa)
{
    const int first = m->numas[numa].first_core;

    (void)fprintf(m->to, "<object type=\"Group\" kind=\"1001\" subkind=\"0\"");
    write_sets(m, first, m->numas[numa].cores, -1, numa, 1);
    (void)fprintf(m->to, ">\n<object type=\"NUMANode\" os_index=\"%d\"", numa);
    write_sets(m, first, m->numas[numa].cores, -1, numa, 1);
    (void)fprintf(m->to, " local_memory=\"%lld\"/>\n", (long long)m->numas[numa].gib * (1LL << 30));
    write_cores(m, numa);
    write_devices(m, numa);
    (void)fprintf(m->to, "</object>\n");
}

static void write_package(machine *m, int package)
{
    int first = -1;
    int cores = 0;
    int numas = 0;

    for (int i = 0; i < m->numa_count; i++) {
        if (m->numas[i].package == package) {
            first = first < 0 ? i : first;
            cores += m->numas[i].cores;
            numas++;
        }
    }
    if (first < 0) {
        return;
    }
    if (package >= 0) {
        (void)fprintf(m->to, "<object type=\"Package\" os_index=\"%d\"", package);
        write_sets(m, m->numas[first].first_core, cores, -1, first, numas);
        (void)fprintf(m->to, ">\n");
    }
    for (int i = first; i < first + numas; i++) {
        write_numa(m, i);
    }
    if (package >= 0) {
        write_devices(m, on_package(package));
    }
    (void)fprintf(m->to, "%s", package >= 0 ? "</object>\n" : "");
}

static double link_of(const machine *m, const device *a, const device *b, int ia, int ib)
{
    if (a->kind != NVSWITCH && b->kind != NVSWITCH) {
        return m->links[ia][ib];
    }
    return a->kind == b->kind ? 0.0 : m->port_gb_s;
}

static void write_links(machine *m)
{
    const device *list[128];
    int count = 0;
    bool amd = false;

    for (int k = 0; k < 2; k++) { /* GPUs, then switches */
        for (int i = 0; i < m->device_count && count < 128; i++) {
            const kind of = m->devices[i].kind;

            if (k == 0 ? of == GPU || of == AMD : of == NVSWITCH) {
                list[count++] = &m->devices[i];
                amd = amd || of == AMD;
            }
        }
    }
    if (!m->has_links) {
        return;
    }
    (void)fprintf(m->to, "<distances2hetero nbobjs=\"%d\" kind=\"25\" name=\"%sBandwidth\">\n",
                  count, amd ? "XGMI" : "NVLink");
    for (int i = 0; i < count; i++) {
        char text[32];
        const int length = snprintf(text, sizeof(text), "PCIDev:%d ", list[i]->gp);

        (void)fprintf(m->to, "<indexes length=\"%d\">%s</indexes>\n", length, text);
    }
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < count; k++) {
            char text[32];
            const double mb_s =
                i == k ? 1000000.0 : 1000.0 * link_of(m, list[i], list[k], i & 63, k & 63);
            const int length = snprintf(text, sizeof(text), "%.0f ", mb_s);

            (void)fprintf(m->to, "<u64values length=\"%d\">%s</u64values>\n", length, text);
        }
    }
    (void)fprintf(m->to, "</distances2hetero>\n");
}

static void write_all(machine *m)
{
    unsigned char bits[MAX_PU] = {0};
    unsigned char nodes[MAX_NUMA] = {0};

    (void)fprintf(m->to, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                         "<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology version=\"2.0\">\n"
                         "<object type=\"Machine\" os_index=\"0\"");
    write_sets(m, 0, m->core_count, -1, 0, m->numa_count);
    mark(m, 0, m->core_count, -1, bits);
    memset(nodes, 1, (size_t)m->numa_count);
    write_set(m, "allowed_cpuset", m->all_allowed ? bits : m->allowed, MAX_PU);
    write_set(m, "allowed_nodeset", nodes, MAX_NUMA);
    (void)fprintf(m->to, ">\n");
    for (int p = -1; p < m->package_count; p++) {
        write_package(m, p);
    }
    write_devices(m, ON_MACHINE);
    (void)fprintf(m->to, "</object>\n");
    write_links(m);
    (void)fprintf(m->to, "</topology>\n");
}

static tsr_status write_text(machine *m, char **out)
{
    char *text = NULL;
    size_t bytes = 0;
    tsr_status status = TSR_OK;

    m->to = open_memstream(&text, &bytes);
    if (m->to == NULL) {
        return TSR_RAISE(TSR_ERR_NOMEM, "no memory for the XML");
    }
    write_all(m);
    (void)fclose(m->to);
    status = tsri_strdup(text, out);
    free(text);
    TSR_TRY(status);
    return TSR_OK;
}

tsr_status tsr_machine_xml(const char *text, const char *name, char **out)
{
    machine *m = NULL;
    char *copy = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsri_alloc(1, sizeof(*m), &m));
    m->name = name;
    m->all_allowed = true;
    m->gp = 1;
    TSR_TRY_GOTO(status, tsri_strdup(text, &copy), out);
    TSR_TRY_GOTO(status, read_all(m, copy), out);
    TSR_TRY_GOTO(status, write_text(m, out), out);
out:
    tsri_free(&copy);
    tsri_free(&m);
    return status;
}
