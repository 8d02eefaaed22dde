// The fold: all steps of a program on sixteen pixels a thread, in registers.  Layers are read sixteen bytes at a time
// and the result is written like that, as uint8 or normalised by a table of 32-bit or 16-bit values.
// Modes, clips and places are numbered as in program.py.

enum { END, SET, LINEAR, ARITHMETIC, GEOMETRIC, SUM, TOTAL };
enum { NO_CLIP, UNIT_CLIP, CUT_CLIP, WRAP_CLIP };
enum { EVERYWHERE, PIXELS, ELEMENTS, MASKED };

#define RUN 16             // pixels
#define VALUES (3 * RUN)
#define WORDS (VALUES / 4)

struct Stretch {  // pixels first .. first + count of a picture of this size
    int first, count, width, height;
};

// The bytes of a stretch, four a word.
__device__ inline void read_stretch(Picture picture, Stretch s, u32* words) {
    u64 at = picture.address + (u64)(3 * (i64)s.first);
    bool straight = picture.pitch == 3 * (i64)s.width;
    if (!straight) {
        int row = s.first / s.width, column = s.first - row * s.width;
        at = picture.address + (u64)(row * picture.pitch + 3 * column);
        straight = column + s.count <= s.width;
    }
    if (straight && s.count == RUN && (at & 15) == 0) {
#pragma unroll
        for (int k = 0; k < WORDS / 4; ++k) {
            uint4 four = __ldg((const uint4*)at + k);
            words[4 * k] = four.x;
            words[4 * k + 1] = four.y;
            words[4 * k + 2] = four.z;
            words[4 * k + 3] = four.w;
        }
    } else if (straight && s.count == RUN) {  // a window of a pool starts anywhere
        const u32* from = (const u32*)(at & ~(u64)3);
        u32 shift = 8 * (u32)(at & 3), low = __ldg(from);
#pragma unroll
        for (int k = 0; k < WORDS; ++k) {
            u32 high = shift || k + 1 < WORDS ? __ldg(from + k + 1) : 0;
            words[k] = __funnelshift_r(low, high, shift);
            low = high;
        }
    } else {
#pragma unroll
        for (int k = 0; k < WORDS; ++k) words[k] = 0;
#pragma unroll
        for (int i = 0; i < RUN; ++i) {
            int place = s.first + (i < s.count ? i : 0), row = place / s.width, column = place - row * s.width;
            const u8* pixel = (const u8*)picture.address + row * picture.pitch + 3 * column;
#pragma unroll
            for (int c = 0; c < 3; ++c) words[(3 * i + c) / 4] |= (u32)__ldg(pixel + c) << 8 * ((3 * i + c) % 4);
        }
    }
}

// One bit a value, 0 where the draw of the value, or of its pixel, says that it stays.
__device__ inline u64 changed_by_chance(const Step& step, Stretch s, i64 id, u32 k0, u32 k1, u32 epoch) {
    u64 limit = (u64)((double)step.rate * 4294967296.0), changed = 0;
    int each = step.where == PIXELS ? 3 : 1;  // values that share a draw
    u32 high = step.stream | (u32)(id >> 32) << 16;
    for (int k = 0; k < VALUES / each; k += 4) {
        Words draws = philox((u32)(((i64)s.first * 3 / each + k) >> 2), (u32)id, epoch, high, k0, k1);
        for (int j = 0; j < 4; ++j)
            if (draws.w[j] >= limit) changed |= (each == 3 ? (u64)7 : (u64)1) << (k + j) * each;
    }
    return changed;
}

// One bit a value, 1 inside the box of a step.
__device__ inline u64 inside_box(const Step& step, Stretch s) {
    if (step.top <= 0 && step.left <= 0 && step.bottom >= s.height && step.right >= s.width) return ~(u64)0;
    u64 inside = 0;
    int row = s.first / s.width, column = s.first - row * s.width;
    for (int i = 0; i < s.count; ++i) {
        if (row >= step.top && row < step.bottom && column >= step.left && column < step.right)
            inside |= (u64)7 << 3 * i;
        if (++column == s.width) {
            column = 0;
            ++row;
        }
    }
    return inside;
}

