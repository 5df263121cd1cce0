// SPDX-License-Identifier: Apache-2.0
#include "support/cuda_shim/faulty_kernels.h"

#include "tessera/runtime/kernels/element_pack.cuh"
#include "tessera/runtime/kernels/launch.cuh"

#include <cstdint>

namespace tessera::tests::cuda_shim {

namespace {

constexpr unsigned kThreads = 64;
constexpr unsigned kAllLanes = 0xffffffff;

/// Each exchange is of the threads of the first warp.
__device__ void exchange(Fault fault, unsigned thread, const float* shared) {
  if (fault == Fault::kNone) {
    __shfl_xor_sync(kAllLanes, thread, 1);
  }
  if (thread >= 32) {
    return;
  }
  if (fault == Fault::kPartOfTheWarpInExchange && thread != 7) {
    __shfl_xor_sync(kAllLanes, thread, 1);
  }
  if (fault == Fault::kExchangeByOtherMask) {
    __shfl_xor_sync(thread == 7 ? kAllLanes - 1 : kAllLanes, thread, 1);
  }
  if (fault == Fault::kExchangeWithoutItself) {
    __shfl_xor_sync(
        thread == 7 ? kAllLanes & ~(1u << 7) : kAllLanes, thread, 1);
  }
  if (fault == Fault::kExchangeWithLaneOutOfMask && thread < 16) {
    __shfl_xor_sync(0xffff, thread, 16);
  }
  if (fault == Fault::kSharedOrderedByExchange) {
    __shfl_xor_sync(kAllLanes, thread, 1); // after all have written
    __shfl_xor_sync(kAllLanes, shared[thread ^ 1], 1);
  }
}

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
  exchange(fault, thread, shared);
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
  if (fault == Fault::kExitBeforeExchange && thread < 32) {
    if (thread == 7) {
      return;
    }
    __shfl_xor_sync(kAllLanes, thread, 1);
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

/// Blocks of 48 threads: the second warp has half of its lanes.
__global__ void exchange_kernel(bool is_past_the_block, float* out) {
  const unsigned thread = threadIdx.x;
  const unsigned lanes = is_past_the_block || thread < 32 ? kAllLanes : 0xffffu;
  const unsigned even = 0x55555555 & lanes;
  const unsigned odd = 0xaaaaaaaa & lanes;
  const float received = __shfl_xor_sync(
      thread % 2 == 0 ? even : odd,
      static_cast<float>(thread + 1),
      thread % 2 == 0 ? 2 : 6);
  if (!is_past_the_block) {
    out[thread] = received;
  }
}

cudaError_t launch_exchange(bool is_past_the_block, float* out) {
  return runtime::launch(
      &exchange_kernel, dim3(1), 48, nullptr, is_past_the_block, out);
}

} // namespace

cudaError_t launch_exchange(float* out) {
  return launch_exchange(false, out);
}

cudaError_t launch_faulty(Fault fault, const float* in, float* out) {
  if (fault == Fault::kExchangePastTheBlock) {
    return launch_exchange(true, out);
  }
  return runtime::launch(
      &sum_kernel, dim3(2), kThreads, nullptr, fault, in, out);
}

} // namespace tessera::tests::cuda_shim
