/* Stacks of [3 x 3 convolution, ReLU, 2 x 2 max-pool] in float32: forward and plain SGD, on one thread.

   Forward: Winograd's F(2 x 2, 3 x 3), 16 products instead of 36 for each pair of channels. The four
   outputs of a tile are one window of the pool, so that pool, ReLU and the place of the maximum
   are found in registers and the output of the convolution is never written.

   Backward: a window has one live gradient or none. Live ones are listed, by output channel for the
   gradient of the weights, by window and place for the gradient of the input, and each costs nine
   fused products of LANES channels.

   A value that is not finite may come out of the transforms as another one, so the forward pass
   reports it; the caller repeats such a batch without transforms, before anything was changed.

   Layout: an image is planes of LANES channels, plane[h + 2][w + 2][LANES], with a border of zeros.
   The first image has four channels in a plane if it has at most four. */

#ifndef CVRCORE_CONVOLUTION_H
#define CVRCORE_CONVOLUTION_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
#define FMA(a, b, c) ((vec)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define MAX(a, b) ((vec)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define TALL 8
#define GROUP 8
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define LANES 8
#define FMA(a, b, c) ((vec)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define MAX(a, b) ((vec)_mm256_max_ps((__m256)(a), (__m256)(b)))
#define TALL 6
#define GROUP 12
#else
#define LANES 4
#define FMA(a, b, c) ((a) * (b) + (c))
#define MAX(a, b) larger(a, b)
#define TALL 6
#define GROUP 12
#endif

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int8_t bvec __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef float vec4 __attribute__((vector_size(16), aligned(4), may_alias));
#define INLINE static inline __attribute__((always_inline))
/* Not inlined: in one long function the inner loops would run out of registers. */
#define STAGE static __attribute__((noinline))
#define DEAD 4 /* place of the maximum of a window that ReLU cuts off */

#if LANES == 4
INLINE vec larger(vec a, vec b) {
    const ivec first = a > b;
    return (vec)((first & (ivec)a) | (~first & (ivec)b));
}
#endif

INLINE vec load(const float *from) { return *(const vec *)from; }
INLINE void store(float *to, vec value) { *(vec *)to = value; }
INLINE vec same(float value) { return value - (vec){0}; }
INLINE ivec choose(ivec mask, ivec yes, ivec no) { return (mask & yes) | (~mask & no); }
/* a0 b0 a1 b1 ..., the first and the second half. */
#if LANES == 16
#define FIRST 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define SECOND 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif LANES == 8
#define FIRST 0, 8, 1, 9, 2, 10, 3, 11
#define SECOND 4, 12, 5, 13, 6, 14, 7, 15
#else
#define FIRST 0, 4, 1, 5
#define SECOND 2, 6, 3, 7
#endif
#if defined(__clang__)
#define interleave_first(a, b) __builtin_shufflevector(a, b, FIRST)
#define interleave_second(a, b) __builtin_shufflevector(a, b, SECOND)
#else
#define interleave_first(a, b) __builtin_shuffle(a, b, (ivec){FIRST})
#define interleave_second(a, b) __builtin_shuffle(a, b, (ivec){SECOND})
#endif
#define PLANES(channels, lanes) (((channels) + (lanes) - 1) / (lanes))

typedef struct {
    int32_t offset; /* of the first of nine pixels in a plane, or an output channel */
    float gradient;
} Live;

/* One block. The caller owns all arrays. */
typedef struct {
    ptrdiff_t n_in, n_out, height, width;      /* of the input, without border */
    ptrdiff_t lanes, image;                    /* channels in a plane, floats in an input image */
    float *weight, *bias;                      /* (n_out, n_in, 3, 3) and (n_out), of the model */
    float *transformed;                        /* (16, PLANES(n_out), n_in, LANES) */
    float *taps;                               /* (PLANES(n_in), n_out, 9, LANES): weights for backward */
    float *slope;                              /* (n_out, PLANES(n_in), 9, LANES): gradient of the weights */
    float *slope_bias;                         /* (n_out) */
    float *inputs;                             /* images, one for each sample of the batch */
    int8_t *places;                            /* (samples, PLANES(n_out), windows, LANES): 0 .. 3, or DEAD */
} Block;

