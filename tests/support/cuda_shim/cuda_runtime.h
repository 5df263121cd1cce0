// SPDX-License-Identifier: Apache-2.0
#pragma once
// Stands for CUDA's header of this name where .cu files are compiled as C++:
// what kernels and their launches use. A launch runs the kernel at once, see
// kernel_run.h. Only those sources include this.

#include "support/cuda_shim/cuda_runtime_api.h"
#include "support/cuda_shim/kernel_run.h"
#include "support/cuda_shim/memory_checks.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#define __global__
#define __device__
#define __host__
// By reference: CUDA does not copy these for every thread either.
#define __grid_constant__ &
#define __launch_bounds__(...)
// One block runs at a time.
#define __shared__ static __attribute__((section(TESSERA_SHIM_SHARED_SECTION)))

using std::isnan;
using tessera::tests::cuda_shim::dim3;

inline constexpr const dim3& gridDim = tessera::tests::cuda_shim::kernel.grid;
inline constexpr const dim3& blockDim =
    tessera::tests::cuda_shim::kernel.threads;
inline constexpr const dim3& blockIdx = tessera::tests::cuda_shim::kernel.block;
inline constexpr const dim3& threadIdx =
    tessera::tests::cuda_shim::kernel.thread;

inline void __syncthreads() {
  tessera::tests::cuda_shim::wait_for_block();
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask) {
  return std::bit_cast<T>(tessera::tests::cuda_shim::exchange_in_warp(
      mask, std::bit_cast<uint32_t>(value), static_cast<unsigned>(lane_mask)));
}

namespace tessera::tests::cuda_shim {

template <typename T>
T sum(T a, T b) {
  return a + b;
}
template <typename T>
T product(T a, T b) {
  return a * b;
}
template <typename T>
T quotient(T a, T b) {
  return a / b;
}
template <typename T>
T fused(T a, T b, T c) {
  return std::fma(a, b, c);
}
template <typename T>
T root(T a) {
  return std::sqrt(a);
}

} // namespace tessera::tests::cuda_shim

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
};

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(
    const cudaLaunchConfig_t* config,
    void (*kernel)(Parameters...),
    Arguments&&... arguments) {
  return tessera::tests::cuda_shim::run_kernel(
      config->gridDim, config->blockDim, (sizeof(Parameters) + ... + 0), [&] {
        kernel(arguments...);
      });
}

inline cudaError_t cudaGetLastError() {
  return tessera::tests::cuda_shim::last_error();
}

enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };

inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return tessera::tests::cuda_shim::kernel_options().device_query;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = tessera::tests::cuda_shim::kernel_options().processors;
  return cudaSuccess;
}

// The intrinsics are compiled with -ffp-contract=off.
inline constexpr auto __fadd_rn = tessera::tests::cuda_shim::sum<float>;
inline constexpr auto __fmul_rn = tessera::tests::cuda_shim::product<float>;
inline constexpr auto __fdiv_rn = tessera::tests::cuda_shim::quotient<float>;
inline constexpr auto __fmaf_rn = tessera::tests::cuda_shim::fused<float>;
inline constexpr auto __fsqrt_rn = tessera::tests::cuda_shim::root<float>;
inline constexpr auto __dadd_rn = tessera::tests::cuda_shim::sum<double>;
inline constexpr auto __dmul_rn = tessera::tests::cuda_shim::product<double>;
inline constexpr auto __ddiv_rn = tessera::tests::cuda_shim::quotient<double>;
inline constexpr auto __fma_rn = tessera::tests::cuda_shim::fused<double>;
inline constexpr auto __dsqrt_rn = tessera::tests::cuda_shim::root<double>;
inline uint32_t __float_as_uint(float a) {
  return std::bit_cast<uint32_t>(a);
}
inline float __uint_as_float(uint32_t a) {
  return std::bit_cast<float>(a);
}
