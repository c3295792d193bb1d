/* A small NVML: a handful of GPUs whose answers the tests set by name. Built by the tests with the system's compiler. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define GPUS 8
#define ENTRIES 512
#define OK 0
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define TIMEOUT 10

typedef struct { char name[64]; int gpu; double value; } entry_t;
typedef struct { int index; } device_t;
typedef struct { uint32_t field, scope; int64_t timestamp, latency; uint32_t type; int32_t result;
                 union { double d; uint32_t u; uint64_t ull; } value; } field_t;
typedef struct { device_t *device; uint64_t type, data; uint32_t gpu_instance, compute_instance; } event_t;
typedef struct { int gpu; } sample_t;
typedef struct { uint32_t id; int32_t result; double value; const char *name, *long_name, *unit; } metric_t;
typedef struct { uint32_t version, count; sample_t *first, *second; metric_t metrics[1]; } metrics_t;

static entry_t entries[ENTRIES];
static int used;
static device_t devices[GPUS];

void stub_reset(void) { used = 0; }

static entry_t *find(const char *name, int gpu) {
    for (int i = 0; i < used; i++)
        if (entries[i].gpu == gpu && !strcmp(entries[i].name, name)) return &entries[i];
    return NULL;
}

void stub_set(const char *name, int gpu, double value) {
    entry_t *entry = find(name, gpu);
    if (!entry) {
        if (used == ENTRIES) abort();
        entry = &entries[used++];
        strncpy(entry->name, name, sizeof entry->name - 1);
        entry->gpu = gpu;
    }
    entry->value = value;
}

/* In a process that the tests don't reach into, NVML_STUB_GPUS says how many GPUs answer, all of them the same. */
__attribute__((constructor)) static void answer_for_all(void) {
    const char *text = getenv("NVML_STUB_GPUS");
    int count = text ? atoi(text) : 0;
    for (int gpu = 0; gpu < count && gpu < GPUS; gpu++) {
        stub_set("sm_clock", gpu, 1980), stub_set("memory_clock", gpu, 2619), stub_set("temperature", gpu, 60);
        stub_set("reasons", gpu, 0), stub_set("energy", gpu, 1e9), stub_set("ecc_corrected", gpu, 0);
        stub_set("ecc_uncorrected", gpu, 0), stub_set("gpm", gpu, 1), stub_set("gpm_02", gpu, 90);
        stub_set("gpm_20", gpu, 900), stub_set("gpm_21", gpu, 800), stub_set("gpm_60", gpu, 7), stub_set("gpm_61", gpu, 6);
    }
    if (count) stub_set("count", -1, count);
}

/* The result of a function: set as "fail_NAME", of one GPU or (-1) of all; else OK. */
static int result(const char *function, int gpu) {
    char name[64] = "fail_";
    strncat(name, function, sizeof name - 6);
    entry_t *lost = find("lost", gpu);
    if (lost && lost->value) return (int)lost->value;
    entry_t *entry = find(name, gpu);
    if (!entry) entry = find(name, -1);
    return entry ? (int)entry->value : OK;
}

static int value_of(const char *name, int gpu, double *value) {
    entry_t *entry = find(name, gpu);
    if (!entry) return NOT_SUPPORTED;
    *value = entry->value;
    return OK;
}

#define ANSWER(function, name, type)                                   \
    double value;                                                      \
    int code = result(function, device->index);                        \
    if (code == OK) code = value_of(name, device->index, &value);      \
    if (code == OK) *answer = (type)value;                             \
    return code

int nvmlInitWithFlags(uint32_t flags) { (void)flags; return result("init", -1); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == OK ? "Success" : "a stub's error"; }

int nvmlDeviceGetCount_v2(uint32_t *answer) {
    double value = 0;
    value_of("count", -1, &value);
    *answer = (uint32_t)value;
    return result("count", -1);
}

int nvmlDeviceGetHandleByIndex_v2(uint32_t index, device_t **answer) {
    if (index >= GPUS) return NOT_FOUND;
    devices[index].index = (int)index;
    *answer = &devices[index];
    return result("handle", (int)index);
}

