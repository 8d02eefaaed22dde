// Antialiased resize of a box of a picture into a rectangle of another one: a thread a pixel, float32 sums of float32
// weights that are normalised in float64, as in reference_ops.py.

struct Cut {
    u64 address;  // of the source, rows of `pitch` bytes
    i64 pitch;
    int height, width;  // of the source
    double left, top, box_width, box_height;  // in pixels of the source
    int first_row, first_column, last_row, last_column;  // of the result, ends excluded
    int slot, flip;  // of the result: which picture, whether mirrored
};

#define ABREAST 8  // columns whose weights a thread keeps in registers, so that no row computes them anew

// The pixels of a line that one pixel of the result sees: first .. first + count.  slope and share are reciprocals, for
// float64 divisions are slow.
struct Triangle {
    double centre, slope, share;
    int first, count;
};

__device__ inline double triangle_height(const Triangle& t, int k) {
    double height = 1.0 - fabs((t.first + k + 0.5 - t.centre) * t.slope);
    return height > 0.0 ? height : 0.0;
}

__device__ inline float triangle_weight(const Triangle& t, int k) { return (float)(triangle_height(t, k) * t.share); }

// For pixel `at` of `outputs` over start .. start + extent of a line of `length` pixels.  As in Pillow, the filter is
// widened by the reduction and sees pixels outside the box, but not outside the picture.
__device__ inline Triangle triangle_of(int length, double start, double extent, int outputs, int at) {
    double scale = extent / outputs, support = scale > 1.0 ? scale : 1.0, total = 0.0;
    Triangle t;
    t.centre = start + (at + 0.5) * scale;
    t.slope = 1.0 / support;
    double low = t.centre - support + 0.5, high = t.centre + support + 0.5;
    t.first = low > 0.0 ? (int)low : 0;
    t.count = (high < length ? (int)high : length) - t.first;
    for (int k = 0; k < t.count; ++k) total += triangle_height(t, k);
    t.share = 1.0 / total;
    return t;
}

// A row of the grid is a cut.  out and under: pictures of height x width; outside its rectangle a result is as the
// picture of its slot in `under` if `keep`, else black.
extern "C" __global__ void resize(const Cut* cuts, const u8* under, int keep, int height, int width, u8* out) {
    i64 place = (i64)blockIdx.y * blockDim.x + threadIdx.x;
    if (place >= (i64)height * width) return;
    const Cut& cut = cuts[blockIdx.x];
    i64 at = 3 * ((i64)height * width * cut.slot + place);
    int row = (int)place / width, column = (int)place - row * width;
    if (row < cut.first_row || row >= cut.last_row || column < cut.first_column || column >= cut.last_column) {
        for (int c = 0; c < 3; ++c) out[at + c] = keep ? under[at + c] : (u8)0;
        return;
    }
    int across = cut.flip ? cut.last_column - 1 - column : column - cut.first_column;
    Triangle h = triangle_of(cut.width, cut.left, cut.box_width, cut.last_column - cut.first_column, across);
    Triangle v = triangle_of(cut.height, cut.top, cut.box_height, cut.last_row - cut.first_row, row - cut.first_row);
    float red = 0.0f, green = 0.0f, blue = 0.0f;
    for (int first = 0; first < h.count; first += ABREAST) {
        float weights[ABREAST];
#pragma unroll
        for (int k = 0; k < ABREAST; ++k) weights[k] = first + k < h.count ? triangle_weight(h, first + k) : 0.0f;
        const u8* line = (const u8*)cut.address + v.first * cut.pitch + 3 * (i64)(h.first + first);
        for (int y = 0; y < v.count; ++y, line += cut.pitch) {
            float r = 0.0f, g = 0.0f, b = 0.0f, weight = triangle_weight(v, y);
#pragma unroll
            for (int k = 0; k < ABREAST; ++k) {
                if (first + k >= h.count) continue;  // beyond may be the end of the memory
                r += weights[k] * (float)__ldg(line + 3 * k);
                g += weights[k] * (float)__ldg(line + 3 * k + 1);
                b += weights[k] * (float)__ldg(line + 3 * k + 2);
            }
            red += weight * r;
            green += weight * g;
            blue += weight * b;
        }
    }
    out[at] = nearest_level(red);
    out[at + 1] = nearest_level(green);
    out[at + 2] = nearest_level(blue);
}
