/* Linear, ReLU, Linear on samples that are mostly zeros, in float32: outputs and plain SGD, on one thread.

   Samples are kept as compressed sparse rows: in the first layer a value that is not 0 costs one fused
   product for each vector of hidden units, a 0 costs nothing. Hidden units are taken in groups of at
   most GROUP vectors, whose sums stay in registers. Their gradient turns the batch into compressed
   sparse columns, so that the weights of an input are loaded and stored once.

   Few samples that are seen many times (`begin_dual`): every gradient of the first layer is a sum of
   samples, so its weights are W + A^T X. Steps keep A, one row a sample, and take products of
   samples, X X^T, that are computed once; `end_dual` adds A^T X to the weights. The same steps, up
   to rounding.

   Parameters are packed: the first layer as [group][input][vectors * LANES], then its biases, the
   second layer as [output][vectors * LANES], its biases. Hidden units are padded to whole vectors
   with zeros, which stay zeros. */

#ifndef CVRCORE_SPARSE_MLP_H
#define CVRCORE_SPARSE_MLP_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
#define FMA(a, b, c) ((vec)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define LANES 8
#define FMA(a, b, c) ((vec)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#else
#define LANES 4
#define FMA(a, b, c) ((a) * (b) + (c))
#endif

#define GROUP 7 /* most vectors of hidden units in a group */
#define CASES CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7)

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#define INLINE static inline __attribute__((always_inline))

INLINE vec load(const float *from) { return *(const vec *)from; }
INLINE void store(float *to, vec value) { *(vec *)to = value; }
INLINE vec same(float value) { return value - (vec){0}; }

typedef struct {
    int32_t row; /* of the batch */
    float value;
} Entry;

/* The caller owns all arrays. */
typedef struct {
    ptrdiff_t n_in, n_hidden, n_out;
    ptrdiff_t width, n_groups; /* hidden units with padding, and groups of them */
    /* Samples as compressed sparse rows. */
    int32_t *columns;
    float *values;
    int64_t *rows; /* (samples + 1): where each begins */
    /* Packed parameters. */
    float *weight, *bias, *head, *head_bias;
    /* Room for a batch of n. */
    float *features; /* (n, width) */
    float *slopes;   /* (n, n_out): gradient of the loss with respect to the outputs */
    float *delta;    /* (n, GROUP * LANES): with respect to a group of hidden units before the ReLU */
    Entry *entries;  /* values of the batch by input */
    int64_t *inputs; /* (n_in + 2): where those of each input begin, and room to count */
    /* Of few samples that are seen many times, else unused. */
    ptrdiff_t n_dual;
    float *gram;  /* (n_dual, n_dual): products of samples, plus 1 for the bias */
    float *start; /* (n_groups, n_dual, vectors * LANES): hidden units of W before the ReLU */
    float *sums;  /* likewise: A */
} Net;

/* First hidden unit of a group: vectors are spread evenly over groups. */
INLINE ptrdiff_t first_of(const Net *n, ptrdiff_t group) {
    return n->width / LANES * group / n->n_groups * LANES;
}

/* ---- samples and parameters ---- */

static int64_t count_values(const float *x, ptrdiff_t n) {
    int64_t count = 0;
    for (ptrdiff_t i = 0; i < n; i++) count += x[i] != 0.0f;
    return count;
}

static void compress(const Net *n, const float *x, ptrdiff_t n_rows) {
    int64_t at = 0;
    for (ptrdiff_t i = 0; i < n_rows; i++, x += n->n_in) {
        n->rows[i] = at;
        for (ptrdiff_t j = 0; j < n->n_in; j++) {
            /* Written always, kept if it is not 0: no branch to predict. */
            n->columns[at] = (int32_t)j;
            n->values[at] = x[j];
            at += x[j] != 0.0f;
        }
    }
    n->rows[n_rows] = at;
}