/* Room for one sample; the caller owns it. */
typedef struct {
    float *tiles;    /* (16, GROUP, planes * lanes): transformed inputs */
    float *products; /* (16, GROUP, planes * LANES) */
    float *pooled;   /* output or its gradient: (planes, windows, LANES) */
    float *gradients[2]; /* of two images, in their layout */
    Live *entries;   /* (windows + 3, LANES): all gradients of LANES output channels */
    Live *list;      /* live gradients, at most windows * planes * LANES, and room for as many dead ones
                        as a window has */
    uint64_t *counts; /* of each window */
} Room;

/* ---- before a batch ---- */

/* U = G g G^T for every pair of channels. */
STAGE void transform_weights(const Block *b) {
    const ptrdiff_t planes = PLANES(b->n_out, LANES), step = planes * b->n_in * LANES;
    memset(b->transformed, 0, 16 * step * sizeof(float));
    for (ptrdiff_t o = 0; o < b->n_out; o++)
        for (ptrdiff_t i = 0; i < b->n_in; i++) {
            const float *g = b->weight + (o * b->n_in + i) * 9;
            float *u = b->transformed + ((o / LANES) * b->n_in + i) * LANES + o % LANES;
            float rows[4][3];
            for (int k = 0; k < 3; k++) {
                const float sum = g[k] + g[6 + k];
                rows[0][k] = g[k];
                rows[1][k] = 0.5f * (sum + g[3 + k]);
                rows[2][k] = 0.5f * (sum - g[3 + k]);
                rows[3][k] = g[6 + k];
            }
            for (int r = 0; r < 4; r++) {
                const float sum = rows[r][0] + rows[r][2];
                u[(4 * r + 0) * step] = rows[r][0];
                u[(4 * r + 1) * step] = 0.5f * (sum + rows[r][1]);
                u[(4 * r + 2) * step] = 0.5f * (sum - rows[r][1]);
                u[(4 * r + 3) * step] = rows[r][2];
            }
        }
}

/* ---- forward ---- */

/* V = B^T d B of one tile, LANES or four channels at once. */
#define INPUT_TRANSFORM(NAME, TYPE)                                                            \
    INLINE void NAME(const float *pixels, ptrdiff_t row, float *out, ptrdiff_t step) {        \
        const ptrdiff_t lanes = sizeof(TYPE) / sizeof(float);                                  \
        TYPE d[4][4];                                                                          \
        for (int c = 0; c < 4; c++) {                                                          \
            const TYPE p0 = *(const TYPE *)(pixels + c * lanes);                               \
            const TYPE p1 = *(const TYPE *)(pixels + row + c * lanes);                         \
            const TYPE p2 = *(const TYPE *)(pixels + 2 * row + c * lanes);                     \
            const TYPE p3 = *(const TYPE *)(pixels + 3 * row + c * lanes);                     \
            d[0][c] = p0 - p2;                                                                 \
            d[1][c] = p1 + p2;                                                                 \
            d[2][c] = p2 - p1;                                                                 \
            d[3][c] = p1 - p3;                                                                 \
        }                                                                                      \
        for (int r = 0; r < 4; r++) {                                                          \
            *(TYPE *)(out + (4 * r + 0) * step) = d[r][0] - d[r][2];                           \
            *(TYPE *)(out + (4 * r + 1) * step) = d[r][1] + d[r][2];                           \
            *(TYPE *)(out + (4 * r + 2) * step) = d[r][2] - d[r][1];                           \
            *(TYPE *)(out + (4 * r + 3) * step) = d[r][1] - d[r][3];                           \
        }                                                                                      \
    }
INPUT_TRANSFORM(input_transform, vec)
INPUT_TRANSFORM(input_transform4, vec4)

