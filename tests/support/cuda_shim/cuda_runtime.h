// SPDX-License-Identifier: Apache-2.0
#pragma once
// Stands for CUDA's header of this name where .cu files are compiled as C++:
// what kernels and their launches use. A launch runs the kernel at once, see
// kernel_run.h. Only those sources include this.

#include "support/cuda_shim/cuda_runtime_api.h"
#include "support/cuda_shim/kernel_run.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#define __global__
#define __device__
#define __host__
// By reference: CUDA does not copy these for every thread either.
#define __grid_constant__ &
#define __launch_bounds__(threads)
// One block runs at a time.
#define __shared__ static

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
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = tessera::tests::cuda_shim::kernel_options().processors;
  return cudaSuccess;
}

// The intrinsics are compiled with -ffp-contract=off.
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
inline float __fmaf_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline float __fsqrt_rn(float a) {
  return std::sqrt(a);
}
inline double __dadd_rn(double a, double b) {
  return a + b;
}
inline double __dmul_rn(double a, double b) {
  return a * b;
}
inline double __ddiv_rn(double a, double b) {
  return a / b;
}
inline double __fma_rn(double a, double b, double c) {
  return std::fma(a, b, c);
}
inline double __dsqrt_rn(double a) {
  return std::sqrt(a);
}
inline uint32_t __float_as_uint(float a) {
  return std::bit_cast<uint32_t>(a);
}
