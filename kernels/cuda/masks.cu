// Maps of saliency: levels, thresholds, masks and windows; every result is equal to the reference's.  Sums and extremes
// that threads share are of whole numbers, whose order does not matter.

#define FINITE 0x7F800000  // bits of the exponent, all of which are set in infinity and not-a-number

// Bits of floats as numbers in the order of the floats, and back: those of negative values count the other way round.
__device__ inline int in_order(int bits) { return bits ^ (bits >> 31 & 0x7FFFFFFF); }

// How well level v parts a map with these counts of its levels, -1 if it does not.  Sums are whole numbers.
__device__ inline double parting(const int* counts, int v) {
    i64 n = 0, total = 0, below = 0, sums = 0;
    for (int u = 0; u < 256; ++u) {
        n += counts[u];
        total += (i64)counts[u] * u;
        if (u == v) {
            below = n;
            sums = total;
        }
    }
    if (below == 0 || below == n) return -1.0;
    double apart = (double)(n * sums - below * total);
    return apart * apart / (double)(below * (n - below));
}

// The first level that parts best, or the middle of those that part in the same way; 255 if none does.
__device__ inline int best_parting(const double* partings, const int* counts, int middle) {
    int best = 255;
    double most = -1.0;
    for (int v = 0; v < 255; ++v)
        if (partings[v] > most) {
            best = v;
            most = partings[v];
        }
    if (!middle || best == 255) return best;
    int after = best + 1;
    while (counts[after] == 0) ++after;
    return (best + after - 1) / 2;
}

// A block is a map: levels (N, pixels) of maps if `quantise`, then thresholds (N,) of levels if `otsu`.
extern "C" __global__ COOPERATIVE void __launch_bounds__(1024) quantise_otsu(
    const float* maps, int pixels, int middle, int quantise, int otsu, u8* levels, int* thresholds) {
    __shared__ int low, high, counts[256];
    __shared__ double partings[256];
    const float* map = maps + (quantise ? (i64)pixels * blockIdx.x : 0);
    u8* made = levels + (i64)pixels * blockIdx.x;
    EACH_THREAD {
        for (int v = threadIdx.x; v < 256; v += blockDim.x) counts[v] = 0;
        if (threadIdx.x == 0) {
            low = 0x7FFFFFFF;
            high = ~0x7FFFFFFF;
        }
    }
    __syncthreads();
    if (quantise) {
        EACH_THREAD {
            int least = 0x7FFFFFFF, most = ~0x7FFFFFFF;
            for (int k = threadIdx.x; k < pixels; k += blockDim.x) {
                int bits = __float_as_int(map[k]);
                if ((bits & FINITE) == FINITE) continue;
                least = min(least, in_order(bits));
                most = max(most, in_order(bits));
            }
            atomicMin(&low, least);
            atomicMax(&high, most);
        }
    }
    __syncthreads();
    EACH_THREAD {
        float least = low <= high ? __int_as_float(in_order(low)) : 0.0f;
        float most = low <= high ? __int_as_float(in_order(high)) : 0.0f;
        float scale = 256.0f / (most - least);  // infinite without contrast: then 0 times it is not a number, level 0
        for (int k = threadIdx.x; k < pixels; k += blockDim.x) {
            float v = quantise ? map[k] : 0.0f;
            u8 level = quantise ? (u8)(int)unit(v <= most ? (v - least) * scale : 0.0f) : made[k];
            if (quantise) made[k] = level;
            if (otsu) atomicAdd(&counts[level], 1);
        }
    }
    __syncthreads();
    EACH_THREAD {
        for (int v = threadIdx.x; otsu && v < 256; v += blockDim.x) partings[v] = parting(counts, v);
    }
    __syncthreads();
    EACH_THREAD {
        if (otsu && threadIdx.x == 0) thresholds[blockIdx.x] = best_parting(partings, counts, middle);
    }
}

// A row of the grid is a map.  areas (N, 3): zeros so far.  both: the intersection, else the union.  A partner may lie
// before the first of these maps, if they are a part of a batch.
extern "C" __global__ COOPERATIVE void join_masks(
    const u8* levels, const int* thresholds, const i64* partner, int pixels, int both, u8* out, u64* areas) {
    __shared__ int counted[3];
    i64 own = blockIdx.x, other = partner[own];
    EACH_THREAD {
        if (threadIdx.x < 3) counted[threadIdx.x] = 0;
    }
    __syncthreads();
    EACH_THREAD {
        const u8 *first = levels + pixels * own, *second = levels + pixels * other;
        u8* made = out + pixels * own;
        int s = thresholds[own], t = thresholds[other], sums[3] = {0, 0, 0};
        for (int k = blockIdx.y * blockDim.x + threadIdx.x; k < pixels; k += blockDim.x * gridDim.y) {
            int a = first[k] > s, b = second[k] > t, joint = both ? a & b : a | b;
            made[k] = joint ? 255 : 0;
            sums[0] += a;
            sums[1] += b;
            sums[2] += joint;
        }
        for (int c = 0; c < 3; ++c)
            if (sums[c]) atomicAdd(&counted[c], sums[c]);
    }
    __syncthreads();
    EACH_THREAD {
        if (threadIdx.x < 3) atomicAdd(&areas[3 * own + threadIdx.x], (u64)counted[threadIdx.x]);
    }
}

// Between which cells of a line the centre of a pixel lies, and how far from the first to the second.
struct Between {
    int before, behind;
    float part;
};