STAGE void transform_inputs(const Block *b, const float *image, ptrdiff_t first, ptrdiff_t count,
                             float *tiles) {
    const ptrdiff_t lanes = b->lanes, planes = PLANES(b->n_in, lanes), across = b->width / 2;
    const ptrdiff_t row = (b->width + 2) * lanes, plane = (b->height + 2) * row;
    const ptrdiff_t wide = planes * lanes, step = GROUP * wide;
    ptrdiff_t x = first % across;
    const float *pixels = image + 2 * (first / across) * row + 2 * x * lanes;
    for (ptrdiff_t t = 0; t < count; t++) {
        for (ptrdiff_t p = 0; p < planes; p++)
            if (lanes == 4 && LANES != 4)
                input_transform4(pixels + p * plane, row, tiles + t * wide + p * 4, step);
            else
                input_transform(pixels + p * plane, row, tiles + t * wide + p * LANES, step);
        pixels += 2 * lanes;
        if (++x == across) { /* the next row of windows */
            x = 0;
            pixels += 2 * row - 2 * across * lanes;
        }
    }
}

/* `tall` rows by `wide` vectors of one product, in registers. */
INLINE void multiply_tile(int tall, int wide, const float *left, ptrdiff_t left_row,
                          const float *right, ptrdiff_t right_plane, ptrdiff_t n_inner,
                          float *product, ptrdiff_t row) {
    vec sums[TALL][2];
    for (int r = 0; r < tall; r++)
        for (int v = 0; v < wide; v++)
            sums[r][v] = (vec){0};
    for (ptrdiff_t k = 0; k < n_inner; k++) {
        vec column[2];
        for (int v = 0; v < wide; v++)
            column[v] = load(right + v * right_plane + k * LANES);
        for (int r = 0; r < tall; r++) {
            const vec entry = same(left[r * left_row + k]);
            for (int v = 0; v < wide; v++)
                sums[r][v] = FMA(entry, column[v], sums[r][v]);
        }
    }
    for (int r = 0; r < tall; r++)
        for (int v = 0; v < wide; v++)
            store(product + r * row + v * LANES, sums[r][v]);
}

INLINE void multiply_strip(int wide, const float *left, ptrdiff_t left_row, ptrdiff_t n_rows,
                           const float *right, ptrdiff_t right_plane, ptrdiff_t n_inner,
                           float *product, ptrdiff_t row) {
    ptrdiff_t t = 0;
    for (; t + TALL <= n_rows; t += TALL)
        multiply_tile(TALL, wide, left + t * left_row, left_row, right, right_plane, n_inner,
                      product + t * row, row);
    for (; t + 4 <= n_rows; t += 4)
        multiply_tile(4, wide, left + t * left_row, left_row, right, right_plane, n_inner,
                      product + t * row, row);
    for (; t < n_rows; t++)
        multiply_tile(1, wide, left + t * left_row, left_row, right, right_plane, n_inner,
                      product + t * row, row);
}

STAGE void multiply_group(const Block *b, const float *tiles, ptrdiff_t count, float *products) {
    const ptrdiff_t planes = PLANES(b->n_out, LANES), plane = b->n_in * LANES;
    const ptrdiff_t left_row = PLANES(b->n_in, b->lanes) * b->lanes, row = planes * LANES;
    for (int e = 0; e < 16; e++) {
        const float *left = tiles + e * GROUP * left_row, *right = b->transformed + e * planes * plane;
        float *product = products + e * GROUP * row;
        ptrdiff_t p = 0;
        for (; p + 2 <= planes; p += 2)
            multiply_strip(2, left, left_row, count, right + p * plane, plane, b->n_in,
                           product + p * LANES, row);
        if (p < planes)
            multiply_strip(1, left, left_row, count, right + p * plane, plane, b->n_in,
                           product + p * LANES, row);
    }
}

/* Y = A^T M A, then pool and ReLU. `health` becomes NaN if a value is not finite. */
INLINE void output_transform(const float *m, ptrdiff_t step, vec bias, float *out, int8_t *place,
                             vec *health) {
    vec top[4], low[4];
    for (int c = 0; c < 4; c++) {
        vec m1 = load(m + (4 + c) * step);
        const vec m0 = load(m + c * step), m2 = load(m + (8 + c) * step);
        const vec m3 = load(m + (12 + c) * step);
        if (c == 1)
            m1 += bias; /* this product is a term of all four outputs */
        top[c] = m0 + m1 + m2;
        low[c] = m1 - m2 - m3;
    }
    const vec y0 = top[0] + top[1] + top[2], y1 = top[1] - top[2] - top[3];
    const vec y2 = low[0] + low[1] + low[2], y3 = low[1] - low[2] - low[3];
    *health = FMA((y0 + y1) + (y2 + y3), same(0.0f), *health);
    /* The first of equal values counts, as in torch. */
    vec most = y0;
    ivec where = (y1 > most) & 1;
    most = MAX(y1, most);
    where = choose(y2 > most, (ivec){0} + 2, where);
    most = MAX(y2, most);
    where = choose(y3 > most, (ivec){0} + 3, where);
    most = MAX(y3, most);
    if (place)
        *(bvec *)place = __builtin_convertvector(
            choose(most > (vec){0}, where, (ivec){0} + DEAD), bvec);
    store(out, MAX(most, (vec){0}));
}