/* `model` is the parameters in torch's order: (n_hidden, n_in), (n_hidden), (n_out, n_hidden), (n_out). */
static void pack(const Net *n, const float *model) {
    const float *bias = model + n->n_hidden * n->n_in, *head = bias + n->n_hidden;
    for (ptrdiff_t g = 0; g < n->n_groups; g++) {
        const ptrdiff_t first = first_of(n, g), last = first_of(n, g + 1);
        float *to = n->weight + first * n->n_in;
        for (ptrdiff_t j = 0; j < n->n_in; j++)
            for (ptrdiff_t h = first; h < last; h++) *to++ = h < n->n_hidden ? model[h * n->n_in + j] : 0.0f;
    }
    memset(n->bias, 0, n->width * sizeof(float));
    memcpy(n->bias, bias, n->n_hidden * sizeof(float));
    memset(n->head, 0, n->n_out * n->width * sizeof(float));
    for (ptrdiff_t c = 0; c < n->n_out; c++)
        memcpy(n->head + c * n->width, head + c * n->n_hidden, n->n_hidden * sizeof(float));
    memcpy(n->head_bias, head + n->n_out * n->n_hidden, n->n_out * sizeof(float));
}

static void unpack(const Net *n, float *model) {
    float *bias = model + n->n_hidden * n->n_in, *head = bias + n->n_hidden;
    for (ptrdiff_t g = 0; g < n->n_groups; g++) {
        const ptrdiff_t first = first_of(n, g), width = first_of(n, g + 1) - first;
        const ptrdiff_t used = first + width <= n->n_hidden ? width : n->n_hidden - first;
        const float *from = n->weight + first * n->n_in;
        for (ptrdiff_t j = 0; j < n->n_in; j++, from += width)
            for (ptrdiff_t k = 0; k < used; k++) model[(first + k) * n->n_in + j] = from[k];
    }
    memcpy(bias, n->bias, n->n_hidden * sizeof(float));
    for (ptrdiff_t c = 0; c < n->n_out; c++)
        memcpy(head + c * n->n_hidden, n->head + c * n->width, n->n_hidden * sizeof(float));
    memcpy(head + n->n_out * n->n_hidden, n->head_bias, n->n_out * sizeof(float));
}

/* ---- forward ---- */

INLINE vec positive(vec value) { /* ReLU; NaN stays NaN */
    const ivec negative = value < (vec){0};
    return (vec)(~negative & (ivec)value);
}

/* Hidden units of a group, to rows of `out` that are `stride` apart. */
INLINE void hidden_group(const Net *n, const int64_t *rows, ptrdiff_t count, ptrdiff_t first, float *out,
                         ptrdiff_t stride, const int relu, const int size) {
    const float *weight = n->weight + first * n->n_in, *bias = n->bias + first;
    for (ptrdiff_t i = 0; i < count; i++) {
        vec sum[GROUP];
        for (int k = 0; k < size; k++) sum[k] = load(bias + k * LANES);
        const int64_t end = n->rows[rows[i] + 1];
        for (int64_t e = n->rows[rows[i]]; e < end; e++) {
            const float *w = weight + n->columns[e] * (ptrdiff_t)(size * LANES);
            const vec value = same(n->values[e]);
            for (int k = 0; k < size; k++) sum[k] = FMA(value, load(w + k * LANES), sum[k]);
        }
        for (int k = 0; k < size; k++) store(out + i * stride + k * LANES, relu ? positive(sum[k]) : sum[k]);
    }
}

