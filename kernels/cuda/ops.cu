// The op suite: histograms, what they make of a picture as tables, and the ops that look at a pixel and its neighbours.
// Numbered as in program.py; Pillow's integers, as the reference has them.

enum {
    OP_NONE, OP_AUTOCONTRAST, OP_EQUALIZE, OP_POSTERIZE, OP_SOLARIZE, OP_INVERT, OP_BRIGHTNESS, OP_CONTRAST, OP_COLOR,
    OP_SHARPNESS, OP_GRAYSCALE, OP_MIRROR, OP_FLIP, OP_WARP, OP_FLOAT_WARP, OP_FLOAT_POSTERIZE, OP_FLOAT_AUTOCONTRAST,
    OP_FLOAT_GRAYSCALE, OP_HUE
};

#define LEVELS 256
#define GROUP 4  // pixels a thread of apply_ops has: three words

// One op of one picture; the result is picture `slot` of an array.
struct Job {
    u64 address;
    i64 pitch;
    int slot, code;
    double p[6];
};

struct Pixel {
    int r, g, b;
};

__device__ inline Pixel pixel_at(const Job& job, int row, int column) {
    const u8* at = (const u8*)job.address + row * job.pitch + 3 * column;
    return Pixel{__ldg(at), __ldg(at + 1), __ldg(at + 2)};
}

__device__ inline int luma(Pixel v) { return (19595 * v.r + 38470 * v.g + 7471 * v.b + 32768) >> 16; }

// Counts of levels (J, rows, 256), which are zeros before: of the channels and, if there are four rows, of Pillow's L.
extern "C" __global__ COOPERATIVE void histogram(const Job* jobs, int height, int width, int rows, int* counts) {
    __shared__ int bins[4 * LEVELS];
    EACH_THREAD {
        for (int k = threadIdx.x; k < rows * LEVELS; k += blockDim.x) bins[k] = 0;
    }
    __syncthreads();
    EACH_THREAD {
        const Job& job = jobs[blockIdx.x];
        for (int k = blockIdx.y * blockDim.x + threadIdx.x; k < height * width; k += gridDim.y * blockDim.x) {
            Pixel v = pixel_at(job, k / width, k % width);
            atomicAdd(bins + v.r, 1);
            atomicAdd(bins + LEVELS + v.g, 1);
            atomicAdd(bins + 2 * LEVELS + v.b, 1);
            if (rows == 4) atomicAdd(bins + 3 * LEVELS + luma(v), 1);
        }
    }
    __syncthreads();
    EACH_THREAD {
        for (int k = threadIdx.x; k < rows * LEVELS; k += blockDim.x)
            if (bins[k]) atomicAdd(counts + (i64)blockIdx.x * rows * LEVELS + k, bins[k]);
    }
}

// Take `cut` pixels away, from level `at` on in steps of `by`; returns the first level that has some left, or -1.
__device__ inline int cut_from(int* counts, int at, int by, i64 cut) {
    for (int k = 0; k < LEVELS; ++k, at += by) {
        i64 gone = cut < counts[at] ? cut : counts[at];
        counts[at] -= (int)gone;
        cut -= gone;
        if (counts[at]) return at;
    }
    return -1;
}

// flat + factor (v - flat), fraction dropped: Pillow's Enhance classes.
__device__ inline int toward(int flat, int v, double factor) {
    return (int)unit((float)flat + (float)factor * ((float)v - (float)flat));
}

__device__ inline int clamped(i64 v) { return v < 0 ? 0 : v > 255 ? 255 : (int)v; }

// What an op makes of level v; low and high: the extreme levels of its channel, mean: of L, step and below: Equalize's.
__device__ inline int table_entry(const Job& job, int v, int low, int high, int mean, int step, int below) {
    double p = job.p[0];
    i64 span = high - low;
    switch (job.code) {
        case OP_AUTOCONTRAST: {
            if (span <= 0) return v;
            double scale = 255.0 / (double)span, made = v * scale + -low * scale;
            return made < 0 ? 0 : made > 255 ? 255 : (int)made;
        }
        case OP_FLOAT_AUTOCONTRAST: return span <= 0 || v < low ? v : clamped((510 * (v - low) + span) / (2 * span));
        case OP_EQUALIZE: return step == 0 ? v : clamped((step / 2 + (i64)below) / step);
        case OP_POSTERIZE: return v & (256 - (1 << (8 - (int)p))) & 255;
        case OP_SOLARIZE: return p > v ? v : 255 - v;
        case OP_INVERT: return 255 - v;
        case OP_BRIGHTNESS: return toward(0, v, p);
        case OP_CONTRAST: return toward(mean, v, p);
        default: {  // OP_FLOAT_POSTERIZE
            int steps = 1 << (int)p, kept = v * steps / 255;
            kept = kept < steps ? kept : steps - 1;
            return (510 * kept + steps) / (2 * steps);
        }
    }
}