/* Pooled output of one image: into `out` of (PLANES, height / 2 + 2 * margin, width / 2 + 2 * margin). */
STAGE vec forward_image(const Block *b, const float *image, const Room *room, float *out,
                         ptrdiff_t margin, int8_t *places, vec health) {
    const ptrdiff_t down = b->height / 2, across = b->width / 2, n_windows = down * across;
    const ptrdiff_t planes = PLANES(b->n_out, LANES), wide = planes * LANES;
    const ptrdiff_t out_row = (across + 2 * margin) * LANES, out_plane = (down + 2 * margin) * out_row;
    for (ptrdiff_t first = 0; first < n_windows; first += GROUP) {
        const ptrdiff_t count = n_windows - first < GROUP ? n_windows - first : GROUP;
        transform_inputs(b, image, first, count, room->tiles);
        multiply_group(b, room->tiles, count, room->products);
        for (ptrdiff_t p = 0; p < planes; p++) {
            float some[LANES] = {0};
            const ptrdiff_t rest = b->n_out - p * LANES;
            if (b->bias)
                memcpy(some, b->bias + p * LANES, (rest < LANES ? rest : LANES) * sizeof(float));
            const vec bias = load(some);
            ptrdiff_t x = first % across;
            float *to = out + p * out_plane + (first / across + margin) * out_row + (x + margin) * LANES;
            for (ptrdiff_t t = 0; t < count; t++) {
                output_transform(room->products + t * wide + p * LANES, GROUP * wide, bias, to,
                                 places ? places + (p * n_windows + first + t) * LANES : NULL, &health);
                to += LANES;
                if (++x == across) {
                    x = 0;
                    to += out_row - across * LANES;
                }
            }
        }
    }
    return health;
}

STAGE void fill_image(const Block *b, const float *sample, float *image) {
    const ptrdiff_t row = (b->width + 2) * b->lanes;
    for (ptrdiff_t c = 0; c < b->n_in; c++) {
        float *corner = image + (c / b->lanes) * (b->height + 2) * row + row + b->lanes + c % b->lanes;
        for (ptrdiff_t y = 0; y < b->height; y++)
            for (ptrdiff_t x = 0; x < b->width; x++)
                corner[y * row + x * b->lanes] = *sample++;
    }
}

/* Features of samples `rows` of x, in torch's order. Returns 1 if every value was finite.

   With `keep`, images and places of every sample stay for `backward`. */
static int forward(const Block *blocks, int n_blocks, const float *x, const int64_t *rows, ptrdiff_t n,
                   int keep, const Room *room, float *features) {
    vec health = {0};
    const Block *last = blocks + n_blocks - 1;
    const ptrdiff_t n_windows = (last->height / 2) * (last->width / 2);
    const ptrdiff_t size = blocks->n_in * blocks->height * blocks->width;
    for (ptrdiff_t s = 0; s < n; s++) {
        const ptrdiff_t kept = keep ? s : 0;
        fill_image(blocks, x + rows[s] * size, blocks->inputs + kept * blocks->image);
        for (int l = 0; l < n_blocks; l++) {
            const Block *b = blocks + l;
            const ptrdiff_t n_places =
                PLANES(b->n_out, LANES) * (b->height / 2) * (b->width / 2) * LANES;
            float *out = b == last ? room->pooled : b[1].inputs + kept * b[1].image;
            health = forward_image(b, b->inputs + kept * b->image, room, out, b != last,
                                   keep ? b->places + s * n_places : NULL, health);
        }
        for (ptrdiff_t c = 0; c < last->n_out; c++) {
            const float *from = room->pooled + (c / LANES) * n_windows * LANES + c % LANES;
            for (ptrdiff_t t = 0; t < n_windows; t++)
                *features++ = from[t * LANES];
        }
    }
    float sum = 0;
    for (int v = 0; v < LANES; v++)
        sum += health[v];
    return sum == 0;
}