/* Likewise from the products of samples. */
INLINE void dual_group(const Net *n, const int64_t *rows, ptrdiff_t count, ptrdiff_t first, const int size) {
    const ptrdiff_t width = size * LANES;
    const float *start = n->start + first * n->n_dual, *sums = n->sums + first * n->n_dual;
    for (ptrdiff_t i = 0; i < count; i++) {
        vec sum[GROUP];
        for (int k = 0; k < size; k++) sum[k] = load(start + rows[i] * width + k * LANES);
        const float *products = n->gram + rows[i] * n->n_dual;
        for (ptrdiff_t j = 0; j < n->n_dual; j++) {
            const vec value = same(products[j]);
            for (int k = 0; k < size; k++) sum[k] = FMA(value, load(sums + j * width + k * LANES), sum[k]);
        }
        for (int k = 0; k < size; k++) store(n->features + i * n->width + first + k * LANES, positive(sum[k]));
    }
}

static void hidden(const Net *n, const int64_t *rows, ptrdiff_t count) {
    for (ptrdiff_t g = 0; g < n->n_groups; g++) {
        const ptrdiff_t first = first_of(n, g);
#define CASE(size) \
    case size: \
        if (n->n_dual) dual_group(n, rows, count, first, size); \
        else hidden_group(n, rows, count, first, n->features + first, n->width, 1, size); \
        break;
        switch ((first_of(n, g + 1) - first) / LANES) { CASES }
#undef CASE
    }
}

INLINE float total(vec a) {
#if LANES == 16
    float sum = 0.0f;
    for (int k = 0; k < 4; k++) sum += (a[k] + a[k + 4]) + (a[k + 8] + a[k + 12]);
    return sum;
#elif LANES == 8
    return ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7]));
#else
    return (a[0] + a[1]) + (a[2] + a[3]);
#endif
}

/* `some` outputs of one sample. */
INLINE void some_outputs(const Net *n, const float *features, ptrdiff_t first, float *out, const int some) {
    const float *weight = n->head + first * n->width;
    vec sum[5];
    for (int c = 0; c < some; c++) sum[c] = (vec){0};
    for (ptrdiff_t h = 0; h < n->width; h += LANES) {
        const vec f = load(features + h);
        for (int c = 0; c < some; c++) sum[c] = FMA(f, load(weight + c * n->width + h), sum[c]);
    }
    for (int c = 0; c < some; c++) out[c] = n->head_bias[first + c] + total(sum[c]);
}

/* Outputs of `count` samples whose features are known, (count, n_out). */
static void outputs(const Net *n, ptrdiff_t count, float *out) {
    for (ptrdiff_t i = 0; i < count; i++, out += n->n_out) {
        const float *features = n->features + i * n->width;
        ptrdiff_t c = 0;
        for (; c + 5 <= n->n_out; c += 5) some_outputs(n, features, c, out + c, 5);
        for (; c < n->n_out; c++) some_outputs(n, features, c, out + c, 1);
    }
}

static void forward(const Net *n, const int64_t *rows, ptrdiff_t count, float *out) {
    hidden(n, rows, count);
    outputs(n, count, out);
}

/* ---- one step ---- */

/* Turn outputs into the gradient of the mean loss: cross entropy, or squared error. */
static void gradients(const Net *n, ptrdiff_t count, const float *targets, int regression) {
    const ptrdiff_t width = n->n_out;
    for (ptrdiff_t i = 0; i < count; i++) {
        float *out = n->slopes + i * width;
        const float *wanted = targets + i * width;
        if (regression) {
            for (ptrdiff_t c = 0; c < width; c++) out[c] = (out[c] - wanted[c]) * (2.0f / (count * width));
            continue;
        }
        float top = out[0], total = 0.0f;
        for (ptrdiff_t c = 1; c < width; c++) top = out[c] > top ? out[c] : top;
        for (ptrdiff_t c = 0; c < width; c++) total += out[c] = expf(out[c] - top);
        for (ptrdiff_t c = 0; c < width; c++) out[c] = (out[c] / total - wanted[c]) * (1.0f / count);
    }
}