// Tables (J, 3, 256) of the ops that are some, of counts (J, 4, 256) if a histogram decides.
extern "C" __global__ COOPERATIVE void tables(const Job* jobs, const int* counts, int pixels, u8* tables) {
    __shared__ int bins[3 * LEVELS], below[3 * LEVELS], low[3], high[3], steps[3], mean;
    EACH_THREAD {
        int code = jobs[blockIdx.x].code;
        bool counted = code == OP_AUTOCONTRAST || code == OP_EQUALIZE || code == OP_FLOAT_AUTOCONTRAST;
        for (int k = threadIdx.x; k < 3 * LEVELS; k += blockDim.x) {
            bins[k] = counted ? counts[(i64)blockIdx.x * 4 * LEVELS + k] : 0;
            below[k] = 0;
        }
        if (threadIdx.x < 3) low[threadIdx.x] = high[threadIdx.x] = steps[threadIdx.x] = 0;
        if (threadIdx.x == 0) mean = 0;
    }
    __syncthreads();
    EACH_THREAD {
        const Job& job = jobs[blockIdx.x];
        int c = threadIdx.x;
        if (c < 3 && (job.code == OP_AUTOCONTRAST || job.code == OP_FLOAT_AUTOCONTRAST)) {
            double percent = job.code == OP_AUTOCONTRAST ? job.p[0] : 0.0;
            i64 cut = (i64)floor((double)pixels * percent / 100.0);
            low[c] = cut_from(bins + c * LEVELS, 0, 1, cut);
            high[c] = cut_from(bins + c * LEVELS, LEVELS - 1, -1, cut);
        }
        if (c < 3 && job.code == OP_EQUALIZE) {
            int sum = 0, last = 0;
            for (int v = 0; v < LEVELS; ++v) {
                below[c * LEVELS + v] = sum;
                sum += bins[c * LEVELS + v];
                if (bins[c * LEVELS + v]) last = bins[c * LEVELS + v];
            }
            steps[c] = (sum - last) / 255;
        }
        if (c == 3 && job.code == OP_CONTRAST) {
            i64 sum = 0;
            for (int v = 0; v < LEVELS; ++v) sum += (i64)v * counts[((i64)blockIdx.x * 4 + 3) * LEVELS + v];
            mean = (int)((double)sum / (double)pixels + 0.5);
        }
    }
    __syncthreads();
    EACH_THREAD {
        for (int k = threadIdx.x; k < 3 * LEVELS; k += blockDim.x) {
            int c = k / LEVELS;
            tables[(i64)blockIdx.x * 3 * LEVELS + k] =
                (u8)table_entry(jobs[blockIdx.x], k % LEVELS, low[c], high[c], mean, steps[c], below[k]);
        }
    }
}

// (1 1 1; 1 5 1; 1 1 1) / 13, rounded; the border is the picture's own.
__device__ inline Pixel smooth(const Job& job, int row, int column, int height, int width) {
    Pixel own = pixel_at(job, row, column);
    if (row == 0 || column == 0 || row == height - 1 || column == width - 1) return own;
    Pixel sum{4 * own.r, 4 * own.g, 4 * own.b};
    for (int y = row - 1; y <= row + 1; ++y)
        for (int x = column - 1; x <= column + 1; ++x) {
            Pixel v = pixel_at(job, y, x);
            sum.r += v.r;
            sum.g += v.g;
            sum.b += v.b;
        }
    return Pixel{(2 * sum.r + 13) / 26, (2 * sum.g + 13) / 26, (2 * sum.b + 13) / 26};
}

// H of Pillow's HSV, a byte: quotients are float32, their sums float64.
__device__ inline int hue_byte(Pixel v, int high, int span) {
    float d = (float)(span > 1 ? span : 1);
    double r = (float)(high - v.r) / d, g = (float)(high - v.g) / d, b = (float)(high - v.b) / d;
    double sixths = v.r == high ? b - g : v.g == high ? 2.0 + r - b : 4.0 + g - r;
    double turn = (double)(float)sixths / 6.0 + 1.0;
    turn = turn >= 1.0 ? turn - 1.0 : turn;
    return (int)((double)(float)turn * 255.0);
}

// value (1 - share / 255^2), to the nearest.
__device__ inline int shaded(int value, int share) { return (2 * value * (65025 - share) + 65025) / 130050; }