/* ---- backward ---- */

/* slope += gradients times the nine pixels under each, for LANES input channels. */
INLINE void add_slopes(const Live *list, ptrdiff_t n, const float *plane, ptrdiff_t row, float *slope) {
    vec sums[9];
    for (int k = 0; k < 9; k++)
        sums[k] = (vec){0};
    for (ptrdiff_t i = 0; i < n; i++) {
        const float *pixels = plane + list[i].offset;
        const vec gradient = same(list[i].gradient);
        for (int k = 0; k < 9; k++)
            sums[k] = FMA(gradient, load(pixels + (k / 3) * row + (k % 3) * LANES), sums[k]);
    }
    for (int k = 0; k < 9; k++)
        store(slope + k * LANES, load(slope + k * LANES) + sums[k]);
}

/* The same for four channels in a plane: three pixels of a row are twelve floats side by side.
   Every LANES-th entry counts; dead ones have the gradient 0, which costs less than a list. */
#define SPAN (LANES == 4 ? 3 : 16 / LANES) /* vectors that cover them */
#define ABREAST (LANES == 16 ? 4 : LANES == 8 ? 2 : 1)
INLINE void add_slopes4(const Live *entries, ptrdiff_t n, const float *plane, ptrdiff_t row, float *slope) {
    vec sums[ABREAST][3][SPAN];
    for (int a = 0; a < ABREAST; a++)
        for (int r = 0; r < 3; r++)
            for (int v = 0; v < SPAN; v++)
                sums[a][r][v] = (vec){0};
    for (ptrdiff_t i = 0; i < n; i += ABREAST)
        for (int a = 0; a < ABREAST; a++) {
            const Live live = entries[(i + a) * LANES];
            const float *pixels = plane + live.offset;
            const vec gradient = same(live.gradient);
            for (int r = 0; r < 3; r++)
                for (int v = 0; v < SPAN; v++)
                    sums[a][r][v] = FMA(gradient, load(pixels + r * row + v * LANES), sums[a][r][v]);
        }
    for (int r = 0; r < 3; r++) {
        float total[SPAN * LANES];
        for (int v = 0; v < SPAN; v++) {
            vec sum = sums[0][r][v];
            for (int a = 1; a < ABREAST; a++)
                sum += sums[a][r][v];
            store(total + v * LANES, sum);
        }
        for (int c = 0; c < 12; c++)
            slope[r * 12 + c] += total[c];
    }
}

/* Entries of LANES output channels, (windows, LANES); a dead one has the gradient 0. Returns sums. */
STAGE vec enter_plane(const Block *b, const float *gradient, ptrdiff_t gradient_row, const int8_t *place,
                       Live *entries) {
    const ptrdiff_t lanes = b->lanes, row = (b->width + 2) * lanes;
    vec sum = {0};
    for (ptrdiff_t y = 0; y < b->height / 2; y++)
        for (ptrdiff_t x = 0; x < b->width / 2; x++) {
            const ivec where = __builtin_convertvector(*(const bvec *)place, ivec);
            const ivec offset = (where & 1) * (int32_t)lanes + ((where >> 1) & 1) * (int32_t)row +
                                (int32_t)(2 * y * row + 2 * x * lanes);
            const ivec live = (where != DEAD) & (ivec)load(gradient + y * gradient_row + x * LANES);
            sum += (vec)live;
            *(ivec *)entries = interleave_first(offset, live);
            *(ivec *)(entries + LANES / 2) = interleave_second(offset, live);
            place += LANES;
            entries += LANES;
        }
    memset(entries, 0, (ABREAST - 1) * LANES * sizeof(Live));
    return sum;
}

