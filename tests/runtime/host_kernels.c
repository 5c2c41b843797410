/* The sample package's kernels and a plain k3_run, for tests of the runtime alone. */
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

enum { VOCAB = 32, HIDDEN = 8 };
typedef void (*kernel_t)(int64_t *, int64_t, int64_t, int64_t, int64_t);

static float scalar(int64_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

void embed(int64_t *args, int64_t lo, int64_t hi, int64_t gx, int64_t gy) {
    const int32_t *tokens = (const int32_t *)args[0];
    const float *table = (const float *)args[1];
    float *x = (float *)args[2];
    (void)gx, (void)gy;
    for (int64_t t = lo; t < hi; t++)
        for (int i = 0; i < HIDDEN; i++)
            x[t * HIDDEN + i] = table[tokens[t] * HIDDEN + i] * scalar(args[4]);
}

/* logits[r, v] = dot(x[rows[r]], table[v]); one program has eight columns */
void head(int64_t *args, int64_t lo, int64_t hi, int64_t gx, int64_t gy) {
    const float *x = (const float *)args[0], *table = (const float *)args[2];
    const int32_t *rows = (const int32_t *)args[1];
    float *logits = (float *)args[3];
    (void)gy;
    for (int64_t pid = lo; pid < hi; pid++) {
        int64_t r = pid % gx, block = pid / gx;
        for (int64_t v = block * 8; v < block * 8 + 8; v++) {
            float sum = 0;
            for (int i = 0; i < HIDDEN; i++)
                sum += x[rows[r] * HIDDEN + i] * table[v * HIDDEN + i];
            logits[r * VOCAB + v] = sum;
        }
    }
}

/* tokens and rows of a decode step; a live row's words start with its token */
void feed(int64_t *args, int64_t lo, int64_t hi, int64_t gx, int64_t gy) {
    const int32_t *record = (const int32_t *)args[0];
    int32_t *tokens = (int32_t *)args[1], *rows = (int32_t *)args[2];
    (void)gx, (void)gy;
    for (int64_t t = lo; t < hi; t++) {
        tokens[t] = t < record[0] ? record[record[1 + t]] : 0;
        rows[t] = (int32_t)t;
    }
}

/* Row: function, args, programs, gx, gy, cursor, grain, 0. sync[0] counts arrivals. */
void k3_run(int64_t *table, int64_t count, int64_t thread, int64_t threads, int64_t *sync) {
    _Atomic int64_t *arrived = (_Atomic int64_t *)sync;
    (void)thread;
    for (int64_t i = 0; i < count; i++) {
        int64_t *row = table + 8 * i;
        for (;;) {
            int64_t lo = atomic_fetch_add((_Atomic int64_t *)(row + 5), row[6]);
            if (lo >= row[2]) break;
            int64_t hi = lo + row[6] < row[2] ? lo + row[6] : row[2];
            ((kernel_t)row[0])((int64_t *)row[1], lo, hi, row[3], row[4]);
        }
        atomic_fetch_add(arrived, 1);
        while (atomic_load(arrived) < (i + 1) * threads) ;
    }
}