__device__ inline Pixel turned(Pixel v, double turns) {
    int value = max(v.r, max(v.g, v.b)), span = value - min(v.r, min(v.g, v.b));
    int saturation = 255 * span / (value > 1 ? value : 1);
    int sixths = 6 * ((hue_byte(v, value, span) + (int)(255.0 * turns)) & 255);
    int sixth = sixths / 255, part = sixths % 255;
    int least = shaded(value, 255 * saturation), falling = shaded(value, saturation * part);
    int rising = shaded(value, saturation * (255 - part));
    switch (sixth % 6) {
        case 0: return Pixel{value, rising, least};
        case 1: return Pixel{falling, value, least};
        case 2: return Pixel{least, value, rising};
        case 3: return Pixel{least, falling, value};
        case 4: return Pixel{rising, least, value};
        default: return Pixel{value, least, falling};
    }
}

__device__ inline Pixel after_op(const Job& job, const u8* table, int row, int column, int height, int width) {
    if (job.code == OP_MIRROR) return pixel_at(job, row, width - 1 - column);
    if (job.code == OP_FLIP) return pixel_at(job, height - 1 - row, column);
    Pixel v = pixel_at(job, row, column);
    switch (job.code) {
        case OP_NONE: return v;
        case OP_HUE: return turned(v, job.p[0]);
        case OP_SHARPNESS:
        case OP_COLOR: {
            int grey = luma(v);
            Pixel flat = job.code == OP_COLOR ? Pixel{grey, grey, grey} : smooth(job, row, column, height, width);
            double factor = job.p[0];
            return Pixel{toward(flat.r, v.r, factor), toward(flat.g, v.g, factor), toward(flat.b, v.b, factor)};
        }
        case OP_GRAYSCALE: return Pixel{luma(v), luma(v), luma(v)};
        case OP_FLOAT_GRAYSCALE: {
            int grey = (2989 * v.r + 5870 * v.g + 1140 * v.b + 5000) / 10000;
            return Pixel{grey, grey, grey};
        }
        default: return Pixel{table[v.r], table[LEVELS + v.g], table[2 * LEVELS + v.b]};
    }
}

// Every op but warps and SHRINK.  tables: of the jobs that have one, which are the first.
extern "C" __global__ void apply_ops(const Job* jobs, const u8* tables, int height, int width, u8* out) {
    const Job& job = jobs[blockIdx.x];
    int pixels = height * width, first = (blockIdx.y * blockDim.x + threadIdx.x) * GROUP;
    if (first >= pixels) return;
    u8* to = out + 3 * ((i64)job.slot * pixels + first);
    u32 words[3] = {0, 0, 0};
    int row = first / width, column = first - row * width, count = min(GROUP, pixels - first);
#pragma unroll
    for (int i = 0; i < GROUP; ++i) {
        if (i < count) {
            Pixel v = after_op(job, tables + (i64)blockIdx.x * 3 * LEVELS, row, column, height, width);
            words[3 * i / 4] |= (u32)v.r << 8 * (3 * i % 4);
            words[(3 * i + 1) / 4] |= (u32)v.g << 8 * ((3 * i + 1) % 4);
            words[(3 * i + 2) / 4] |= (u32)v.b << 8 * ((3 * i + 2) % 4);
        }
        if (++column == width) {
            column = 0;
            ++row;
        }
    }
    bool whole = count == GROUP && ((u64)to & 3) == 0;
#pragma unroll
    for (int k = 0; k < 3 * GROUP; ++k) {
        if (whole && k % 4 == 0) ((u32*)to)[k / 4] = words[k / 4];
        if (!whole && k < 3 * count) to[k] = (u8)(words[k / 4] >> 8 * (k % 4));
    }
}

// float32, each row of weights from left to right, the lowest row first; the border is copied.
extern "C" __global__ void filter3x3(const u8* images, const float* weights, int height, int width, u8* out) {
    int k = blockIdx.y * blockDim.x + threadIdx.x, row = k / width, column = k - row * width;
    if (k >= height * width) return;
    const u8* at = images + 3 * ((i64)blockIdx.x * height * width + k);
    u8* to = out + 3 * ((i64)blockIdx.x * height * width + k);
    bool border = row == 0 || column == 0 || row == height - 1 || column == width - 1;
    for (int c = 0; c < 3; ++c) {
        float total = 0.0f;
        for (int y = 2; y >= 0 && !border; --y) {
            const u8* line = at + 3 * ((y - 1) * width - 1) + c;
            const float* w = weights + 3 * y;
            total += (w[0] * (float)line[0] + w[1] * (float)line[3]) + w[2] * (float)line[6];
        }
        to[c] = border ? at[c] : (u8)(int)unit(total + 0.5f);
    }
}