/* List the values of the batch by input, times `scale`. */
static void by_input(const Net *n, const int64_t *rows, ptrdiff_t count, float scale) {
    int64_t *inputs = n->inputs;
    memset(inputs, 0, (n->n_in + 2) * sizeof(int64_t));
    for (ptrdiff_t i = 0; i < count; i++) {
        const int64_t end = n->rows[rows[i] + 1];
        for (int64_t e = n->rows[rows[i]]; e < end; e++) inputs[n->columns[e] + 2]++;
    }
    for (ptrdiff_t j = 0; j < n->n_in; j++) inputs[j + 2] += inputs[j + 1];
    for (ptrdiff_t i = 0; i < count; i++) {
        const int64_t end = n->rows[rows[i] + 1];
        for (int64_t e = n->rows[rows[i]]; e < end; e++) {
            Entry *entry = n->entries + inputs[n->columns[e] + 1]++;
            entry->row = (int32_t)i;
            entry->value = scale * n->values[e];
        }
    }
}

/* Gradient with respect to the hidden units before the ReLU, by the head as it is; times `scale` it is
   added to the biases. */
INLINE void hidden_gradient(const Net *n, ptrdiff_t count, ptrdiff_t first, float scale, const int size) {
    vec sum[GROUP], total[GROUP];
    for (int k = 0; k < size; k++) total[k] = (vec){0};
    for (ptrdiff_t i = 0; i < count; i++) {
        for (int k = 0; k < size; k++) sum[k] = (vec){0};
        for (ptrdiff_t c = 0; c < n->n_out; c++) {
            const vec slope = same(n->slopes[i * n->n_out + c]);
            const float *w = n->head + c * n->width + first;
            for (int k = 0; k < size; k++) sum[k] = FMA(slope, load(w + k * LANES), sum[k]);
        }
        for (int k = 0; k < size; k++) {
            const ivec off = load(n->features + i * n->width + first + k * LANES) <= (vec){0};
            sum[k] = (vec)(~off & (ivec)sum[k]);
            total[k] += sum[k];
            store(n->delta + (i * size + k) * LANES, sum[k]);
        }
    }
    for (int k = 0; k < size; k++) {
        float *bias = n->bias + first + k * LANES;
        store(bias, FMA(same(scale), total[k], load(bias)));
    }
}

/* Add the entries of each input times rows of `delta` to its weights. */
INLINE void add_entries(const Net *n, const float *delta, ptrdiff_t first, const int size) {
    const ptrdiff_t width = size * LANES;
    float *weight = n->weight + first * n->n_in;
    for (ptrdiff_t j = 0; j < n->n_in; j++, weight += width) {
        int64_t e = n->inputs[j];
        const int64_t end = n->inputs[j + 1];
        if (e == end) continue;
        vec sum[GROUP];
        for (int k = 0; k < size; k++) sum[k] = load(weight + k * LANES);
        for (; e < end; e++) {
            const float *d = delta + n->entries[e].row * width;
            const vec value = same(n->entries[e].value);
            for (int k = 0; k < size; k++) sum[k] = FMA(value, load(d + k * LANES), sum[k]);
        }
        for (int k = 0; k < size; k++) store(weight + k * LANES, sum[k]);
    }
}

/* Add rows of `delta` times `scale` to the rows of A. */
INLINE void add_rows(const Net *n, const int64_t *rows, ptrdiff_t count, ptrdiff_t first, float scale,
                     const int size) {
    for (ptrdiff_t i = 0; i < count; i++) {
        float *to = n->sums + first * n->n_dual + rows[i] * size * LANES;
        for (int k = 0; k < size; k++)
            store(to + k * LANES, FMA(same(scale), load(n->delta + (i * size + k) * LANES), load(to + k * LANES)));
    }
}

