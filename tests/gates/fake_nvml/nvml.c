/* A stand-in for libnvidia-ml.so.1 that answers from a file, so that nvidia-ml-py itself is under test.
 *
 * The file named by FAKE_NVML_FILE holds KEY=VALUE lines: init, count, driver, nvml, cuda, gpuN.PROPERTY and
 * link.A.B.PROPERTY. A VALUE of error:CODE is returned as that NVML error; a key that is not there is "not supported"
 * (3). Built with -DOLD_DRIVER, the library lacks the symbols that old drivers lack.
 * Signatures and struct layouts are those of NVML's public interface, as nvidia-ml-py declares them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOT_SUPPORTED 3
#define INVALID_ARGUMENT 2
#define LINE 512

typedef struct { unsigned long long total, free, used; } memory_info;
typedef struct {
    char legacy[16];
    unsigned int domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} pci_info;

static int handles[64];

static int lookup(const char *key, char *value) {
    const char *path = getenv("FAKE_NVML_FILE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[LINE];
    size_t length = strlen(key);
    int code = NOT_SUPPORTED;
    if (!file) return 999;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, key, length) || line[length] != '=') continue;
        snprintf(value, LINE, "%s", line + length + 1);
        code = strncmp(value, "error:", 6) ? 0 : atoi(value + 6);
    }
    fclose(file);
    return code;
}

static int text(const char *key, char *out, unsigned int size) {
    char value[LINE];
    int code = lookup(key, value);
    if (!code) snprintf(out, size, "%s", value);
    return code;
}

static int number(const char *key, unsigned long long *out) {
    char value[LINE];
    int code = lookup(key, value);
    if (!code) *out = strtoull(value, NULL, 10);
    return code;
}

static int unsigned_number(const char *key, unsigned int *out) {
    unsigned long long value = 0;
    int code = number(key, &value);
    if (!code) *out = (unsigned int)value;
    return code;
}

static const char *key_of(void *device, const char *property) {
    static char key[LINE];
    snprintf(key, sizeof key, "gpu%d.%s", (int)((int *)device - handles), property);
    return key;
}

int nvmlInitWithFlags(unsigned int flags) {
    char value[LINE];
    int code = lookup("init", value);
    (void)flags;
    return code == NOT_SUPPORTED ? 0 : code;
}
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 27 ? "Not Ready" : "fake error"; }

int nvmlSystemGetDriverVersion(char *out, unsigned int size) { return text("driver", out, size); }
int nvmlSystemGetNVMLVersion(char *out, unsigned int size) { return text("nvml", out, size); }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { return unsigned_number("cuda", (unsigned int *)out); }
int nvmlDeviceGetCount_v2(unsigned int *out) { return unsigned_number("count", out); }

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **out) {
    char value[LINE];
    int code;
    if (index >= 64) return INVALID_ARGUMENT;
    *out = &handles[index];
    code = lookup(key_of(*out, "handle"), value);
    return code == NOT_SUPPORTED ? 0 : code;
}

int nvmlDeviceGetName(void *d, char *out, unsigned int size) { return text(key_of(d, "name"), out, size); }
int nvmlDeviceGetUUID(void *d, char *out, unsigned int size) { return text(key_of(d, "uuid"), out, size); }
int nvmlDeviceGetVbiosVersion(void *d, char *out, unsigned int size) { return text(key_of(d, "vbios"), out, size); }

int nvmlDeviceGetMemoryInfo(void *d, memory_info *out) {
    memset(out, 0, sizeof *out);
    return number(key_of(d, "memory"), &out->total);
}

int nvmlDeviceGetPciInfo_v3(void *d, pci_info *out) {
    memset(out, 0, sizeof *out);
    return text(key_of(d, "pci"), out->bus_id, sizeof out->bus_id);
}

int nvmlDeviceGetCudaComputeCapability(void *d, int *major, int *minor) {
    char value[LINE];
    int code = lookup(key_of(d, "capability"), value);
    if (!code && sscanf(value, "%d.%d", major, minor) != 2) return INVALID_ARGUMENT;
    return code;
}

int nvmlDeviceGetMigMode(void *d, unsigned int *current, unsigned int *pending) {
    int code = unsigned_number(key_of(d, "mig"), current);
    *pending = *current;
    return code;
}

int nvmlDeviceGetEccMode(void *d, unsigned int *current, unsigned int *pending) {
    int code = unsigned_number(key_of(d, "ecc"), current);
    *pending = *current;
    return code;
}

int nvmlDeviceGetComputeMode(void *d, unsigned int *out) { return unsigned_number(key_of(d, "compute_mode"), out); }
int nvmlDeviceGetPowerManagementLimit(void *d, unsigned int *out) { return unsigned_number(key_of(d, "power"), out); }

int nvmlDeviceGetMaxClockInfo(void *d, unsigned int type, unsigned int *out) {
    return unsigned_number(key_of(d, type == 1 ? "sm_clock" : "memory_clock"), out);
}

int nvmlDeviceGetApplicationsClock(void *d, unsigned int type, unsigned int *out) {
    return unsigned_number(key_of(d, type == 1 ? "application_sm_clock" : "application_memory_clock"), out);
}

#ifndef OLD_DRIVER
static const char *link_of(void *a, void *b, const char *property) {
    static char key[LINE];
    snprintf(key, sizeof key, "link.%d.%d.%s", (int)((int *)a - handles), (int)((int *)b - handles), property);
    return key;
}

int nvmlDeviceGetP2PStatus(void *a, void *b, unsigned int kind, unsigned int *out) {
    return unsigned_number(link_of(a, b, kind == 2 ? "nvlink" : "p2p"), out);
}
int nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, unsigned int *out) {
    return unsigned_number(link_of(a, b, "path"), out);
}
#endif
