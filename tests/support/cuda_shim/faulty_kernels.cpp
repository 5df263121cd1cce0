// SPDX-License-Identifier: Apache-2.0
#include "support/cuda_shim/faulty_kernels.h"

#include "tessera/runtime/kernels/element_pack.cuh"
#include "tessera/runtime/kernels/launch.cuh"

#include <cstdint>

namespace tessera::tests::cuda_shim {

namespace {

constexpr unsigned kThreads = 64;

__global__ void sum_kernel(Fault fault, const float* in, float* out) {
  __shared__ float shared[kThreads];
  __shared__ float sum_before;
  const unsigned thread = threadIdx.x;
  const unsigned i = blockIdx.x * kThreads + thread;
  const bool is_last = i == 2 * kThreads - 1;
  float own = in[i];
  if (fault == Fault::kReadsPastTheEnd && is_last) {
    own += in[i + 1];
  }
  if (fault == Fault::kReadsBeforeTheBegin && i == 0) {
    own += *(in - 1);
  }
  if (fault == Fault::kWritesPastTheEnd && is_last) {
    out[2] = own;
  }
  if (fault == Fault::kPackEndsPastTheEnd && is_last) {
    own += static_cast<float>(
        runtime::load_pack<4>(reinterpret_cast<const uint32_t*>(out))
            .values[0]);
  }
  if (fault == Fault::kReadsSharedUnwritten && thread == 5) {
    own += sum_before;
  }
  shared[thread] = own;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (fault != Fault::kSharedWithoutBarrier || half != kThreads / 4) {
      __syncthreads();
    }
    if (thread < half) {
      shared[thread] += shared[thread + half];
    }
  }
  if (fault == Fault::kPartOfTheBlockAtBarrier && thread == 7) {
    return;
  }
  __syncthreads();
  const float sum = shared[0];
  if (fault == Fault::kSharedOverwritten) {
    shared[thread] = sum;
  }
  if (fault == Fault::kWritesOfTwoThreads && thread < 2) {
    out[blockIdx.x] = sum;
  }
  if (fault == Fault::kWritesOfTwoBlocks && thread == 0) {
    out[0] = sum;
  }
  if (fault == Fault::kReadsOfAnotherBlock && thread == 0) {
    out[blockIdx.x] = out[1 - blockIdx.x] + sum;
  }
  if (fault == Fault::kNone && thread == 0) {
    sum_before = sum;
    out[blockIdx.x] = sum;
  }
}

} // namespace

cudaError_t launch_faulty(Fault fault, const float* in, float* out) {
  return runtime::launch(
      &sum_kernel, dim3(2), kThreads, nullptr, fault, in, out);
}

} // namespace tessera::tests::cuda_shim
