/* Stands in for libamdhip64: remembers what it is asked, and reads kernel arguments as HIP does. */
#include <stdint.h>
#include <string.h>

typedef struct { int32_t num_args; int32_t sizes[16]; int32_t offsets[16]; } Layout;
Layout layout;               /* of the kernel that is launched next, as the code object's note says */
uint8_t segment[256];
uint32_t launched[7];
uint64_t stream_seen, modules_open;
char found[64];

int hipModuleLoadData(void **module, const void *code) {
    if (memcmp(code, "\177ELF", 4)) return 209;
    modules_open++;
    *module = (void *)0x1000;
    return 0;
}
int hipModuleGetFunction(void **function, void *module, const char *name) {
    if (module != (void *)0x1000 || !strcmp(name, "absent")) return 500;
    strncpy(found, name, sizeof found - 1);
    *function = (void *)0x2000;
    return 0;
}
int hipModuleUnload(void *module) { modules_open--; return module != (void *)0x1000; }
int hipModuleLaunchKernel(void *function, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by,
                          uint32_t bz, uint32_t shared, void *stream, void **params, void **extra) {
    if (function != (void *)0x2000 || extra) return 1;
    uint32_t seen[7] = {gx, gy, gz, bx, by, bz, shared};
    memcpy(launched, seen, sizeof seen);
    stream_seen = (uint64_t)stream;
    memset(segment, 0xee, sizeof segment);
    for (int i = 0; i < layout.num_args; i++) memcpy(segment + layout.offsets[i], params[i], layout.sizes[i]);
    return 0;
}
const char *hipGetErrorName(int code) { return code == 500 ? "hipErrorNotFound" : "hipErrorInvalidImage"; }