__device__ inline Between cells_of(int cells, int pixels, int at) {
    double place = (at + 0.5) * ((double)cells / pixels) - 0.5;
    place = place > 0.0 ? place : 0.0;
    place = place < cells - 1 ? place : cells - 1;
    int before = (int)place;
    return Between{before, before + 1 < cells ? before + 1 : before, (float)(place - before)};
}

// One pixel of a map of cells that is enlarged to height x width.
__device__ inline float enlarged(const float* map, int cell_rows, int cell_columns, int height, int width, int place) {
    int row = place / width;
    Between v = cells_of(cell_rows, height, row), h = cells_of(cell_columns, width, place - row * width);
    const float *above = map + (i64)cell_columns * v.before, *under = map + (i64)cell_columns * v.behind;
    float first = above[h.before] + h.part * (above[h.behind] - above[h.before]);
    float second = under[h.before] + h.part * (under[h.behind] - under[h.before]);
    return first + v.part * (second - first);
}

// A row of the grid is a map; maps (N, cell_rows, cell_columns), out (N, height, width).
extern "C" __global__ void enlarge(
    const float* maps, int cell_rows, int cell_columns, int height, int width, float* out) {
    i64 place = (i64)blockIdx.y * blockDim.x + threadIdx.x, pixels = (i64)height * width;
    if (place >= pixels) return;
    const float* map = maps + (i64)cell_rows * cell_columns * blockIdx.x;
    out[pixels * blockIdx.x + place] = enlarged(map, cell_rows, cell_columns, height, width, (int)place);
}

// A row of the grid is a map; out (N, height, width), sums (N,): zeros so far.  A partner may lie as in join_masks.
extern "C" __global__ COOPERATIVE void share_masks(
    const float* maps, const i64* partner, int cell_rows, int cell_columns, int height, int width, u8* out, u64* sums) {
    __shared__ u64 sum;
    EACH_THREAD {
        if (threadIdx.x == 0) sum = 0;
    }
    __syncthreads();
    EACH_THREAD {
        i64 own = blockIdx.x, cells = (i64)cell_rows * cell_columns;
        const float *first = maps + cells * own, *second = maps + cells * partner[own];
        int pixels = height * width;
        u8* made = out + pixels * own;
        u64 total = 0;
        for (int k = blockIdx.y * blockDim.x + threadIdx.x; k < pixels; k += blockDim.x * gridDim.y) {
            float a = enlarged(first, cell_rows, cell_columns, height, width, k) + 1e-6f;
            float b = enlarged(second, cell_rows, cell_columns, height, width, k) + 1e-6f;
            made[k] = nearest_level(255.0f * (a / (a + b)));
            total += made[k];
        }
        if (total) atomicAdd(&sum, total);
    }
    __syncthreads();
    EACH_THREAD {
        if (threadIdx.x == 0) atomicAdd(&sums[blockIdx.x], sum);
    }
}

// table (N, height + 1, width + 1): the sums of levels (N, height, width) along each row, left of each column.  A
// thread a row; the topmost one is above the picture.
extern "C" __global__ void integral_rows(const u8* levels, int height, int width, u32* table) {
    int row = blockIdx.y * blockDim.x + threadIdx.x;
    if (row > height) return;
    u32* made = table + ((i64)(height + 1) * blockIdx.x + row) * (width + 1);
    const u8* line = levels + ((i64)height * blockIdx.x + row - 1) * width;
    u32 sum = 0;
    made[0] = 0;
    for (int x = 0; x < width; ++x) {
        if (row > 0) sum += line[x];
        made[x + 1] = sum;
    }
}

// The same table from sums along rows: then each value is the sum of all levels above it and left of it.
extern "C" __global__ void integral_columns(int height, int width, u32* table) {
    int column = blockIdx.y * blockDim.x + threadIdx.x;
    if (column > width) return;
    u32* made = table + (i64)(height + 1) * (width + 1) * blockIdx.x + column;
    u32 sum = 0;
    for (int y = 0; y <= height; ++y) {
        sum += made[(i64)y * (width + 1)];
        made[(i64)y * (width + 1)] = sum;
    }
}

// A block is a map: top and left of the window of sides (N, 2), height and width, with the largest sum.  A window is a
// number, its sum above and how many places are behind it below, so that of equal sums the first place is the largest.
extern "C" __global__ COOPERATIVE void best_windows(
    const u32* table, const i64* sides, int height, int width, i64* out) {
    __shared__ u64 best;
    int tall = (int)sides[2 * blockIdx.x], wide = (int)sides[2 * blockIdx.x + 1], columns = width - wide + 1;
    EACH_THREAD {
        if (threadIdx.x == 0) best = 0;
    }
    __syncthreads();
    EACH_THREAD {
        const u32* corners = table + (i64)(height + 1) * (width + 1) * blockIdx.x;
        u64 most = 0;
        for (int k = threadIdx.x; k < (height - tall + 1) * columns; k += blockDim.x) {
            int top = k / columns;
            const u32* upper = corners + (i64)top * (width + 1) + k - top * columns;
            const u32* lower = upper + (i64)tall * (width + 1);
            u32 sum = (lower[wide] - lower[0]) - (upper[wide] - upper[0]);
            most = max(most, (u64)sum << 32 | (0xFFFFFFFFu - (u32)k));
        }
        atomicMax(&best, most);
    }
    __syncthreads();
    EACH_THREAD {
        if (threadIdx.x == 0) {
            int k = (int)(0xFFFFFFFFu - (u32)best);
            out[2 * blockIdx.x] = k / columns;
            out[2 * blockIdx.x + 1] = k % columns;
        }
    }
}