INLINE void descend_head(const Net *n, ptrdiff_t count, float lr, ptrdiff_t first, const int size) {
    for (ptrdiff_t c = 0; c < n->n_out; c++) {
        vec sum[GROUP];
        for (int k = 0; k < size; k++) sum[k] = (vec){0};
        for (ptrdiff_t i = 0; i < count; i++) {
            const vec slope = same(n->slopes[i * n->n_out + c]);
            const float *f = n->features + i * n->width + first;
            for (int k = 0; k < size; k++) sum[k] = FMA(slope, load(f + k * LANES), sum[k]);
        }
        float *w = n->head + c * n->width + first;
        for (int k = 0; k < size; k++) store(w + k * LANES, FMA(same(-lr), sum[k], load(w + k * LANES)));
    }
}

static void descend_head_bias(const Net *n, ptrdiff_t count, float lr) {
    for (ptrdiff_t c = 0; c < n->n_out; c++) {
        float sum = 0.0f;
        for (ptrdiff_t i = 0; i < count; i++) sum += n->slopes[i * n->n_out + c];
        n->head_bias[c] -= lr * sum;
    }
}

static void step(const Net *n, const int64_t *rows, ptrdiff_t count, const float *targets, float lr,
                 int regression) {
    forward(n, rows, count, n->slopes);
    gradients(n, count, targets, regression);
    if (!n->n_dual) by_input(n, rows, count, -lr);
    for (ptrdiff_t g = 0; g < n->n_groups; g++) {
        const ptrdiff_t first = first_of(n, g);
#define CASE(size) \
    case size: \
        hidden_gradient(n, count, first, -lr, size); \
        if (n->n_dual) add_rows(n, rows, count, first, -lr, size); \
        else add_entries(n, n->delta, first, size); \
        descend_head(n, count, lr, first, size); \
        break;
        switch ((first_of(n, g + 1) - first) / LANES) { CASES }
#undef CASE
    }
    descend_head_bias(n, count, lr);
}

/* ---- few samples, seen many times ---- */

/* `all` is 0, 1, .. n_dual - 1; `dense` has room for a sample and is 0. */
static void begin_dual(const Net *n, const int64_t *all, float *dense) {
    const ptrdiff_t count = n->n_dual;
    for (ptrdiff_t i = 0; i < count; i++) {
        for (int64_t e = n->rows[i]; e < n->rows[i + 1]; e++) dense[n->columns[e]] = n->values[e];
        for (ptrdiff_t j = 0; j <= i; j++) {
            float a = 0.0f, b = 0.0f, c = 0.0f, d = 0.0f;
            int64_t e = n->rows[j];
            const int64_t end = n->rows[j + 1];
            for (; e + 4 <= end; e += 4) {
                a += n->values[e] * dense[n->columns[e]];
                b += n->values[e + 1] * dense[n->columns[e + 1]];
                c += n->values[e + 2] * dense[n->columns[e + 2]];
                d += n->values[e + 3] * dense[n->columns[e + 3]];
            }
            for (; e < end; e++) a += n->values[e] * dense[n->columns[e]];
            n->gram[i * count + j] = n->gram[j * count + i] = 1.0f + ((a + b) + (c + d));
        }
        for (int64_t e = n->rows[i]; e < n->rows[i + 1]; e++) dense[n->columns[e]] = 0.0f;
    }
    memset(n->sums, 0, count * n->width * sizeof(float));
    for (ptrdiff_t g = 0; g < n->n_groups; g++) {
        const ptrdiff_t first = first_of(n, g);
        float *out = n->start + first * count;
#define CASE(size) \
    case size: hidden_group(n, all, count, first, out, size * LANES, 0, size); break;
        switch ((first_of(n, g + 1) - first) / LANES) { CASES }
#undef CASE
    }
}

static void end_dual(const Net *n, const int64_t *all) {
    by_input(n, all, n->n_dual, 1.0f);
    for (ptrdiff_t g = 0; g < n->n_groups; g++) {
        const ptrdiff_t first = first_of(n, g);
#define CASE(size) \
    case size: add_entries(n, n->sums + first * n->n_dual, first, size); break;
        switch ((first_of(n, g + 1) - first) / LANES) { CASES }
#undef CASE
    }
}

#endif