// 127.5 (x / 127.5)^a (y / 127.5)^b as one power of two; logs: log2 of y / 127.5 by level, of 127.5, of 255.
__device__ inline float multiplied(float x, u32 y, const Step& step, bool at_once, const float* logs) {
    float offset = (1.0f - step.a) * __ldg(logs + 256), smallest = 1.1754943508222875e-38f;
    float t = (step.a * log2_of(x > smallest ? x : smallest) + offset) + step.b * __ldg(logs + y);
    float most = at_once ? __ldg(logs + 257) : 127.0f;
    t = t > -126.0f ? t : -126.0f;
    t = exp2_of(t < most ? t : most);
    return x > (step.a != 0.0f ? 0.0f : -1.0f) ? t : 0.0f;
}

__device__ inline float clipped(float v, int rule) {
    if (rule == UNIT_CLIP) return unit(v);
    if (rule == CUT_CLIP) return (float)(int)unit(v);
    if (rule == WRAP_CLIP) return (float)((int)(fabsf(v) < 2147483648.0f ? v : 0.0f) & 255);
    return v;
}

template <bool SUMS>
__device__ inline void take_step(
    const Step& step, Picture layer, const u8* mask, int channels, u64 changes, Stretch s, const float* logs, float* x,
    float* total) {
    if (SUMS && step.mode == SUM) {
#pragma unroll
        for (int k = 0; k < VALUES; ++k)
            if (changes >> k & 1) total[k] += step.a * x[k];
        return;
    }
    u32 words[WORDS];
    if (!SUMS || step.mode != TOTAL) read_stretch(layer, s, words);
    float c = step.mode == ARITHMETIC ? 127.5f * ((1.0f - step.a) - step.b) : 0.0f;
    bool at_once = step.clip == UNIT_CLIP && step.where != MASKED;  // where a power needs no other clip
#pragma unroll
    for (int k = 0; k < VALUES; ++k) {
        u32 y = words[k / 4] >> 8 * (k % 4) & 255;
        float v;
        if (SUMS && step.mode == TOTAL) v = total[k];
        else if (step.mode == SET) v = (float)y;
        else if (step.mode == GEOMETRIC) v = multiplied(x[k], y, step, at_once, logs);
        else v = (step.a * x[k] + step.b * (float)y) + c;
        if (step.where == MASKED && k / 3 < s.count) {
            float m = (float)__ldg(mask + (channels == 3 ? k : k / 3)) / 255.0f;
            v = m * x[k] + (1.0f - m) * v;
        }
        if (!(at_once && step.mode == GEOMETRIC)) v = clipped(v, step.clip);
        if (changes >> k & 1) x[k] = v;
    }
}

__device__ inline void write_levels(const float* x, Stretch s, bool wide, u8* out) {
    if (wide) {
#pragma unroll
        for (int q = 0; q < WORDS / 4; ++q) {
            u32 words[4];
#pragma unroll
            for (int w = 0; w < 4; ++w) {
                const float* v = x + 16 * q + 4 * w;
                words[w] = nearest_level(v[0]) | nearest_level(v[1]) << 8 | nearest_level(v[2]) << 16 |
                           (u32)nearest_level(v[3]) << 24;
            }
            ((uint4*)out)[q] = uint4{words[0], words[1], words[2], words[3]};
        }
        return;
    }
#pragma unroll
    for (int k = 0; k < VALUES; ++k)
        if (k / 3 < s.count) out[k] = nearest_level(x[k]);
}

// Values of a table, of type T, of the stretch's channels one after the other or (LAST) together; 16 bytes a store.
template <class T, bool LAST>
__device__ inline void write_values(const float* x, Stretch s, const T* table, bool wide, i64 pixels, T* out) {
    const int each = 16 / sizeof(T);
#pragma unroll
    for (int q = 0; q < VALUES / each; ++q) {
        union {
            T values[each];
            uint4 together;
        };
        T* to = LAST ? out + each * q : out + each * q / RUN * pixels + each * q % RUN;
#pragma unroll
        for (int j = 0; j < each; ++j) {
            const int place = each * q + j, k = LAST ? place : 3 * (place % RUN) + place / RUN;
            values[j] = __ldg(table + 256 * (k % 3) + nearest_level(x[k]));
            if (!wide && k / 3 < s.count) to[j] = values[j];
        }
        if (wide) *(uint4*)to = together;
    }
}