int nvmlDeviceGetUUID(device_t *device, char *answer, uint32_t size) {
    strncpy(answer, "GPU-stub-0", size);
    answer[9] = (char)('0' + device->index);
    return result("uuid", device->index);
}

int nvmlDeviceGetClockInfo(device_t *device, uint32_t kind, uint32_t *answer) {
    ANSWER("clock", kind == 1 ? "sm_clock" : "memory_clock", uint32_t);
}
int nvmlDeviceGetTemperature(device_t *device, uint32_t sensor, uint32_t *answer) {
    (void)sensor;
    ANSWER("temperature", "temperature", uint32_t);
}
int nvmlDeviceGetCurrentClocksEventReasons(device_t *device, uint64_t *answer) {
    ANSWER("reasons", "reasons", uint64_t);
}
int nvmlDeviceGetTotalEccErrors(device_t *device, uint32_t kind, uint32_t counter, uint64_t *answer) {
    (void)counter;
    ANSWER("ecc", kind == 0 ? "ecc_corrected" : "ecc_uncorrected", uint64_t);
}
int nvmlDeviceGetTotalEnergyConsumption(device_t *device, uint64_t *answer) { ANSWER("energy", "energy", uint64_t); }
int nvmlDeviceGetPowerUsage(device_t *device, uint32_t *answer) { ANSWER("power", "power", uint32_t); }
int nvmlDeviceGetPcieThroughput(device_t *device, uint32_t direction, uint32_t *answer) {
    ANSWER("pcie", direction == 0 ? "pcie_tx" : "pcie_rx", uint32_t);
}

int nvmlDeviceGetFieldValues(device_t *device, int count, field_t *values) {
    int code = result("fields", device->index);
    for (int i = 0; i < count && code == OK; i++) {
        char name[32] = "field_";
        name[6] = (char)('0' + values[i].field / 100 % 10);
        name[7] = (char)('0' + values[i].field / 10 % 10);
        name[8] = (char)('0' + values[i].field % 10);
        double value = 0;
        values[i].result = value_of(name, device->index, &value);
        values[i].type = 3;
        values[i].value.ull = (uint64_t)value;
    }
    return code;
}

static int event_set;
int nvmlEventSetCreate(void **answer) { *answer = &event_set; return result("events", -1); }
int nvmlEventSetFree(void *set) { (void)set; return OK; }
int nvmlDeviceRegisterEvents(device_t *device, uint64_t kinds, void *set) {
    (void)kinds, (void)set;
    return result("register", device->index);
}
int nvmlEventSetWait_v2(void *set, event_t *event, uint32_t wait_ms) {
    (void)set, (void)wait_ms;
    for (int i = 0; i < used; i++)
        if (!strcmp(entries[i].name, "xid") && entries[i].value) {
            event->device = &devices[entries[i].gpu];
            event->type = 8;
            event->data = (uint64_t)entries[i].value;
            entries[i].value = 0;
            return OK;
        }
    return TIMEOUT;
}

int nvmlGpmQueryDeviceSupport(device_t *device, uint32_t *support) {
    double value = 0;
    value_of("gpm", device->index, &value);
    support[1] = (uint32_t)value;
    return result("gpm_support", device->index);
}
int nvmlGpmSampleAlloc(sample_t **answer) { *answer = calloc(1, sizeof **answer); return OK; }
int nvmlGpmSampleFree(sample_t *sample) {
    int gpu = sample->gpu;
    free(sample);
    return result("gpm_free", gpu);
}
int nvmlGpmSampleGet(device_t *device, sample_t *sample) {
    sample->gpu = device->index;
    return result("gpm_sample", device->index);
}
int nvmlGpmMetricsGet(metrics_t *asked) {
    if (asked->version != 1 || !asked->first || !asked->second) return 2;
    for (uint32_t i = 0; i < asked->count; i++) {
        char name[32] = "gpm_";
        name[4] = (char)('0' + asked->metrics[i].id / 10);
        name[5] = (char)('0' + asked->metrics[i].id % 10);
        asked->metrics[i].result = value_of(name, asked->second->gpu, &asked->metrics[i].value);
    }
    return result("gpm_metrics", asked->second->gpu);
}
