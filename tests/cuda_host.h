// CUDA C++ on a CPU, for tests: a launch is a loop over blocks and threads.  Exact for kernels whose threads share
// nothing, and for those in phases, each of which is a loop over threads of its own.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

struct Dimensions {
    unsigned x, y, z;
};
static Dimensions threadIdx, blockIdx, blockDim, gridDim;

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

#define __global__
#define __device__
#define __shared__ static
#define __restrict__
#define __launch_bounds__(...)
#define __syncthreads() ((void)0)
#define COOPERATIVE
#define EACH_THREAD for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x)

static inline float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
static inline int __float_as_int(float v) { int w; std::memcpy(&w, &v, 4); return w; }
static inline float __int_as_float(int w) { float v; std::memcpy(&v, &w, 4); return v; }
template <class T> static inline T __ldg(const T* p) { return *p; }
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n) {
    return (unsigned)((((uint64_t)high << 32) | low) >> (n & 31));
}
static inline unsigned __float2uint_rz(float v) { return v > 0 ? (unsigned)v : 0u; }
template <class T, class V> static inline T atomicAdd(T* p, V v) { T old = *p; *p += (T)v; return old; }
template <class T, class V> static inline T atomicMin(T* p, V v) { T old = *p; *p = std::min(old, (T)v); return old; }
template <class T, class V> static inline T atomicMax(T* p, V v) { T old = *p; *p = std::max(old, (T)v); return old; }
template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }

template <class... Args, size_t... K>
static void call(void (*kernel)(Args...), void** args, std::index_sequence<K...>) {
    kernel(*(std::remove_reference_t<Args>*)args[K]...);
}

template <class... Args>
static void run(void (*kernel)(Args...), bool phases, unsigned wide, unsigned high, unsigned threads, void** args) {
    gridDim = {wide, high, 1};
    blockDim = {threads, 1, 1};
    for (unsigned y = 0; y < high; ++y)
        for (unsigned x = 0; x < wide; ++x)
            for (unsigned t = 0; t < (phases ? 1 : threads); ++t) {
                blockIdx = {x, y, 0};
                threadIdx = {t, 0, 0};
                call(kernel, args, std::index_sequence_for<Args...>{});
            }
}
