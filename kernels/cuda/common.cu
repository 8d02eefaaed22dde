// What all kernels share: short names, the records of a program, and the scalar arithmetic of pixel.py, to the bit.
// Compiled with -fmad=false: a product is rounded before it is added to, unless the code says fma.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// A block of a COOPERATIVE kernel works in phases: EACH_THREAD { ... } __syncthreads();  No variable of a thread
// outlives its phase, so that one thread can also do the work of all, one after the other.
#ifndef EACH_THREAD
#define COOPERATIVE
#define EACH_THREAD
#endif

struct Step {
    int mode, layer;
    float a, b;
    int clip, where;
    float rate;
    u32 stream;
    int index, top, left, bottom, right;
};

// A picture somewhere: rows of `pitch` bytes from `address` on.
struct Picture {
    u64 address;
    i64 pitch;
};

__device__ inline float unit(float v) {  // to 0..255; not-a-number gives 0
    v = v > 0.0f ? v : 0.0f;
    return v < 255.0f ? v : 255.0f;
}

__device__ inline u8 nearest_level(float v) { return (u8)(int)unit(v + 0.5f); }

struct Words {
    u32 w[4];
};

// Philox4x32-10 of a 4-word counter and a 2-word key.
__device__ inline Words philox(u32 c0, u32 c1, u32 c2, u32 c3, u32 k0, u32 k1) {
    for (int round = 0; round < 10; ++round) {
        u64 p0 = (u64)c0 * 0xD2511F53u, p1 = (u64)c2 * 0xCD9E8D57u;
        c0 = (u32)(p1 >> 32) ^ c1 ^ k0;
        c1 = (u32)p1;
        c2 = (u32)(p0 >> 32) ^ c3 ^ k1;
        c3 = (u32)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return Words{{c0, c1, c2, c3}};
}

// log2 of a positive normal float: x = 2^e (1 + f), and a polynomial in f; see pixel.py.
__device__ inline float log2_of(float x) {
    int word = __float_as_int(x);
    int e = (word - 0x3F3504F3) >> 23;
    float f = __int_as_float(word - (int)((u32)e << 23)) - 1.0f;
    float p = -0.1457444280385971f;
    p = __fmaf_rn(p, f, 0.23688922822475433f);
    p = __fmaf_rn(p, f, -0.2500685453414917f);
    p = __fmaf_rn(p, f, 0.28670763969421387f);
    p = __fmaf_rn(p, f, -0.3600872755050659f);
    p = __fmaf_rn(p, f, 0.48093944787979126f);
    p = __fmaf_rn(p, f, -0.7213571667671204f);
    p = __fmaf_rn(p, f, 1.4426947832107544f);
    return __fmaf_rn(p, f, (float)e);
}

// 2^t for -126 <= t < 127.4; see pixel.py.
__device__ inline float exp2_of(float t) {
    int e = (int)(t + 1024.5f) - 1024;
    float f = t - (float)e;
    float p = 0.0013276466634124517f;
    p = __fmaf_rn(p, f, 0.009675541892647743f);
    p = __fmaf_rn(p, f, 0.05550713464617729f);
    p = __fmaf_rn(p, f, 0.24022120237350464f);
    p = __fmaf_rn(p, f, 0.6931469440460205f);
    p = __fmaf_rn(p, f, 1.0000001192092896f);
    return __int_as_float(__float_as_int(p) + (int)((u32)e << 23));
}