/* Gradient of the weights from one image: `pooled` holds the gradient of the block's output. */
STAGE void weight_slopes(const Block *b, const float *image, const float *pooled, ptrdiff_t margin,
                          const int8_t *places, const Room *room) {
    const ptrdiff_t down = b->height / 2, across = b->width / 2, n_windows = down * across;
    const ptrdiff_t row = (b->width + 2) * b->lanes, plane = (b->height + 2) * row;
    const ptrdiff_t planes_in = PLANES(b->n_in, b->lanes);
    const ptrdiff_t out_row = (across + 2 * margin) * LANES, out_plane = (down + 2 * margin) * out_row;
    for (ptrdiff_t p = 0; p < PLANES(b->n_out, LANES); p++) {
        const vec sum = enter_plane(b, pooled + p * out_plane + margin * (out_row + LANES), out_row,
                                    places + p * n_windows * LANES, room->entries);
        for (int v = 0; v < LANES && p * LANES + v < b->n_out; v++) {
            const ptrdiff_t o = p * LANES + v;
            b->slope_bias[o] += sum[v];
            if (b->lanes == 4 && LANES != 4) {
                add_slopes4(room->entries + v, n_windows, image, row, b->slope + o * 36);
                continue;
            }
            ptrdiff_t n = 0;
            for (ptrdiff_t t = 0; t < n_windows; t++) {
                const Live live = room->entries[t * LANES + v];
                room->list[n] = live;
                n += live.gradient != 0;
            }
            for (ptrdiff_t q = 0; q < planes_in; q++)
                add_slopes(room->list, n, image + q * plane, row,
                           b->slope + (o * planes_in + q) * 9 * LANES);
        }
    }
}

/* gradient += gradients times the nine taps of their channels, for LANES input channels. */
INLINE void add_taps(const Live *list, ptrdiff_t n, const float *taps, ptrdiff_t row, float *gradient) {
    vec sums[9];
    for (int k = 0; k < 9; k++)
        sums[k] = load(gradient + (k / 3) * row + (k % 3) * LANES);
    for (ptrdiff_t i = 0; i < n; i++) {
        const float *nine = taps + list[i].offset;
        const vec factor = same(list[i].gradient);
        for (int k = 0; k < 9; k++)
            sums[k] = FMA(factor, load(nine + k * LANES), sums[k]);
    }
    for (int k = 0; k < 9; k++)
        store(gradient + (k / 3) * row + (k % 3) * LANES, sums[k]);
}

/* Live gradients of a window, sorted by place, dead ones behind them; returns how many of each: five
   counters of twelve bits. */
#define BITS 12
#define MOST_CHANNELS 4095
INLINE uint64_t sort_window(const float *gradient, ptrdiff_t plane, const int8_t *place,
                            ptrdiff_t place_plane, ptrdiff_t planes, Live *list) {
    uint64_t counts = 0;
    for (ptrdiff_t p = 0; p < planes; p++)
        for (int v = 0; v < LANES; v++)
            counts += (uint64_t)1 << (BITS * place[p * place_plane + v]);
    /* Counter k of the product is the sum of the counters before k: where its entries begin. */
    uint64_t next = counts * (((uint64_t)1 << BITS) + ((uint64_t)1 << 2 * BITS) +
                              ((uint64_t)1 << 3 * BITS) + ((uint64_t)1 << 4 * BITS));
    for (ptrdiff_t p = 0; p < planes; p++)
        for (int v = 0; v < LANES; v++) {
            const int shift = BITS * place[p * place_plane + v];
            Live *live = list + ((next >> shift) & MOST_CHANNELS);
            live->offset = (int32_t)((p * LANES + v) * 9 * LANES);
            live->gradient = gradient[p * plane + v];
            next += (uint64_t)1 << shift;
        }
    return counts;
}