// bytes: 0 to write levels, else the size of the table's values, 1, 2 or 4, which are written in their place.
template <bool SUMS>
__device__ inline void fold_row(
    const u8* images, const Picture* layers, const Step* steps, int layer_count, int step_count, const i64* ids, u32 k0,
    u32 k1, u32 epoch, const u8* masks, int channels, const float* logs, int height, int width, const void* table,
    int bytes, int last, int wide, void* out) {
    i64 pixels = (i64)height * width, row = blockIdx.x;
    i64 first = ((i64)blockIdx.y * blockDim.x + threadIdx.x) * RUN;
    if (first >= pixels) return;
    Stretch s{(int)first, (int)(pixels - first < RUN ? pixels - first : RUN), width, height};
    float x[VALUES], total[VALUES];
    u32 words[WORDS];
    read_stretch(Picture{(u64)images + (u64)(3 * pixels * row), 3 * (i64)width}, s, words);
#pragma unroll
    for (int k = 0; k < VALUES; ++k) {
        x[k] = (float)(words[k / 4] >> 8 * (k % 4) & 255);
        total[k] = 0.0f;
    }
    for (int n = 0; n < step_count; ++n) {
        const Step& step = steps[step_count * row + n];
        if (step.mode == END) break;
        u64 changes = inside_box(step, s);
        if (changes == 0) continue;
        if (step.mode != SUM && (step.where == PIXELS || step.where == ELEMENTS))
            changes &= changed_by_chance(step, s, ids[row], k0, k1, epoch);
        const u8* mask = masks + channels * (pixels * step.index + first);
        take_step<SUMS>(step, layers[layer_count * row + step.layer], mask, channels, changes, s, logs, x, total);
    }
    i64 start = 3 * pixels * row, apart = start + first, together = start + 3 * first;
    if (bytes == 0) write_levels(x, s, wide, (u8*)out + together);
    else if (bytes == 1 && last) write_values<u8, true>(x, s, (const u8*)table, wide, pixels, (u8*)out + together);
    else if (bytes == 1) write_values<u8, false>(x, s, (const u8*)table, wide, pixels, (u8*)out + apart);
    else if (bytes == 2 && last) write_values<u16, true>(x, s, (const u16*)table, wide, pixels, (u16*)out + together);
    else if (bytes == 2) write_values<u16, false>(x, s, (const u16*)table, wide, pixels, (u16*)out + apart);
    else if (last) write_values<u32, true>(x, s, (const u32*)table, wide, pixels, (u32*)out + together);
    else write_values<u32, false>(x, s, (const u32*)table, wide, pixels, (u32*)out + apart);
}

// Of the grid, x is the sample, for there may be many, and y the part of it.  layers (N, L): where their pictures are.
// masks (M, H, W, channels).  wide: whether all stretches are whole and 16 bytes apart in out.
extern "C" __global__ void __launch_bounds__(128) fold(
    const u8* images, const Picture* layers, const Step* steps, int layer_count, int step_count, const i64* ids, u32 k0,
    u32 k1, u32 epoch, const u8* masks, int channels, const float* logs, int height, int width, const void* table,
    int bytes, int last, int wide, void* out) {
    fold_row<false>(
        images, layers, steps, layer_count, step_count, ids, k0, k1, epoch, masks, channels, logs, height, width,
        table, bytes, last, wide, out);
}

// The same for programs with SUM and TOTAL, which need registers for the sums.
extern "C" __global__ void __launch_bounds__(128) fold_sums(
    const u8* images, const Picture* layers, const Step* steps, int layer_count, int step_count, const i64* ids, u32 k0,
    u32 k1, u32 epoch, const u8* masks, int channels, const float* logs, int height, int width, const void* table,
    int bytes, int last, int wide, void* out) {
    fold_row<true>(
        images, layers, steps, layer_count, step_count, ids, k0, k1, epoch, masks, channels, logs, height, width,
        table, bytes, last, wide, out);
}