/* Gradient of the block's input: an image. */
STAGE void input_gradient(const Block *b, const float *pooled, ptrdiff_t margin, const int8_t *places,
                           const Room *room, float *gradient) {
    const ptrdiff_t down = b->height / 2, across = b->width / 2, n_windows = down * across;
    const ptrdiff_t row = (b->width + 2) * LANES, plane = (b->height + 2) * row;
    const ptrdiff_t out_row = (across + 2 * margin) * LANES, out_plane = (down + 2 * margin) * out_row;
    Live *list = room->list;
    for (ptrdiff_t y = 0, t = 0; y < down; y++)
        for (ptrdiff_t x = 0; x < across; x++, t++) {
            const float *out = pooled + (y + margin) * out_row + (x + margin) * LANES;
            room->counts[t] = sort_window(out, out_plane, places + t * LANES, n_windows * LANES,
                                          PLANES(b->n_out, LANES), list);
            for (int k = 0; k < 4; k++)
                list += (room->counts[t] >> (BITS * k)) & MOST_CHANNELS;
        }
    memset(gradient, 0, b->image * sizeof(float));
    for (ptrdiff_t q = 0; q < PLANES(b->n_in, LANES); q++) {
        const float *taps = b->taps + q * b->n_out * 9 * LANES;
        list = room->list;
        for (ptrdiff_t y = 0, t = 0; y < down; y++)
            for (ptrdiff_t x = 0; x < across; x++, t++)
                for (int k = 0; k < 4; k++) {
                    const ptrdiff_t n = (room->counts[t] >> (BITS * k)) & MOST_CHANNELS;
                    add_taps(list, n, taps, row,
                             gradient + q * plane + (2 * y + k / 2) * row + (2 * x + k % 2) * LANES);
                    list += n;
                }
    }
}

STAGE void arrange_taps(const Block *b) {
    memset(b->taps, 0, PLANES(b->n_in, LANES) * b->n_out * 9 * LANES * sizeof(float));
    for (ptrdiff_t o = 0; o < b->n_out; o++)
        for (ptrdiff_t i = 0; i < b->n_in; i++)
            for (int k = 0; k < 9; k++)
                b->taps[(((i / LANES) * b->n_out + o) * 9 + k) * LANES + i % LANES] =
                    b->weight[(o * b->n_in + i) * 9 + k];
}

STAGE void descend(const Block *b, float lr) {
    const ptrdiff_t planes = PLANES(b->n_in, b->lanes);
    for (ptrdiff_t o = 0; o < b->n_out; o++) {
        for (ptrdiff_t i = 0; i < b->n_in; i++)
            for (int k = 0; k < 9; k++)
                b->weight[(o * b->n_in + i) * 9 + k] -=
                    lr * b->slope[((o * planes + i / b->lanes) * 9 + k) * b->lanes + i % b->lanes];
        if (b->bias)
            b->bias[o] -= lr * b->slope_bias[o];
    }
}

/* Moves weights and biases one step; `delta` is the gradient of the features of the last forward. */
static void backward(const Block *blocks, int n_blocks, ptrdiff_t n, const float *delta, float lr,
                     const Room *room) {
    const Block *last = blocks + n_blocks - 1;
    const ptrdiff_t last_windows = (last->height / 2) * (last->width / 2);
    for (int l = 0; l < n_blocks; l++) {
        const Block *b = blocks + l;
        memset(b->slope, 0, b->n_out * PLANES(b->n_in, b->lanes) * 9 * b->lanes * sizeof(float));
        memset(b->slope_bias, 0, b->n_out * sizeof(float));
        if (l)
            arrange_taps(b);
    }
    for (ptrdiff_t s = 0; s < n; s++) {
        for (ptrdiff_t c = 0; c < last->n_out; c++) {
            float *to = room->pooled + (c / LANES) * last_windows * LANES + c % LANES;
            for (ptrdiff_t t = 0; t < last_windows; t++)
                to[t * LANES] = *delta++;
        }
        const float *pooled = room->pooled;
        for (int l = n_blocks - 1; l >= 0; l--) {
            const Block *b = blocks + l;
            const ptrdiff_t n_places =
                PLANES(b->n_out, LANES) * (b->height / 2) * (b->width / 2) * LANES;
            const int8_t *places = b->places + s * n_places;
            weight_slopes(b, b->inputs + s * b->image, pooled, b != last, places, room);
            if (l) {
                float *gradient = room->gradients[l % 2];
                input_gradient(b, pooled, b != last, places, room, gradient);
                pooled = gradient;
            }
        }
    }
    for (int l = 0; l < n_blocks; l++)
        descend(blocks + l, lr);
}

#endif
